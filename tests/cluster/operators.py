"""The operator as a process on this machine, inside the cluster's network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.building import ROOT
from tests.cluster.kubectl import wait_until

NAMESPACE = "heterps-system"


class Operator:
    """`heterps operator`, as the chart's pod runs it; as a context manager it runs inside the block.

    Args:
        kubeconfig: its credentials.
        folder: folder of its log.
        options: additional options.
        program: command line without options.
        name: name of its log.
        environment: added to this process's.
    """

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        *options: str,
        program: Sequence[str] = (sys.executable, "-m", "heterps_operator"),
        name: str = "operator",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._options: Sequence[str] = options
        self._program = program
        self._environment = dict(environment or {})
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0  # offset of the running process in the log

    def __enter__(self) -> Operator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, standby: bool = False) -> None:
        """Start it, and return when it is active, or waits for another one to end."""
        self.launch()
        if standby:
            self.wait_until_it_says("waiting for the Lease")
        else:
            self.wait_until_active()

    def launch(self) -> None:
        """Start it, and return at once."""
        assert not self.running
        command = [*self._program, "operator", "--kubeconfig", str(self._kubeconfig)]
        self._begins = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            # The test's thread is in the cluster's network, and so are its child processes.
            self._process = subprocess.Popen(
                [*command, "--metrics-port", "0", "--lease-namespace", NAMESPACE, *self._options],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "KUBECONFIG": "", **self._environment},
            )

    def wait_until_active(self) -> None:
        """Wait until it holds the Lease."""
        self.wait_until_it_says(" active: ")

    def wait_until_it_says(self, words: str, seconds: float = 60) -> None:
        """Wait until the running process has logged this text."""

        def said() -> bool:
            assert self.running, f"the operator has ended\n{self.story()}"
            return words in self.said()

        wait_until(f"the operator says {words!r}", said, seconds, more=self.story)

    def said(self) -> str:
        """Return what the running process has logged."""
        return self.log.read_bytes()[self._begins :].decode(errors="replace") if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; SIGSTOP and SIGCONT make it unresponsive for a while."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop it gracefully."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)
            self._process = None

    def kill(self) -> None:
        """Kill it, as in a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=30)
        self._process = None

    def story(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")
