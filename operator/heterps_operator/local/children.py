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
from typing import Any, BinaryIO, Protocol

from heterps_operator.local.fork_server import MOST_BYTES

__all__ = ["Child", "Command", "ForkServer", "Forked", "Program", "guarded"]

_LOG = logging.getLogger("heterps.operator")
_STOP_SECONDS = 5.0
_ANSWER_BYTES = 16  # a number in decimal digits

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


def guarded(command: Sequence[str], memory_bytes: int | None = None) -> list[str]:
    """Return the command line that runs `command` only as long as this process lives.

    Args:
        command: program and arguments.
        memory_bytes: limit of its address space; None: no limit.
    """
    guard = str(Path(__file__).with_name("guard.py"))
    limits = [] if memory_bytes is None else [str(memory_bytes)]
    return [sys.executable, "-I", "-S", guard, str(os.getpid()), *limits, "--", *command]


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


class Forked:
    """A child that a server forks.

    Args:
        connection: the child's, to the server.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def pid(self) -> int:
        """Wait until it is forked, and return its pid, which stays its own until `release`; 0: there is no child.

        Called once, before `wait`.
        """
        return self._receive() or 0

    def wait(self) -> int | None:
        """Wait for its end; return the exit code, as in `subprocess`, or None if the server has died, and it too."""
        return self._receive()

    def kill(self) -> None:
        """Kill it with its children, unless it has ended."""
        with contextlib.suppress(OSError):  # the server has died
            self._connection.shutdown(socket.SHUT_WR)

    def release(self) -> None:
        """Forget it; one that still runs is killed."""
        self._connection.close()

    def _receive(self) -> int | None:
        try:
            answer = self._connection.recv(_ANSWER_BYTES)
        except ConnectionResetError:
            return None
        return int(answer) if answer else None


class ForkServer:
    """A program whose children are forked from one process that has imported it. Thread-safe.

    The server starts when it is needed, and again if it has died.

    Args:
        function: `MODULE:FUNCTION`, called with the list of arguments.
        first: arguments before those of each child.
        modules: what else to import.
        environment: variables besides this process's.
        folder: in which it and its children run; None: this process's.
        log: file for what its imports print; None: this process's standard error.
    """

    def __init__(
        self,
        function: str,
        *,
        first: Sequence[str] = (),
        modules: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        folder: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._command = (sys.executable, "-P", "-m", "heterps_operator.local.fork_server", function, *modules)
        self._first = tuple(first)
        self._environment = environment
        self._folder = folder
        self._log = log
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
        """Start a child (`Program.start`); one that dies with the server is started once more."""
        request = {"arguments": [*self._first, *arguments], "memory_bytes": memory_bytes}

        def connect(dead: _Server | None) -> tuple[Forked, _Server]:
            with _new(output) as standard_output, _new(messages) as standard_error:
                return self._connect(request, (standard_output.fileno(), standard_error.fileno()), dead)

        return _Restarting(connect)

    def fork(
        self, arguments: Sequence[str], output: BinaryIO, variables: Mapping[str, str], title: Sequence[str]
    ) -> Forked:
        """Start a child.

        Args:
            arguments: of the function, after the first ones.
            output: file for its standard output and error.
            variables: of its environment, besides the server's.
            title: its command line, as other programs see it; cut off where it is longer than the server's.

        Raises:
            OSError: the server cannot be started.
        """
        request = {"arguments": [*self._first, *arguments], "environment": dict(variables), "title": list(title)}
        return self._connect(request, (output.fileno(), output.fileno()), None)[0]

    def close(self) -> None:
        """End the server and its children."""
        with self._lock:
            self._stop()

    def kill(self) -> None:
        """End the server at once, whatever it does, and its children."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _connect(
        self, request: Mapping[str, Any], files: tuple[int, int], dead: _Server | None
    ) -> tuple[Forked, _Server]:
        """Send a request; return its child, and the server.

        Args:
            request: as the server reads it, without descriptors.
            files: descriptors of standard output and error.
            dead: a server that has ended a connection without an answer. The kernel closes the sockets of a dying
                process in any order, so it may seem to take requests for a moment.
        """
        message = json.dumps(request).encode()
        assert len(message) <= MOST_BYTES
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self._lock, theirs:
                if dead is not None and dead is self._process:
                    self._stop()
                descriptors = [theirs.fileno(), *files]
                try:
                    socket.send_fds(self._ready(), [message], descriptors)
                except (BrokenPipeError, ConnectionResetError):  # it has just died
                    self._stop()
                    socket.send_fds(self._ready(), [message], descriptors)
                assert self._process is not None
                return Forked(ours), self._process
        except BaseException:
            ours.close()
            raise

    def _ready(self) -> socket.socket:
        """Return the socket of requests of a server that runs; the lock is held."""
        if self._requests is not None and self._process is not None and self._process.poll() is None:
            return self._requests
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as files:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env={**os.environ, **self._environment},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=None if self._log is None else files.enter_context(self._log.open("ab")),
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


class _Restarting:
    """A child that starts once more if its server dies; a thread waits for its end.

    Args:
        connect: starts it, and returns it and its server; takes the server that it had, if that has died.
    """

    def __init__(self, connect: Callable[[_Server | None], tuple[Forked, _Server]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._killed = False
        self._code = -signal.SIGKILL
        self._ended = threading.Event()
        self._forked, self._server = connect(None)
        threading.Thread(target=self._follow, name="child", daemon=True).start()

    def wait(self, seconds: float = 0.0) -> int | None:
        return self._code if self._ended.wait(seconds) else None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if not self._ended.is_set():
                self._forked.kill()
        self._ended.wait()

    def _follow(self) -> None:
        code = self._wait()
        if code is None:  # the server has died, and the child with it
            try:
                code = self._wait() if self._again() else None
            except OSError:
                _LOG.exception("a child cannot be started again")
        with self._lock:
            self._forked.release()
            if code is not None:
                self._code = code
            self._ended.set()

    def _again(self) -> bool:
        """Start the child once more unless it was killed."""
        with self._lock:
            if not self._killed:
                self._forked.release()
                self._forked, self._server = self._connect(self._server)
            return not self._killed

    def _wait(self) -> int | None:
        self._forked.pid()
        return self._forked.wait()
