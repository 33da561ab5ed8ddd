"""A program that serves HTTP in the network of the calling thread."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from heterps_operator.measure.http_requests import NoResponseError, send_request
from tests.cluster.kubectl import wait_until

__all__ = ["HttpServer"]


class HttpServer:
    """As a context manager it runs inside the block.

    Args:
        name: of the program, for people.
        command: starts it.
        log: file for its output.
        address: HOST:PORT that it listens on.
        health: path that answers 200 when it is ready.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, address: str, health: str) -> None:
        self.url = f"http://{address}"
        self._name = name
        self._command = list(command)
        self._log = log
        self._health = health
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        wait_until(f"{self._name} is ready", self._ready, 60, more=self.story)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    def story(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self._name} has ended\n{self.story()}"
        try:
            return send_request("GET", self.url + self._health, headers={}, timeout=5, most_bytes=1000).status == 200
        except NoResponseError:
            return False
