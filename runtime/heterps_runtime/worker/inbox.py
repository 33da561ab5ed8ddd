"""How other threads reach a member's thread: functions that it runs when its poll returns."""

from __future__ import annotations

import queue
from collections.abc import Callable

from heterps_runtime.process import Wakeup

__all__ = ["Inbox"]


class Inbox:
    """Functions for the member's thread; `post` and `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def fileno(self) -> int:
        """What a poller waits for."""
        return self._wakeup.fileno()

    def wake(self) -> None:
        """Make the member's poll return."""
        self._wakeup.wake()

    def post(self, action: Callable[[], None]) -> None:
        """Let the member run something soon."""
        self._posted.put(action)
        self._wakeup.wake()

    def run(self) -> None:
        """Run what was posted; only for the member."""
        self._wakeup.drain()
        while not self._posted.empty():
            self._posted.get()()

    def close(self) -> None:
        """End it; what is posted later is not run."""
        self._wakeup.close()
