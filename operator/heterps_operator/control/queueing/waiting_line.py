"""The line of jobs that wait for units: who may be planned with which free units. Pure.

A job stands in line from its first refusal until it holds the units of its plan. It claims the units of the plan that
it would have alone, as far as they are free. The order is that of priority, then of the share of the contested pools
that the job's namespace holds, then of waiting:

- a job of lower priority never gets claimed units;
- one of equal priority gets them (backfill) once the job ahead cannot be planned with them, and only until that job has
  waited for some patience. From then on they are kept, and more come with each job that ends: nothing starves;
- a job to which more is free than it was refused with has the first try with all of it;
- if several jobs of one priority have a try at the same time, they are a *contest*: they are planned together.

docs/capacity.md explains it to users, docs/decisions/0040-line.md gives the reasons.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from heterps_operator.state.values import Place

__all__ = ["Allotment", "Contest", "FreeUnits", "LineState", "WaitingJob", "covers", "form_line"]

_MOST_CONTESTANTS = 8  # that are planned together; each costs the planner time

_NO_LIMIT = 1 << 62

Units = Mapping[str, int]  # by pool


@dataclass(frozen=True)
class WaitingJob:
    """A job that has no units yet.

    Attributes:
        key: NAMESPACE/NAME.
        pools: the pools that it may use.
        most: units of each pool that it could hold if it were alone.
        priority: value of its PriorityClass.
        since: when it was first refused, Unix seconds; None: it has not been planned yet, and claims nothing.
        claim: units of the plan that it would have alone, or of its next profiler; empty: not known.
        measures: the claim is that of a profiler, which needs no plan.
        refused: limits with which no plan for it was found.
    """

    key: str
    pools: tuple[str, ...]
    most: Units
    priority: int = 0
    since: float | None = None
    claim: Units = field(default_factory=dict)
    measures: bool = False
    refused: tuple[Units, ...] = ()

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return self.key.partition("/")[0]

    @property
    def satisfiable(self) -> bool:
        """Whether the claim could be met if there were no other jobs."""
        return bool(self.claim) and all(units <= self.most.get(pool, 0) for pool, units in self.claim.items())


@dataclass(frozen=True)
class FreeUnits:
    """What jobs hold of the pools, and what they leave."""

    free: Units  # that no job holds
    limits: Units  # of all jobs together
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by namespace and pool
    left: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of a namespace's limit; absent: it has none


@dataclass(frozen=True)
class Allotment:
    """What the line leaves for a job."""

    units: Units  # free units that it may be planned with
    place: Place | None = None  # of a job that waits
    tries: bool = False  # no other job gets these units before it has been planned with them


@dataclass(frozen=True)
class Contest:
    """Jobs of one priority that may each be planned with more than before; they are to be planned together."""

    jobs: tuple[WaitingJob, ...]  # in the line's order
    limits: Units  # units of each pool for all of them together
    rooms: tuple[Units, ...]  # units of each pool for each of them alone
    kept: tuple[bool, ...]  # whether claims of the job are kept from later ones

    @property
    def fits(self) -> bool:
        """Whether each can have the plan that it would have alone."""
        total: dict[str, int] = defaultdict(int)
        for job, room in zip(self.jobs, self.rooms, strict=True):
            for pool, units in job.claim.items():
                total[pool] += units
                if units > room.get(pool, 0):
                    return False
        return all(units <= self.limits.get(pool, 0) for pool, units in total.items())


@dataclass(frozen=True)
class LineState:
    """The line at a moment."""

    allotments: Mapping[str, Allotment]  # by key
    spare: Units  # by pool: units that no job in the line claims; for running jobs that grow
    contest: Contest | None = None
    until: float = math.inf  # when the patience with a job ends next


def form_line(
    jobs: Iterable[WaitingJob],
    units: FreeUnits,
    *,
    now: float,
    patience: float,
    offers: Mapping[str, Units] | None = None,
    deciding: frozenset[str] = frozenset(),
    alone: frozenset[str] = frozenset(),
    stalled: frozenset[str] = frozenset(),
) -> LineState:
    """Decide which free units each job may be planned with.

    Args:
        jobs: that have no units yet, in any order.
        units: free and held units.
        now: Unix seconds.
        patience: seconds after which the claims of a job are kept from others of its priority.
        offers: units that were set apart for jobs, by key; no other job gets them.
        deciding: keys of jobs that are being planned together.
        alone: keys of jobs that are not to be planned with others, because that failed.
        stalled: keys of jobs that have had a try for too long.
    """
    walk = _Walk(units, now, patience, dict(offers or {}), deciding, alone, stalled)
    order = _in_order(list(jobs), units)
    for job in order:
        walk.set_apart(job)
    for level in _levels(order):
        walk.level(level)
    walk.lower_level()
    return LineState(walk.allotments, dict(walk.left), walk.contest, walk.until)


def covers(refused: Units, units: Units) -> bool:
    """Whether a refusal with some limits means that these smaller ones lead to one, too."""
    return bool(refused) and all(number <= refused.get(pool, 0) for pool, number in units.items())


# --- the order --------------------------------------------------------------------------------------------------------


def _in_order(jobs: Sequence[WaitingJob], units: FreeUnits) -> list[WaitingJob]:
    """Return the jobs by priority, share of the namespace, and waiting.

    Each job in turn counts as if it had its claim, so that the jobs of namespaces with equal shares alternate. Only the
    contested pools that a job claims count for it: what its namespace holds elsewhere keeps no job waiting. Jobs of one
    namespace whose claims overlap there keep the order of their waiting, whatever the shares are.
    """
    claimed: dict[str, int] = defaultdict(int)
    for job in jobs:
        if job.since is not None:
            for pool, number in job.claim.items():
                claimed[pool] += number
    contested = frozenset(pool for pool, number in claimed.items() if number > units.free.get(pool, 0))
    held: dict[tuple[str, str], int] = defaultdict(int, units.held)

    def entry(queue: list[WaitingJob]) -> tuple[int, float, tuple[float, str], list[WaitingJob]]:
        job = queue[-1]
        pools = contested.intersection(job.claim or job.pools)
        shares = (held[job.namespace, pool] / max(1, units.limits.get(pool, 0)) for pool in pools)
        return -job.priority, max(shares, default=0.0), _waiting(job), queue

    tenants: dict[tuple[int, str], list[WaitingJob]] = {}
    for job in sorted(jobs, key=_waiting, reverse=True):
        tenants.setdefault((job.priority, job.namespace), []).append(job)
    new = {tenant: [job for job in found if job.since is None] for tenant, found in tenants.items()}
    waiting = {tenant: sum(job.since is not None for job in found) for tenant, found in tenants.items()}
    queues = [queue for found in tenants.values() for queue in _queues(found, contested)]
    queues += [new[tenant] for tenant, number in waiting.items() if not number]
    heap = [entry(queue) for queue in queues]
    heapq.heapify(heap)
    order: list[WaitingJob] = []
    while heap:
        _, before, _, queue = heapq.heappop(heap)
        current = entry(queue)
        if current[1] > before:  # another job of the namespace came first meanwhile
            heapq.heappush(heap, current)
            continue
        job = queue.pop()
        order.append(job)
        for pool, number in job.claim.items():
            held[job.namespace, pool] += number
        if queue:
            heapq.heappush(heap, entry(queue))
        tenant = job.priority, job.namespace
        if job.since is not None:
            waiting[tenant] -= 1
            if not waiting[tenant] and new[tenant]:  # who has just come is behind those of its namespace that wait
                heapq.heappush(heap, entry(new[tenant]))
    return order


def _queues(jobs: Sequence[WaitingJob], contested: frozenset[str]) -> list[list[WaitingJob]]:
    """Divide the waiting jobs of one namespace into queues whose claims of contested pools do not overlap."""
    queues: list[tuple[frozenset[str], list[WaitingJob]]] = []
    for job in jobs:
        if job.since is None:
            continue
        pools = contested.intersection(job.claim or job.pools)
        joined = [queue for queue in queues if queue[0] & pools]
        together = sorted([job, *(other for _, found in joined for other in found)], key=_waiting, reverse=True)
        queues = [queue for queue in queues if not queue[0] & pools]
        queues.append((pools.union(*(queue[0] for queue in joined)), together))
    return [found for _, found in queues]


def _waiting(job: WaitingJob) -> tuple[float, str]:
    return (math.inf if job.since is None else job.since), job.key


def _levels(order: Sequence[WaitingJob]) -> list[list[WaitingJob]]:
    levels: dict[int, list[WaitingJob]] = {}
    for job in order:
        levels.setdefault(job.priority, []).append(job)
    return list(levels.values())


# --- the units --------------------------------------------------------------------------------------------------------


class _Walk:
    """Goes along the line, and keeps what is left for the jobs further back."""

    def __init__(
        self,
        units: FreeUnits,
        now: float,
        patience: float,
        offers: dict[str, Units],
        deciding: frozenset[str],
        alone: frozenset[str],
        stalled: frozenset[str],
    ) -> None:
        self.left = defaultdict(int, {pool: max(0, number) for pool, number in units.free.items()})
        self.of_namespace = {key: max(0, number) for key, number in units.left.items()}
        self.now = now
        self.patience = patience
        self.offers = offers
        self.deciding = deciding
        self.alone = alone
        self.stalled = stalled
        self.allotments: dict[str, Allotment] = {}
        self.contest: Contest | None = None
        self.until = math.inf
        self._claimed: dict[str, int] = defaultdict(int)  # at this level, and available for backfill
        self._ahead: dict[str, tuple[int, WaitingJob | None]] = {}  # by pool: number and last of the jobs so far

    def set_apart(self, job: WaitingJob) -> None:
        """Keep the units of an offer, unless a pool has lost them."""
        offer = self.offers.get(job.key, {})
        room = self.room(job)
        if all(number <= room.get(pool, 0) for pool, number in offer.items()):
            self.take(job, offer)
        else:
            del self.offers[job.key]

    def level(self, jobs: Sequence[WaitingJob]) -> None:
        """Serve the jobs of one priority."""
        self.lower_level()
        together = [job for job in jobs if job.key in self.deciding]
        if not self.deciding and self.contest is None:
            contestants = self._contestants(jobs)
            if len(contestants) > 1:
                together = contestants
                rooms = tuple(self.room(job) for job in contestants)
                pools = sorted({pool for job in contestants for pool in job.pools})
                self.contest = Contest(
                    tuple(contestants),
                    {pool: self.left[pool] for pool in pools},
                    rooms,
                    tuple(self._is_kept(job) for job in contestants),
                )
        apart = {job.key for job in together}
        for job, room in [(job, self.room(job)) for job in together]:
            self.take(job, room)
        for job in jobs:
            self._serve(job, together=job.key in apart)

    def lower_level(self) -> None:
        """Keep the claims of the jobs so far from those of lower priority."""
        for pool, number in self._claimed.items():
            self.left[pool] = max(0, self.left[pool] - number)
        self._claimed.clear()

    def room(self, job: WaitingJob) -> dict[str, int]:
        """Return what the jobs ahead leave for a job."""
        return {
            pool: max(0, min(self.left[pool], self._namespace_left(job, pool), job.most.get(pool, 0)))
            for pool in job.pools
        }

    def take(self, job: WaitingJob, units: Units, *, pools_too: bool = True) -> None:
        """Keep units from the jobs further back; without `pools_too`, from those of the namespace only."""
        for pool, number in units.items():
            key = job.namespace, pool
            if pools_too:
                self.left[pool] = max(0, self.left[pool] - number)
            if key in self.of_namespace:
                self.of_namespace[key] = max(0, self.of_namespace[key] - number)

    def _serve(self, job: WaitingJob, *, together: bool) -> None:
        if job.since is None:
            self.allotments[job.key] = Allotment(self.room(job))
            return
        room, nothing = self.room(job), dict.fromkeys(job.pools, 0)
        tries = job.key in self.offers or (not together and self._tries(job, room))
        place = self._place(job, room)
        if job.key in self.offers:
            room = dict(self.offers[job.key])
        elif tries:
            self.take(job, {pool: job.claim.get(pool, 0) for pool in room} if job.measures else room)
        elif not together:
            self._claim(job)
        # What it was refused with, alone or beside others, is of no use to it.
        usable = tries or job.key in self.stalled
        self.allotments[job.key] = Allotment(room if usable else nothing, place, tries)

    def _tries(self, job: WaitingJob, room: Units) -> bool:
        if job.key in self.stalled:
            return False
        if job.measures:
            return all(number <= room.get(pool, 0) for pool, number in job.claim.items())
        more = any(number > 0 for number in room.values())
        return more and not any(covers(refused, room) for refused in job.refused)

    def _claim(self, job: WaitingJob) -> None:
        """Keep the claim of a job that cannot use what is free now."""
        if not job.satisfiable:
            return
        # Who waits for jobs of its own namespace keeps nothing from others.
        others = all(number <= self._namespace_left(job, pool) for pool, number in job.claim.items())
        if self._is_kept(job):
            self.take(job, job.claim, pools_too=others)
            return
        assert job.since is not None
        self.until = min(self.until, job.since + self.patience)
        if others:
            for pool, number in job.claim.items():
                self._claimed[pool] += number

    def _is_kept(self, job: WaitingJob) -> bool:
        return job.since is not None and self.now - job.since >= self.patience

    def _namespace_left(self, job: WaitingJob, pool: str) -> int:
        return self.of_namespace.get((job.namespace, pool), _NO_LIMIT)

    def _contestants(self, jobs: Sequence[WaitingJob]) -> list[WaitingJob]:
        """Return the jobs that may be planned with more than before, up to one whose claim is kept from the rest."""
        found: list[WaitingJob] = []
        for job in jobs:
            if job.since is None or job.key in self.offers or job.key in self.stalled or job.measures:
                continue
            if job.satisfiable and job.key not in self.alone and self._tries(job, self.room(job)):
                found.append(job)
            elif self._is_kept(job) or job.key in self.alone:
                break
            if len(found) == _MOST_CONTESTANTS:
                break
        return found

    def _place(self, job: WaitingJob, units: Units) -> Place:
        lacking = sorted(pool for pool, number in job.claim.items() if number > units.get(pool, 0))
        pools = lacking or sorted(job.claim) or sorted(job.pools)
        first: tuple[int, WaitingJob | None] = 0, None
        pool = max(pools, key=lambda pool: self._ahead.get(pool, first)[0])
        number, ahead = self._ahead.get(pool, first)
        for name in job.claim:
            self._ahead[name] = self._ahead.get(name, first)[0] + 1, job
        return Place(number + 1, pool, "" if ahead is None else ahead.key, 0 if ahead is None else ahead.priority)
