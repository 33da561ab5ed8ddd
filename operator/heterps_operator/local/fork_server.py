"""A process that has imported a program, and forks a child for each of its runs.

    python -P -m heterps_operator.local.fork_server MODULE:FUNCTION [MODULE...] < a socket

Importing the planner takes longer than most plans do, and importing torch longer than the first steps of a worker. The
server imports a program once and does nothing else: it never runs the function itself, reads no file of a job, and has
one thread, so each child starts from the same, clean state, and fork is safe. A child differs from a process of its own
in nothing else: it leads its session, has its own limit of memory and its own output, and the kernel kills it when the
server ends.

`children.ForkServer` starts it. Its standard input is a socket, each message of which is a request: JSON, with three
descriptors. The first is a connection for this child alone. The server sends its pid there, and its exit code when it
has ended. The pid stays the child's until the other end is closed, as the server waits for the child only then. If the
other end is closed earlier, the server kills the child. The other descriptors are the child's standard output and
error. The server ends, with all children, at the end of its input, which comes when the operator dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from heterps_operator.local.guard import end_with_parent, limit_memory

__all__ = ["MOST_BYTES", "exit_code"]

MOST_BYTES = 65_536  # of a request
_DESCRIPTORS = 3
_STANDARD_ERROR = 2
_EXIT_FAILED = 1  # as the interpreter has it after an exception

Function = Callable[[list[str]], Any]


@dataclass(frozen=True)
class _Request:
    arguments: list[str]
    output: int  # descriptors
    messages: int
    memory_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)  # variables besides the server's
    title: list[str] | None = None  # its command line, as other programs see it


@dataclass(eq=False)
class _Forked:
    pid: int
    connection: socket.socket
    ended: bool = False  # its exit code was sent
    unwanted: bool = False  # the connection's other end is closed


class _Server:
    """Forks children.

    Args:
        requests: the socket of requests.
        function: what children run, with a list of arguments; it returns or raises as a main function does.
    """

    def __init__(self, requests: socket.socket, function: Function) -> None:
        self._requests = requests
        self._function = function
        self._children: set[_Forked] = set()  # that were not waited for
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Answer requests until the operator ends."""
        ended, signalled = socket.socketpair()
        for end in (ended, signalled):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # not ignored: the descriptor below is written
        signal.set_wakeup_fd(signalled.fileno())
        self._selector.register(self._requests, selectors.EVENT_READ)
        self._selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._requests:
                    if not self._take():
                        self._end_all()
                        return
                elif key.fileobj is ended:
                    ended.recv(MOST_BYTES)
                    self._tell()
                else:
                    self._give_up(key.data)

    def _take(self) -> bool:
        """Start the child of a request; return False at the end of the input."""
        text, descriptors, _, _ = socket.recv_fds(self._requests, MOST_BYTES, _DESCRIPTORS)
        if not text:
            return False
        connection, (output, messages) = socket.socket(fileno=descriptors[0]), descriptors[1:]
        request = _Request(**json.loads(text), output=output, messages=messages)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            os.write(messages, f"heterps: a process cannot be forked: {error}\n".encode())
            with connection:
                _send(connection, 0)
                _send(connection, _EXIT_FAILED)
        else:
            if pid == 0:
                _run(self._function, request, server)
            _send(connection, pid)
            child = _Forked(pid, connection)
            self._children.add(child)
            self._selector.register(connection, selectors.EVENT_READ, child)
        os.close(output)
        os.close(messages)
        return True

    def _tell(self) -> None:
        """Send the exit codes of children that have ended."""
        for child in [child for child in self._children if not child.ended]:
            found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                child.ended = True
                _send(child.connection, exit_code(found))
                if child.unwanted:
                    self._reap(child)

    def _give_up(self, child: _Forked) -> None:
        """The other end of a child's connection is closed."""
        self._selector.unregister(child.connection)
        child.unwanted = True
        if child.ended:
            self._reap(child)
        else:
            _kill(child.pid)

    def _reap(self, child: _Forked) -> None:
        """Wait for a child that has ended: its pid may be another process's from now on."""
        os.waitpid(child.pid, 0)
        child.connection.close()
        self._children.remove(child)

    def _end_all(self) -> None:
        for child in self._children:
            _kill(child.pid)


def exit_code(ended: os.waitid_result) -> int:
    """The exit code of a process that has ended, as in `subprocess`: negative for the signal that ended it."""
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the operator has closed its end
        connection.send(str(number).encode())


def _kill(pid: int) -> None:
    """Kill a child that was not reaped, with its group, unless it does not lead it yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _run(function: Function, request: _Request, server: int) -> NoReturn:
    """Turn this process, which was just forked, into the program."""
    code = _EXIT_FAILED
    try:
        os.setsid()
        if end_with_parent(server):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), request.output, request.messages)):
                os.dup2(descriptor, number)
            _close_others()
            if request.memory_bytes is not None:
                limit_memory(request.memory_bytes)
            if request.title is not None:
                _set_command_line(request.title)
            os.environ.update(request.environment)
            if (numbers := sys.modules.get("numpy.random")) is not None:
                numbers.seed()  # all children would draw the same numbers; Python's own generator does it by itself
            code = _call(function, request.arguments)
    finally:
        os._exit(code)


def _close_others() -> None:
    """Close all descriptors but the standard ones, such as the connections of other children."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _STANDARD_ERROR:
            with contextlib.suppress(OSError):  # of this list
                os.close(int(name))


def _set_command_line(words: Sequence[str]) -> None:
    """Replace this process's command line, as far as there is room for another one (proc(5), `arg_start`)."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(word.encode() + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _call(function: Function, arguments: list[str]) -> int:
    """Run the function; return the exit code that the interpreter would give, and print what it would print."""
    try:
        try:
            result = function(arguments)
        except SystemExit as exit_:
            result = exit_.code
        if result is not None and not isinstance(result, int):
            sys.stderr.write(f"{result}\n")
            result = _EXIT_FAILED
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        result = _EXIT_FAILED
    sys.stderr.flush()
    return int(result or 0) & 0xFF


def main(arguments: list[str]) -> None:
    """Import the function and further modules, then serve."""
    requests, (function, *modules) = socket.socket(fileno=sys.stdin.fileno()), arguments
    gc.disable()  # it finds nothing in what modules make
    for module in modules:
        with contextlib.suppress(Exception):  # a child that imports it itself says in its own output what is wrong
            importlib.import_module(module)
    server = _Server(requests, pkgutil.resolve_name(function))
    gc.enable()
    gc.collect()
    gc.freeze()  # otherwise each child's first collection copies all pages
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
