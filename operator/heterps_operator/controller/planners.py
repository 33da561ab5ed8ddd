"""Planners of many jobs, of which only a few may run at a time: each is a process of its own."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from heterps_operator.planning import PlannerProcess
from heterps_operator.values import Json, PlanOutcome

__all__ = ["QueuedPlanner"]


class QueuedPlanner(PlannerProcess):
    """A planner that waits for its place.

    Args:
        places: shared by all jobs' planners; one is held while the process runs.
        folder: see `PlannerProcess`, as the others.
        method: of the planner.
        timeout_seconds: for the search itself.
        stages: given by hand.
        on_end: called, in another thread, when the process has ended: nobody has to look for the answer.
    """

    def __init__(
        self,
        places: threading.Semaphore,
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
        self._holds = False

    @property
    def running(self) -> bool:
        """Whether an answer is awaited."""
        return self._waiting is not None or super().running

    def start(self, problem: Json, revision: int = 1, stages: Sequence[Json] = ()) -> None:
        """Plan as soon as there is a place."""
        self._waiting = (problem, revision, stages)
        self._begin()

    def poll(self) -> PlanOutcome | None:
        """The answer, once; None while there is none."""
        self._begin()
        if self._waiting is not None:
            return None
        outcome = super().poll()
        if outcome is not None:
            self._give_back()
        return outcome

    def close(self) -> None:
        """End a planner that is still at work, or waits."""
        self._waiting = None
        super().close()
        self._give_back()

    def _begin(self) -> None:
        if self._waiting is None or not self._places.acquire(blocking=False):
            return
        self._holds = True
        (problem, revision, stages), self._waiting = self._waiting, None
        super().start(problem, revision, stages)
        assert self._popen is not None
        threading.Thread(target=self._tell, args=(self._popen,), name="planner", daemon=True).start()

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._on_end()

    def _give_back(self) -> None:
        if self._holds:
            self._holds = False
            self._places.release()
