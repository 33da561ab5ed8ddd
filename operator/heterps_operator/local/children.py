"""Programs as child processes: each in a new interpreter, or forked from one that has imported it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from heterps_operator.local.fork_server import MOST_BYTES
from heterps_operator.local.processes import guarded

__all__ = ["Child", "Command", "ForkServer", "Program"]

_LOG = logging.getLogger("heterps.operator")
_STOP_SECONDS = 5.0
_ANSWER_BYTES = 16  # an exit code in decimal digits

_Server = subprocess.Popen[bytes]


class Child(Protocol):
    """A process that this one has started. Thread-safe."""

    def wait(self, seconds: float = 0.0) -> int | None:
        """Wait at most so long; return the exit code, as in `subprocess`, or None while it runs."""
        ...

    def kill(self) -> None:
        """Kill it with its children, if it runs, and wait for its end."""
        ...


class Program(Protocol):
    """A program that can be started."""

    def start(self, arguments: Sequence[str], output: Path, messages: Path, memory_bytes: int | None) -> Child:
        """Start it in a session of its own; it ends with this process at the latest.

        Args:
            arguments: command-line arguments.
            output: file for its standard output, which is made anew.
            messages: file for its standard error, likewise.
            memory_bytes: limit of its address space; None: no limit.

        Raises:
            OSError: it cannot be started.
        """
        ...


def _new(file: Path) -> BinaryIO:
    """Make a file; one of this name that an earlier child still has open is another file from now on."""
    file.unlink(missing_ok=True)
    return file.open("xb")


# --- a new interpreter ------------------------------------------------------------------------------------------------


class Command:
    """A program that is started by its command line.

    Args:
        command: program and first arguments.
        environment: variables besides this process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._command = tuple(command)
        self._environment = environment

    def start(self, arguments: Sequence[str], output: Path, messages: Path, memory_bytes: int | None) -> Child:
        """Start it (`Program.start`)."""
        with _new(output) as standard_output, _new(messages) as standard_error:
            return _Spawned(
                subprocess.Popen(
                    guarded([*self._command, *arguments], memory_bytes),
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=standard_output,
                    stderr=standard_error,
                    start_new_session=True,
                )
            )


class _Spawned:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, seconds: float = 0.0) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


# --- a fork -----------------------------------------------------------------------------------------------------------


class ForkServer:
    """A program whose children are forked from one process that has imported it. Thread-safe.

    The server starts when it is needed, and again if it has died. A child that dies with it is started once more.

    Args:
        function: `MODULE:FUNCTION`, called with the list of arguments.
        first: arguments before those of each child.
        modules: what else to import.
        environment: variables besides this process's.
    """

    def __init__(
        self,
        function: str,
        *,
        first: Sequence[str] = (),
        modules: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._command = (sys.executable, "-P", "-m", "heterps_operator.local.fork_server", function, *modules)
        self._first = tuple(first)
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Of the server; None before the first one."""
        return None if self._process is None else self._process.pid

    def launch(self) -> None:
        """Start the server before it is needed.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            self._ready()

    def start(self, arguments: Sequence[str], output: Path, messages: Path, memory_bytes: int | None) -> Child:
        """Start a child (`Program.start`)."""
        request = json.dumps({"arguments": [*self._first, *arguments], "memory_bytes": memory_bytes}).encode()
        assert len(request) <= MOST_BYTES

        def connect(dead: _Server | None) -> tuple[socket.socket, _Server]:
            with _new(output) as standard_output, _new(messages) as standard_error:
                return self._connect(request, (standard_output.fileno(), standard_error.fileno()), dead)

        return _Forked(connect)

    def close(self) -> None:
        """End the server and its children."""
        with self._lock:
            self._stop()

    def _connect(self, request: bytes, files: tuple[int, int], dead: _Server | None) -> tuple[socket.socket, _Server]:
        """Send a request; return the connection of its child, and the server.

        Args:
            request: arguments and limits.
            files: descriptors of standard output and error.
            dead: a server that has ended a connection without an answer. The kernel closes the sockets of a dying
                process in any order, so it may seem to take requests for a moment.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs:
                if dead is not None and dead is self._process:
                    self._stop()
                descriptors = [theirs.fileno(), *files]
                try:
                    socket.send_fds(self._ready(), [request], descriptors)
                except (BrokenPipeError, ConnectionResetError):  # it has just died
                    self._stop()
                    socket.send_fds(self._ready(), [request], descriptors)
                assert self._process is not None
                return ours, self._process
        except BaseException:
            ours.close()
            raise

    def _ready(self) -> socket.socket:
        """Return the socket of requests of a server that runs; the lock is held."""
        if self._requests is not None and self._process is not None and self._process.poll() is None:
            return self._requests
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env={**os.environ, **self._environment},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._requests = ours
        return ours

    def _stop(self) -> None:
        """End the server, if there is one; the lock is held."""
        if self._requests is not None:
            self._requests.close()  # which ends it
            self._requests = None
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class _Forked:
    """A child of the server; a thread waits for its end.

    Args:
        connect: starts it, and returns its connection and its server; takes the server that it had, if that has died.
    """

    def __init__(self, connect: Callable[[_Server | None], tuple[socket.socket, _Server]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._killed = False
        self._code = -signal.SIGKILL
        self._ended = threading.Event()
        self._connection, self._server = connect(None)
        threading.Thread(target=self._follow, name="child", daemon=True).start()

    def wait(self, seconds: float = 0.0) -> int | None:
        return self._code if self._ended.wait(seconds) else None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if not self._ended.is_set():
                with contextlib.suppress(OSError):  # the server has died
                    self._connection.shutdown(socket.SHUT_WR)
        self._ended.wait()

    def _follow(self) -> None:
        answer = self._answer()
        if not answer:  # the server has died, and the child with it
            try:
                answer = self._answer() if self._again() else b""
            except OSError:
                _LOG.exception("a child cannot be started again")
        with self._lock:
            self._connection.close()
            if answer:
                self._code = int(answer)
            self._ended.set()

    def _again(self) -> bool:
        """Start the child once more unless it was killed."""
        with self._lock:
            if not self._killed:
                self._connection.close()
                self._connection, self._server = self._connect(self._server)
            return not self._killed

    def _answer(self) -> bytes:
        try:
            return self._connection.recv(_ANSWER_BYTES)
        except ConnectionResetError:
            return b""
