"""Whose turn it is: a queue of jobs by due time, for several threads.

A job is never given to two threads at once; waking one that is being worked on gives it another turn right after.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from heterps_operator.controller.store import Key

__all__ = ["WorkQueue"]


class WorkQueue:
    """Due times of jobs.

    Args:
        least_seconds: between two turns of a job, however often it is woken: a burst of watch events is one change.
        clock: seconds, never going back.
        on_wait: told how many seconds a job was due before a thread took it.
    """

    def __init__(
        self,
        least_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._least = least_seconds
        self._clock = clock
        self._on_wait = on_wait
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._last: dict[Key, float] = {}  # when the last turn of a job ended
        self._heap: list[tuple[float, Key]] = []  # entries that `_due` does not confirm are void
        self._busy: set[Key] = set()
        self._again: set[Key] = set()  # woken while busy
        self._closed = False

    def wake(self, key: Key) -> None:
        """Give a job a turn as soon as possible."""
        with self._changed:
            if key in self._busy:
                self._again.add(key)
                return
            self._set(key, max(self._clock(), self._last.get(key, 0.0) + self._least))

    def take(self) -> Key | None:
        """Wait for a job that is due, and have it; None once the schedule is closed."""
        with self._changed:
            while not self._closed:
                while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                    heapq.heappop(self._heap)
                now = self._clock()
                if self._heap and self._heap[0][0] <= now:
                    due, key = heapq.heappop(self._heap)
                    del self._due[key]
                    self._busy.add(key)
                    self._on_wait(now - due)
                    return key
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return None

    def done(self, key: Key, seconds: float | None) -> None:
        """Give a job back that was taken.

        Args:
            key: the job.
            seconds: until its next turn; None: when it is woken.
        """
        with self._changed:
            self._busy.discard(key)
            now = self._clock()
            self._last[key] = now
            if key in self._again:
                self._again.discard(key)
                self._set(key, now + self._least)
            elif seconds is not None:
                self._set(key, now + seconds)

    def forget(self, key: Key) -> None:
        """Drop a job that is gone."""
        with self._changed:
            self._due.pop(key, None)
            self._last.pop(key, None)
            self._again.discard(key)

    def close(self) -> None:
        """Unblock all `take()` callers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depth(self) -> int:
        """Jobs that are due and wait for a thread."""
        with self._changed:
            now = self._clock()
            return sum(due <= now for due in self._due.values())

    def known(self) -> int:
        """Jobs that have a turn now or will have one without being woken."""
        with self._changed:
            return len(self._due) + len(self._busy)

    def _set(self, key: Key, due: float) -> None:
        """Have a turn not later than this; the lock is held."""
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._changed.notify()
