"""Functions that other threads post to a member's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable

from heterps_runtime.processes.process import Wakeup

__all__ = ["Inbox"]


class Inbox:
    """Functions to run in the member's thread; `post` and `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._wakeup.fileno()

    def wake(self) -> None:
        """Make the member's poll return."""
        self._wakeup.wake()

    def post(self, action: Callable[[], None]) -> None:
        """Let the member's thread run a function."""
        self._posted.put(action)
        self._wakeup.wake()

    def run(self) -> None:
        """Run the posted functions; only for the member's thread."""
        self._wakeup.drain()
        while not self._posted.empty():
            self._posted.get()()

    def close(self) -> None:
        """Close the inbox; functions posted later are not run."""
        self._wakeup.close()
