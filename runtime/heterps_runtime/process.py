"""Small things that every runtime process needs: log lines, and a way to wake a poll from another thread."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

import zmq

__all__ = ["Wakeup", "log"]


def log(text: str) -> None:
    """Write one line with the time to standard error, where the controller collects it."""
    stamp = time.strftime("%H:%M:%S", time.localtime())
    sys.stderr.write(f"{stamp} [{os.getpid()}] {text}\n")
    sys.stderr.flush()


class Wakeup:
    """Interrupts a poll of the owning thread; `wake` may be called from any thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._address = f"inproc://wakeup-{id(self)}"
        self.socket = context.socket(zmq.PULL)
        self.socket.bind(self._address)
        self._local = threading.local()  # a ZeroMQ socket belongs to one thread

    def wake(self) -> None:
        """Make the owner's poll return."""
        socket: zmq.Socket[bytes] | None = getattr(self._local, "socket", None)
        if socket is None:
            socket = self._context.socket(zmq.PUSH)
            socket.set(zmq.LINGER, 0)
            socket.connect(self._address)
            self._local.socket = socket
        # A full queue will wake the owner anyway; any other error means that the process is ending.
        with contextlib.suppress(zmq.ZMQError):
            socket.send(b"", zmq.NOBLOCK)

    def drain(self) -> None:
        """Forget past calls; only for the owner."""
        while True:
            try:
                self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
