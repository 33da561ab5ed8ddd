"""A process that has imported a program, and forks a child for each of its runs.

    python -P -m heterps_operator.local.fork_server MODULE:FUNCTION [MODULE...] < a socket

Importing the planner takes longer than most plans do. The server imports it once and does nothing else: it never runs
the function itself, reads no file of a job, and has one thread, so each child starts from the same, clean state, and
fork is safe. A child differs from a process of its own in nothing else: it leads its session, has its own limit of
memory and its own output, and the kernel kills it when the server ends.

`children.ForkServer` starts it. Its standard input is a socket, each message of which is a request: JSON, with three
descriptors. The first is a connection for this child alone. The server sends its exit code there, and kills the child
if the other end is closed before. The others are the child's standard output and error. The server ends, with all
children, at the end of its input, which comes when the operator dies.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from heterps_operator.local.guard import end_with_parent, limit_memory

__all__ = ["MOST_BYTES"]

MOST_BYTES = 65_536  # of a request
_DESCRIPTORS = 3
_STANDARD_ERROR = 2
_EXIT_FAILED = 1  # as the interpreter has it after an exception

Function = Callable[[list[str]], Any]


@dataclass(frozen=True)
class _Request:
    arguments: list[str]
    memory_bytes: int | None
    output: int  # descriptors
    messages: int


class _Server:
    """Forks children.

    Args:
        requests: the socket of requests.
        function: what children run, with a list of arguments; it returns or raises as a main function does.
    """

    def __init__(self, requests: socket.socket, function: Function) -> None:
        self._requests = requests
        self._function = function
        self._children: dict[int, socket.socket] = {}  # connections by pid
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
                    self._reap()
                elif key.data in self._children:  # its answer is wanted no more
                    self._selector.unregister(key.fileobj)
                    _kill(key.data)

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
            os.write(messages, f"heterps: the planner cannot be started: {error}\n".encode())
            _answer(connection, _EXIT_FAILED)
        else:
            if pid == 0:
                _run(self._function, request, server)
            self._children[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
        os.close(output)
        os.close(messages)
        return True

    def _reap(self) -> None:
        """Tell the exit codes of children that have ended."""
        for pid, connection in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[pid]
                with contextlib.suppress(KeyError):  # killed before
                    self._selector.unregister(connection)
                _answer(connection, os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        for pid in self._children:
            _kill(pid)


def _answer(connection: socket.socket, code: int) -> None:
    with connection, contextlib.suppress(OSError):  # the operator has closed its end
        connection.send(str(code).encode())


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
            code = _exit_code(function, request.arguments)
    finally:
        os._exit(code)


def _close_others() -> None:
    """Close all descriptors but the standard ones, such as the connections of other children."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _STANDARD_ERROR:
            with contextlib.suppress(OSError):  # of this list
                os.close(int(name))


def _exit_code(function: Function, arguments: list[str]) -> int:
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
    for module in modules:
        importlib.import_module(module)
    server = _Server(requests, pkgutil.resolve_name(function))
    gc.collect()
    gc.freeze()  # otherwise each child's first collection copies all pages
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
