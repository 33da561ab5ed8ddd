"""Log lines, the link to the parent process, and a way to wake a poll from another thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["Wakeup", "at_termination", "end_with_parent", "log"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends for any reason (Linux).

    Args:
        parent: id of the parent; if it has already ended, this process ends at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def at_termination(leave: Callable[[], bool] = lambda: False) -> None:
    """Handle SIGTERM from now on; only for the main thread.

    Args:
        leave: called by the signal; returns whether the process ends by itself soon. Otherwise it ends at once.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        if not leave():
            os._exit(128 + number)

    signal.signal(signal.SIGTERM, terminate)


def log(text: str) -> None:
    """Write a line with the time to standard error."""
    stamp = time.strftime("%H:%M:%S", time.localtime())
    sys.stderr.write(f"{stamp} [{os.getpid()}] {text}\n")
    sys.stderr.flush()


class Wakeup:
    """Interrupts a poll of the owning thread; `wake` may be called from any thread.

    It is a socket pair because a ZeroMQ socket belongs to one thread.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make the owner's poll return."""
        # A full pair wakes the owner anyway; any other error means that the owner has ended.
        with contextlib.suppress(OSError):
            self._writer.send(b"!")

    def drain(self) -> None:
        """Clear past calls; only for the owner."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Close the pair; later calls of `wake` do nothing."""
        self._reader.close()
        self._writer.close()
