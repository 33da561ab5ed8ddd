"""Wakes jobs that wait for units when the line leaves them more, and lets a planner plan several of them together.

A planner process gets the problems of a contest (`control.queueing.waiting_line`) and what is free. What it finds is
advice: the units are set apart for the next plans of these jobs, for a limited time. If it fails, the jobs are
planned one by one.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from heterps_operator.control.queueing.waiting_line import Contest, covers
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.objects import Key
from heterps_operator.documents import Json
from heterps_operator.local.planner import PlannerAnswer
from heterps_operator.state.plan import JobPlan

__all__ = ["LineKeeper"]

_LOG = logging.getLogger("heterps.operator")
_LONGEST_SECONDS = 60.0  # between two looks
_GATHER_SECONDS = 0.1  # changes come in bursts
_PLANNER_SECONDS = 20.0  # of one search for plans of several jobs
_PATIENCE_SECONDS = 60.0  # with a planner, which may have to wait for a place: units are kept meanwhile


class LineKeeper:
    """Acts on changes of the line of waiting jobs.

    Args:
        cluster: the shared context, with the line.
        wake: called with the key of each job that may be planned with more than before.
    """

    def __init__(self, cluster: OperatorContext, wake: Callable[[Key], None]) -> None:
        self.changed = threading.Event()
        self._cluster = cluster
        self._wake = wake
        self._units: dict[str, dict[str, int]] = {}  # allotments at the last look
        self._contest: Contest | None = None  # that a planner works on
        self._began = 0.0
        seconds = min(_PLANNER_SECONDS, cluster.longest_planning)
        self._planner = cluster.make_line_planner(
            cluster.planner_slots,
            "",  # not a namespace of jobs, so it has its turn soon
            cluster.folder / "_line",  # no namespace has this name
            "optimal",
            seconds,
            time_limit="of several jobs that wait",
            memory_bytes=cluster.planner_memory_bytes,
            on_end=self.changed.set,
        )
        cluster.line.on_change = self.changed.set

    def run(self, stop: threading.Event) -> None:
        """Look at the line after each change until `stop` is set; set `changed` then, too."""
        try:
            while not stop.is_set():
                self.changed.wait(min(_LONGEST_SECONDS, self._cluster.line.seconds()))
                self.changed.clear()
                if stop.wait(_GATHER_SECONDS):
                    return
                self.look()
        finally:
            self._planner.close()

    def look(self) -> None:
        """Wake the jobs that may be planned with more, and take the next step of planning several together."""
        self._advance()
        state = self._cluster.line.state()
        before, self._units = self._units, {key: dict(found.units) for key, found in state.allotments.items()}
        for key, units in self._units.items():
            known = before.get(key)
            if known is not None and any(number > known.get(pool, 0) for pool, number in units.items()):
                namespace, _, name = key.partition("/")
                self._wake((namespace, name))

    # --- planning together --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        line = self._cluster.line
        if self._contest is not None:
            answer = self._planner.take()
            if answer is None and self._cluster.monotonic() - self._began < _PATIENCE_SECONDS:
                return
            self._planner.close()
            contest, self._contest = self._contest, None
            self._settle(contest, answer or PlannerAnswer(error="no planner was free in time"))
        found = line.state().contest
        if found is None:
            return
        if found.fits:
            line.offer({job.key: job.claim for job in found.jobs}, {})
            return
        problems = line.problems(found)
        if len(problems) < len(found.jobs):
            return  # the next look is without the job
        jobs = [
            {"name": job.key, "problem": problems[job.key], "first": kept}
            for job, kept in zip(found.jobs, found.kept, strict=True)
        ]
        line.decide(found)
        self._contest, self._began = found, self._cluster.monotonic()
        try:
            self._planner.start_line({"version": 1, "limits": dict(found.limits), "jobs": jobs})
        except OSError as error:
            self._contest = None
            self._settle(found, PlannerAnswer(error=str(error)))

    def _settle(self, contest: Contest, answer: PlannerAnswer) -> None:
        """Pass the planner's answer to the line."""
        line = self._cluster.line
        try:
            if answer.error:
                raise ValueError(answer.error)
            offers = _read(answer.document, contest)
        except ValueError as error:
            _LOG.warning("%d waiting jobs are planned one by one: %s", len(contest.jobs), error)
            line.give_up([job.key for job in contest.jobs])
            return
        left = dict(contest.limits)
        for units in offers.values():
            for pool, number in units.items():
                left[pool] -= number
        refused = {}
        for job, room, kept in zip(contest.jobs, contest.rooms, contest.kept, strict=True):
            if job.key not in offers:
                refused[job.key] = {pool: min(left.get(pool, 0), room.get(pool, 0)) for pool in job.pools}
                if kept:
                    break  # the planner did not look at those behind it
        line.offer(offers, refused)


def _read(document: Json, contest: Contest) -> dict[str, dict[str, int]]:
    """Return the units of each job that the planner has admitted.

    Raises:
        ValueError: the answer is malformed, or takes more than is free.
    """
    plans = document.get("plans") if isinstance(document, Mapping) else None
    if not isinstance(plans, Mapping):
        raise ValueError("the planner's answer cannot be used: it has no plans")
    offers = {job.key: JobPlan.from_json(plans[job.key]).units for job in contest.jobs if job.key in plans}
    total: Counter[str] = Counter()
    for units in offers.values():
        total.update(units)
    if offers and not covers(contest.limits, total):
        raise ValueError("the planner's answer takes more units than are free")
    return offers
