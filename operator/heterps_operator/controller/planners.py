"""Planner processes of many jobs, a limited number of which run at a time."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from heterps_operator.documents import Json
from heterps_operator.local.planner import PlannerProcess
from heterps_operator.state.plan import PlanOutcome

__all__ = ["FairSemaphore", "QueuedPlanner"]


class FairSemaphore:
    """A semaphore that serves waiters in order and without blocking. Thread-safe.

    A free place is given to the first waiter at once, which is notified. If waiters had to ask again, hundreds of them
    with growing pauses would leave it empty most of the time.

    Args:
        number: number of places.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._taken: set[object] = set()
        self._waiting: dict[object, Callable[[], None]] = {}  # in order

    def ask(self, who: object, tell: Callable[[], None]) -> bool:
        """Return whether `who` has a place; otherwise it waits for one, and `tell` is called when it gets it."""
        with self._lock:
            if who in self._taken:
                return True
            if self._free:
                self._free -= 1
                self._taken.add(who)
                return True
            self._waiting.setdefault(who, tell)
            return False

    def leave(self, who: object) -> None:
        """Give a place back, or stop waiting."""
        tell = None
        with self._lock:
            self._waiting.pop(who, None)
            if who not in self._taken:
                return
            self._taken.remove(who)
            if self._waiting:
                following = next(iter(self._waiting))
                tell = self._waiting.pop(following)
                self._taken.add(following)
            else:
                self._free += 1
        if tell is not None:
            tell()


class QueuedPlanner(PlannerProcess):
    """A planner that waits for a free place.

    Args:
        places: shared by all jobs' planners; one is held from the start of the process until its answer is read.
        folder: folder of the process (`PlannerProcess`).
        method: scheduling method.
        timeout_seconds: time limit of the search.
        stages: stages that the user has set.
        on_end: called, in another thread, when the planner may start or its process has ended.
    """

    def __init__(
        self,
        places: FairSemaphore,
        folder: Path,
        method: str,
        timeout_seconds: float,
        *,
        stages: Sequence[Json] = (),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(folder, method, timeout_seconds, stages=stages)
        self._on_end = on_end
        self._places = places
        self._waiting: tuple[Json, int, Sequence[Json]] | None = None

    @property
    def running(self) -> bool:
        """Whether the planner waits or works."""
        return self._waiting is not None or super().running

    def start(self, problem: Json, revision: int = 1, stages: Sequence[Json] = ()) -> None:
        """Plan as soon as a place is free."""
        self._waiting = (problem, revision, stages)
        self._begin()

    def poll(self) -> PlanOutcome | None:
        """Return the answer once; None while there is none."""
        self._begin()
        if self._waiting is not None:
            return None
        outcome = super().poll()
        if outcome is not None:
            self._places.leave(self)
        return outcome

    def close(self) -> None:
        """End the process, or stop waiting."""
        self._waiting = None
        super().close()
        self._places.leave(self)

    def _begin(self) -> None:
        if self._waiting is None or not self._places.ask(self, self._on_end):
            return
        (problem, revision, stages), self._waiting = self._waiting, None
        super().start(problem, revision, stages)
        assert self._popen is not None
        threading.Thread(target=self._tell, args=(self._popen,), name="planner", daemon=True).start()

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._on_end()
