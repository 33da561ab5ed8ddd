"""The jobs that wait for units, and what each of them may be planned with. Thread-safe.

The line itself is computed by `control.queueing.waiting_line`, once per change of the line or of the ledger and not
once per turn of a job. Nothing here is stored: a new operator forms the line again from the states of the jobs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from heterps_operator.control.queueing.waiting_line import Contest, LineState, WaitingJob, covers, form_line
from heterps_operator.controller.capacity.ledger import Ledger
from heterps_operator.documents import Json
from heterps_operator.state.values import Place
from heterps_runtime.clock import steady_time

__all__ = ["Line", "MakeProblem"]

_OFFER_SECONDS = 60.0  # for the planner of a job, and for its turns
_TRY_SECONDS = 60.0
_STALE_SECONDS = 300.0  # a job whose turns fail keeps nothing from others after this time

MakeProblem = Callable[[Mapping[str, int]], Json]  # from the units that a job may use; raises ValueError


@dataclass
class _Entry:
    job: WaitingJob
    problem: MakeProblem
    seen: float  # monotonic
    trying: float | None = None  # since when it has had the first try
    offer: tuple[Mapping[str, int], float] | None = None  # units, and until when
    refused: Mapping[str, int] | None = None  # when it was planned with others
    alone: bool = False


class Line:
    """The line of jobs without units.

    Args:
        ledger: tells the units that are free.
        patience: seconds after which the claims of a job are kept from others of its priority.
        clock: Unix seconds, as in the jobs' statuses.
        monotonic: seconds that setting the machine's time does not change.

    Attributes:
        on_change: called, in any thread, when the line or the ledger has changed.
    """

    def __init__(
        self,
        ledger: Ledger,
        patience: float,
        *,
        clock: Callable[[], float] = steady_time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._ledger = ledger
        self._patience = patience
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._deciding: frozenset[str] = frozenset()
        self._version = 0
        self._state = LineState({}, {})
        self._basis = (-1, -1)  # versions of the ledger and of the line that the state is of
        self._until = math.inf  # monotonic
        ledger.on_change = self._touch

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def stand(self, job: WaitingJob, problem: MakeProblem) -> None:
        """Put a job into the line, or renew its entry."""
        now = self._monotonic()
        with self._lock:
            entry = self._entries.get(job.key)
            if entry is None:
                self._entries[job.key] = _Entry(job, problem, now)
            elif entry.job == job and now - entry.seen < _STALE_SECONDS:
                entry.seen, entry.problem = now, problem
                return
            else:
                if entry.job.refused != job.refused:
                    entry.trying = None  # that was its try
                entry.job, entry.problem, entry.seen = job, problem, now
                if entry.offer is not None and any(covers(refused, entry.offer[0]) for refused in job.refused):
                    entry.offer = None  # its planner has found nothing there
            self._version += 1
        self._touch()

    def leave(self, key: str) -> None:
        """Remove a job that has its units, or needs none."""
        with self._lock:
            if self._entries.pop(key, None) is None:
                return
            self._version += 1
        self._touch()

    def stands(self, key: str) -> bool:
        """Whether a job is in the line."""
        with self._lock:
            return key in self._entries

    def free_units(self, key: str, pools: Iterable[str]) -> dict[str, int]:
        """Return the limits for planning a job: its own units, and the free ones that the line leaves it."""
        names = tuple(pools)
        limits, held = self._ledger.free_units(key, names), self._ledger.held_by(key)
        with self._lock:
            state = self._current()
            allotment = state.allotments.get(key)
            left = state.spare if allotment is None else allotment.units
        return {pool: min(limits[pool], held.get(pool, 0) + left.get(pool, 0)) for pool in names}

    def place(self, key: str) -> Place | None:
        """Return the place of a job that waits; None: it does not."""
        with self._lock:
            allotment = self._current().allotments.get(key)
        return None if allotment is None else allotment.place

    # --- the keeper of the line ---------------------------------------------------------------------------------------

    def state(self) -> LineState:
        """Return the line as it is now."""
        with self._lock:
            return self._current()

    def seconds(self) -> float:
        """Return after how many seconds the line changes by itself."""
        with self._lock:
            self._current()
            return max(0.0, self._until - self._monotonic())

    def problems(self, contest: Contest) -> dict[str, Json]:
        """Return the planning problems of a contest, by key. A job whose profiles do not fit together has none."""
        with self._lock:
            entries = {job.key: self._entries[job.key] for job in contest.jobs if job.key in self._entries}
        rooms = {job.key: room for job, room in zip(contest.jobs, contest.rooms, strict=True)}
        problems = {}
        for key, entry in entries.items():
            try:
                problems[key] = entry.problem(rooms[key])
            except ValueError:
                self.give_up([key])
        return problems

    def decide(self, contest: Contest) -> None:
        """Keep what a contest is about from all others, until `offer` or `give_up`."""
        with self._lock:
            self._deciding = frozenset(job.key for job in contest.jobs)
            self._version += 1

    def offer(self, offers: Mapping[str, Mapping[str, int]], refused: Mapping[str, Mapping[str, int]]) -> None:
        """Set units apart for the next plans of jobs.

        Args:
            offers: by key.
            refused: by key: limits with which a job cannot be planned beside these.
        """
        until = self._monotonic() + _OFFER_SECONDS
        with self._lock:
            for key, units in offers.items():
                if (entry := self._entries.get(key)) is None:
                    continue
                if any(covers(known, units) for known in entry.job.refused):
                    entry.alone = True  # its own method has found nothing there, and may with all that is free
                else:
                    entry.offer = (dict(units), until)
            for key, limits in refused.items():
                if (entry := self._entries.get(key)) is not None:
                    entry.refused = dict(limits)
            self._deciding = frozenset()
            self._version += 1
        self._touch()

    def give_up(self, keys: Iterable[str]) -> None:
        """Plan these jobs one by one: planning them together has failed."""
        with self._lock:
            for key in keys:
                if (entry := self._entries.get(key)) is not None:
                    entry.alone = True
            self._deciding = frozenset()
            self._version += 1
        self._touch()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _touch(self) -> None:
        self.on_change()

    def _current(self) -> LineState:
        """Return the state, computed again if something has changed; the lock is held."""
        now = self._monotonic()
        if self._basis == (self._ledger.version, self._version) and now < self._until:
            return self._state
        version, units = self._ledger.snapshot()
        known = [entry for entry in self._entries.values() if now - entry.seen < _STALE_SECONDS]
        for entry in known:
            if entry.offer is not None and now >= entry.offer[1]:
                entry.offer = None
        stalled = {e.job.key for e in known if e.trying is not None and now - e.trying >= _TRY_SECONDS}
        unix = self._clock()
        self._state = form_line(
            [_with_refusal(entry) for entry in known],
            units,
            now=unix,
            patience=self._patience,
            offers={e.job.key: e.offer[0] for e in known if e.offer is not None},
            deciding=self._deciding,
            alone=frozenset(e.job.key for e in known if e.alone),
            stalled=frozenset(stalled),
        )
        self._basis = (version, self._version)
        times = [self._state.until - unix + now]
        for entry in known:
            allotment = self._state.allotments.get(entry.job.key)
            if allotment is None or not allotment.tries:
                entry.trying = entry.trying if entry.job.key in stalled else None
            elif entry.trying is None:
                entry.trying = now
            if entry.trying is not None and entry.job.key not in stalled:
                times.append(entry.trying + _TRY_SECONDS)
            if entry.offer is not None:
                times.append(entry.offer[1])
        self._until = min(times)
        return self._state


def _with_refusal(entry: _Entry) -> WaitingJob:
    if entry.refused is None:
        return entry.job
    return replace(entry.job, refused=(*entry.job.refused, entry.refused))
