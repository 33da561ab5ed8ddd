"""A queue of jobs by due time, for several threads.

A job is never given to two threads at once. Waking a job during its turn gives it another turn afterwards. Threads are
divided among namespaces: jobs whose turns take long, because their coordinators do not answer, delay others least.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from heterps_operator.controller.stores.objects import Key

__all__ = ["WorkQueue"]


class WorkQueue:
    """Due times of jobs.

    Args:
        least_seconds: mean seconds between turns of a job, however often it is woken: watch events come in bursts. A
            job that had no turn for that long may have two at once: the second event need not wait.
        clock: monotonic seconds.
        on_wait: called with the seconds that a job was due before a thread took it.
        most_of_namespace: threads that jobs of one namespace may have at a time; None: no limit.
    """

    def __init__(
        self,
        least_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        on_wait: Callable[[float], None] = lambda seconds: None,
        most_of_namespace: int | None = None,
    ) -> None:
        self._most = most_of_namespace
        self._least = least_seconds
        self._clock = clock
        self._on_wait = on_wait
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        # When jobs that had turns just now may have two at once again (the generic cell rate algorithm).
        self._rested: OrderedDict[Key, float] = OrderedDict()
        self._heap: list[tuple[float, Key]] = []  # entries that differ from `_due` are outdated
        self._ready: dict[str, dict[Key, float]] = {}  # jobs that were due, by namespace and in order of their due time
        self._busy: set[Key] = set()
        self._turns: Counter[str] = Counter()  # busy jobs by namespace
        self._again: set[Key] = set()  # woken while busy
        # The waiting thread that watches the next due time, which would wake all of them. The others are notified.
        self._watcher: object | None = None
        self._closed = False

    def wake(self, key: Key) -> None:
        """Give a job a turn as soon as possible."""
        with self._changed:
            if key in self._busy:
                self._again.add(key)
                return
            self._set(key, max(self._clock(), self._rested.get(key, 0.0) - self._least))

    def take(self) -> Key | None:
        """Wait for a job that is due, and return it; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                self._collect(now)
                key = self._next()
                if key is not None:
                    namespace = key[0]
                    due = self._ready[namespace].pop(key)
                    if not self._ready[namespace]:
                        del self._ready[namespace]
                    self._busy.add(key)
                    self._turns[namespace] += 1
                    self._on_wait(now - due)
                    if self._ready or (self._heap and self._watcher is None):
                        self._changed.notify()  # another thread takes the next one, or watches
                    return key
                self._wait(now)
            return None

    def done(self, key: Key, seconds: float | None) -> None:
        """Return a job after its turn.

        Args:
            key: the job.
            seconds: seconds until its next turn; None: not before it is woken.
        """
        with self._changed:
            self._busy.discard(key)
            self._turns[key[0]] -= 1
            if not self._turns[key[0]]:
                del self._turns[key[0]]
            if self._ready:
                self._changed.notify()  # another job of the namespace may have a turn now
            now = self._clock()
            self._rested[key] = max(self._rested.get(key, now), now) + self._least
            self._rested.move_to_end(key)
            while next(iter(self._rested.values())) < now:
                self._rested.popitem(last=False)
            if key in self._again:
                self._again.discard(key)
                self._set(key, max(now, self._rested[key] - self._least))
            elif seconds is not None:
                self._set(key, now + seconds)

    def close(self) -> None:
        """Unblock all `take()` callers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depth(self) -> int:
        """Return the number of jobs that are due and wait for a thread."""
        with self._changed:
            now = self._clock()
            return self._number_ready() + sum(due <= now for due in self._due.values())

    def known(self) -> int:
        """Return the number of jobs that have a turn now, or will have one without being woken."""
        with self._changed:
            return self._number_ready() + len(self._due) + len(self._busy)

    def _wait(self, now: float) -> None:
        """Wait until notified, or for the next due time unless another thread does that; the lock is held."""
        if self._watcher is not None or not self._heap:
            self._changed.wait()
            return
        me = self._watcher = object()
        self._changed.wait(self._heap[0][0] - now)
        if self._watcher is me:
            self._watcher = None

    def _collect(self, now: float) -> None:
        """Move the jobs that are due to the ready ones; the lock is held."""
        while self._heap and (self._heap[0][0] <= now or self._due.get(self._heap[0][1]) != self._heap[0][0]):
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._ready.setdefault(key[0], {})[key] = due

    def _next(self) -> Key | None:
        """Return the first ready job of the namespace that has the fewest turns now; the lock is held."""
        able = [name for name in self._ready if self._most is None or self._turns[name] < self._most]
        firsts = ((self._turns[name], *next((due, key) for key, due in self._ready[name].items())) for name in able)
        return min(firsts)[2] if able else None

    def _number_ready(self) -> int:
        return sum(map(len, self._ready.values()))

    def _set(self, key: Key, due: float) -> None:
        """Make a job due at this time at the latest; the lock is held."""
        if key in self._ready.get(key[0], ()):
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if self._heap[0] == (due, key):
            self._watcher = None  # it watches a later time
            self._changed.notify()
