"""Planner processes of many jobs, a limited number of which run at a time."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from heterps_operator.documents import Json
from heterps_operator.local.children import Child, Program
from heterps_operator.local.planner import PlannerAnswer, PlannerProcess

__all__ = ["FairSemaphore", "LinePlanner", "QueuedPlanner"]


class FairSemaphore:
    """A semaphore that serves namespaces in turn and without blocking. Thread-safe.

    A free place is given to a waiter at once, which is notified. If waiters had to ask again, hundreds of them with
    growing pauses would leave it empty most of the time. The next place goes to the namespace with the fewest places,
    and within it to the first waiter. No namespace has all places: planners that take long would keep others waiting.

    Args:
        number: number of places; with one, a namespace may have it.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._number = number
        self._most = max(1, number - 1)  # of one namespace
        self._taken: dict[object, str] = {}  # namespaces by holder
        self._waiting: dict[object, tuple[str, Callable[[], None]]] = {}  # in order

    def ask(self, who: object, namespace: str, tell: Callable[[], None]) -> bool:
        """Return whether `who` has a place; otherwise it waits for one, and `tell` is called when it gets it."""
        with self._lock:
            if who in self._taken:
                return True
            if len(self._taken) < self._number and self._held(namespace) < self._most:
                self._waiting.pop(who, None)
                self._taken[who] = namespace
                return True
            self._waiting.setdefault(who, (namespace, tell))
            return False

    def leave(self, who: object) -> None:
        """Give a place back, or stop waiting."""
        tell = None
        with self._lock:
            self._waiting.pop(who, None)
            if self._taken.pop(who, None) is None:
                return
            following = self._next()
            if following is not None:
                namespace, tell = self._waiting.pop(following)
                self._taken[following] = namespace
        if tell is not None:
            tell()

    def _held(self, namespace: str) -> int:
        return sum(holder == namespace for holder in self._taken.values())

    def _next(self) -> object | None:
        """Return the waiter that gets a free place; the lock is held."""
        held = Counter(self._taken.values())
        able = (who for who, (namespace, _) in self._waiting.items() if held[namespace] < self._most)
        return min(able, key=lambda who: held[self._waiting[who][0]], default=None)


class LinePlanner(Protocol):
    """Plans several jobs that wait, one line at a time."""

    def start_line(self, line: Json) -> None:
        """Start planning a line (docs/cli.md, "A line of jobs")."""
        ...

    def take(self) -> PlannerAnswer | None:
        """Return the answer once; None while there is none."""
        ...

    def close(self) -> None:
        """End a running planner."""
        ...


class QueuedPlanner(PlannerProcess):
    """A planner that waits for a free place.

    Its place is free as soon as its process has ended, and the process is killed when its time is over, both without a
    turn of its job: a job that gets no turns, or whose turns fail, must not keep a place.

    Args:
        places: shared by all jobs' planners.
        namespace: namespace of the job.
        folder: folder of the process (`PlannerProcess`).
        method: scheduling method.
        timeout_seconds: time limit of the search.
        time_limit: name of the setting that is this time limit.
        memory_bytes: limit of the process's address space; None: no limit.
        stages: stages that the user has set.
        program: the planner; None: see `PlannerProcess`.
        prepare: called before the folder is written.
        on_end: called, in another thread, when the planner may start or its process has ended.
    """

    def __init__(
        self,
        places: FairSemaphore,
        namespace: str,
        folder: Path,
        method: str,
        timeout_seconds: float,
        *,
        time_limit: str = "scheduling.timeoutSeconds",
        memory_bytes: int | None = None,
        stages: Sequence[Json] = (),
        program: Program | None = None,
        prepare: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            folder,
            method,
            timeout_seconds,
            time_limit=time_limit,
            memory_bytes=memory_bytes,
            stages=stages,
            program=program,
        )
        self._prepare = prepare
        self._on_end = on_end
        self._places = places
        self._namespace = namespace
        self._waiting: Callable[[], None] | None = None
        self._ticket = object()  # of the current process, among the places

    @property
    def running(self) -> bool:
        """Whether the planner waits or works."""
        return self._waiting is not None or super().running

    def start(self, problem: Json, revision: int = 1, stages: Sequence[Json] = ()) -> None:
        """Plan as soon as a place is free."""
        self._queue(functools.partial(super().start, problem, revision, stages))

    def start_line(self, line: Json) -> None:
        """Plan jobs that wait as soon as a place is free."""
        self._queue(functools.partial(super().start_line, line))

    def take(self) -> PlannerAnswer | None:
        """Return the answer once; None while there is none."""
        self._begin()
        return None if self._waiting is not None else super().take()

    def close(self) -> None:
        """End the process, or stop waiting."""
        self._waiting = None
        super().close()
        self._places.leave(self._ticket)

    def _queue(self, start: Callable[[], None]) -> None:
        self._ticket = object()
        self._waiting = start
        self._begin()

    def _begin(self) -> None:
        if self._waiting is None or not self._places.ask(self._ticket, self._namespace, self._on_end):
            return
        start, self._waiting = self._waiting, None
        try:
            self._prepare()
            start()
        except BaseException:  # the disk is full, for example
            self._places.leave(self._ticket)
            raise
        assert self._child is not None
        threading.Thread(target=self._watch, args=(self._child, self._ticket), name="planner", daemon=True).start()

    def _watch(self, child: Child, ticket: object) -> None:
        if child.wait(self.longest_seconds) is None:
            child.kill()
        self._places.leave(ticket)
        self._on_end()
