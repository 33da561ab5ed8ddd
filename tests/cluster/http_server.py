"""Programs that serve in the network of the calling thread."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from heterps_operator.measure.http_requests import NoResponseError, send_request
from tests.cluster.kubectl import wait_until

__all__ = ["HttpServer", "Server", "free_address"]


def free_address() -> str:
    """Return an address of this machine that no program listens on: 127.0.0.1:PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Server:
    """As a context manager it runs inside the block, where a test may kill and start it.

    Args:
        name: of the program, for people.
        command: starts it.
        log: file for its output.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self._name = name
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running program."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        wait_until(f"{self._name} is ready", self._running_and_ready, 60, more=self.story)

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def story(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def ready(self) -> bool:
        """Return whether clients may come."""
        raise NotImplementedError

    def _running_and_ready(self) -> bool:
        assert self.process.poll() is None, f"{self._name} has ended\n{self.story()}"
        return self.ready()


class HttpServer(Server):
    """A server of HTTP.

    Args:
        name: of the program, for people.
        command: starts it.
        log: file for its output.
        address: HOST:PORT that it listens on.
        health: path to ask for when it is ready.
        status: what it answers then.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, address: str, health: str, status: int = 200
    ) -> None:
        super().__init__(name, command, log)
        self.url = f"http://{address}"
        self._health = health
        self._status = status

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            answer = send_request("GET", self.url + self._health, headers={}, timeout=5, most_bytes=1000)
        except NoResponseError:
            return False
        return answer.status == self._status
