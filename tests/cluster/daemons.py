"""Programs that run for the lifetime of the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.sandbox import Sandbox, children

START_SECONDS = 60.0
LOG_LINES = 15
GOGC = "400"  # with the usual 100, an API server spends a sixth of its processor time on garbage


@dataclass(frozen=True)
class Daemon:
    """A program inside a sandbox."""

    name: str
    arguments: tuple[str | Path, ...]
    process: subprocess.Popen[bytes]  # nsenter, which ends with the program and with its exit code
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send the program a signal; SIGSTOP and SIGCONT make it unresponsive for a while."""
        for child in children(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, number)
        if number == signal.SIGCONT:  # nsenter stops itself with its child, and would not see its end
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def end(self) -> None:
        """Kill the program and wait for it."""
        if self.running:
            self.send(signal.SIGKILL)
        self.process.wait()


class Daemons:
    """Starts programs in a sandbox, and detects failed ones."""

    def __init__(self, sandbox: Sandbox, logs: Path) -> None:
        self._sandbox = sandbox
        self._logs = logs
        self._started: list[Daemon] = []

    def start(self, name: str, arguments: Sequence[str | Path]) -> Daemon:
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._sandbox.command([str(argument) for argument in arguments]), env={**os.environ, "GOGC": GOGC},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/",
            )  # fmt: skip
        daemon = Daemon(name, tuple(arguments), process, log)
        self._started = [other for other in self._started if other.name != name] + [daemon]
        return daemon

    def named(self, name: str) -> Daemon:
        """Return a started program by name."""
        [found] = [daemon for daemon in self._started if daemon.name == name]
        return found

    def start_again(self, daemon: Daemon) -> Daemon:
        """Restart an ended program with the same arguments."""
        return self.start(daemon.name, daemon.arguments)

    def wait_for(self, what: str, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until a condition holds.

        Raises:
            ClusterError: timeout, or a program has ended; with the last lines of its log.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            for daemon in self._started:
                if not daemon.running:
                    code = daemon.process.returncode
                    raise ClusterError(f"{daemon.name} ended with exit code {code}:\n{last_lines(daemon.log)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not so after {seconds:.0f} s; see the logs in {self._logs}")
            time.sleep(0.05)

    def reap(self) -> None:
        """Collect the exit codes of programs that ended with the sandbox."""
        for daemon in self._started:
            daemon.process.wait()


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
