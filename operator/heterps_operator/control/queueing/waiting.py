"""A job that waits for units: its entry in the line, since when it waits, and what people are told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.control.queueing.quota import WAITING_FOR_CAPACITY
from heterps_operator.control.queueing.waiting_line import WaitingJob
from heterps_operator.state.status import Status
from heterps_operator.state.values import Observed, Place

__all__ = ["describe_place", "in_use", "list_units", "needs_units", "since_when", "waiting_job", "with_place"]

_HOLDERS_NAMED = 3  # of the units that a job waits for
_EXACT = 10  # the first places in line are told exactly
_ROUND = (1_000, 500, 200, 100, 50, 20, 10)  # others rarely change, as each change is written to the job's status


def since_when(job: JobSpec, observed: Observed, status: Status) -> Status:
    """Remember since when a job has waited for units, until it has a plan.

    Args:
        job: what is wanted.
        observed: what is the case.
        status: after this turn's decision.
    """
    over = status.plan is not None or status.outcome is not None or status.final or job.paused
    if over or observed.quota is not None:
        return status if status.waiting_since is None else replace(status, waiting_since=None)
    waits = any(c.reason == WAITING_FOR_CAPACITY and c.status == "False" for c in status.conditions)
    return replace(status, waiting_since=observed.time) if waits and status.waiting_since is None else status


def needs_units(job: JobSpec, status: Status, measured: Collection[str], held: Mapping[str, int]) -> bool:
    """Whether a job lacks units to go on.

    Args:
        job: what is wanted.
        status: of the last decision.
        measured: pools with a profile.
        held: units that the job holds, by pool.
    """
    if job.paused or status.final or status.outcome is not None or status.stopping_since is not None:
        return False
    if status.plan is not None:
        return any(number > held.get(pool, 0) for pool, number in status.plan.units.items())
    return not _unmeasured(job, measured) or not any(held.values())  # it holds a profiler's


def waiting_job(
    key: str, job: JobSpec, status: Status, *, measured: Collection[str], most: Mapping[str, int], priority: int
) -> WaitingJob:
    """Return the entry in the line of a job that needs units.

    Args:
        key: NAMESPACE/NAME.
        job: what is wanted.
        status: of the last decision.
        measured: pools with a profile.
        most: units that the job could hold if it were alone, by pool.
        priority: value of its PriorityClass.
    """
    bounds = {
        pool.name: most.get(pool.name, 0) if pool.max_units is None else min(pool.max_units, most.get(pool.name, 0))
        for pool in job.pools
    }
    entry = WaitingJob(key, tuple(bounds), bounds, priority, status.waiting_since)
    if status.plan is not None:  # made before the limits of the job were lowered, perhaps
        units = status.plan.units
        within = {pool: max(number, min(units.get(pool, 0), most.get(pool, 0))) for pool, number in bounds.items()}
        return replace(entry, most=within, claim=units)
    if missing := _unmeasured(job, measured):
        return replace(entry, claim={missing[0].name: missing[0].units_per_pod}, measures=True)
    refused = (dict(status.refused_with),) if status.refused_with else ()
    return replace(entry, claim=dict(status.claim), refused=refused)


def _unmeasured(job: JobSpec, measured: Collection[str]) -> list[PoolSpec]:
    return [pool for pool in job.pools if pool.name not in measured]


def describe_place(place: Place) -> str:
    """Tell a job's place: `2nd in line for pool gpu, behind ml/train-7 (priority 1000)`."""
    if place.number > _EXACT:
        number = next(number for number in _ROUND if place.number > number)
        return f"more than {number} jobs are ahead of it in line for pool {place.pool}"
    text = f"{_ordinal(place.number)} in line for pool {place.pool}"
    return f"{text}, behind {place.behind} (priority {place.priority})" if place.behind else text


def with_place(text: str, job: JobSpec, observed: Observed, pools: Sequence[str]) -> str:
    """Add why these pools have nothing for the job. Who is not the first in line waits for those ahead, first of all.

    What others hold changes often, and each new message is written to the job's status.
    """
    place = observed.capacity.place
    if place is None:
        return text + in_use(job, observed, pools)
    told = describe_place(place)
    return text + (told if place.behind else f"{told}; {in_use(job, observed, pools)}")


def list_units(units: Mapping[str, int]) -> str:
    """Tell units by pool: `4 of cpu and 2 of gpu`."""
    return " and ".join(f"{number} of {pool}" for pool, number in sorted(units.items()))


def in_use(job: JobSpec, observed: Observed, pools: Sequence[str]) -> str:
    """How much of these pools other jobs leave; what to do about it."""
    units = {**observed.capacity.free_units, **observed.capacity.room}
    free = ", ".join(f"{units.get(pool, 0)} of {job.pool(pool).max_units} of {pool}" for pool in pools)
    others: dict[str, list[str]] = {}
    for pool in pools:
        for holder, number in observed.capacity.holders.get(pool, ()):
            others.setdefault(holder, []).append(f"{number} of {pool}")
    names = [f"{holder} has {' and '.join(held)}" for holder, held in others.items()]
    more = f" and {len(names) - _HOLDERS_NAMED} more" if len(names) > _HOLDERS_NAMED else ""
    held = f" ({', '.join(names[:_HOLDERS_NAMED])}{more})" if names else ""
    limits = observed.capacity.namespace_limits
    limited = [f"{limits[pool]} of {pool}" for pool in pools if pool in limits]
    if limited:
        rule = f"jobs of this namespace may hold {' and '.join(limited)} together"
        fix = "the job waits until others end, or raise maxUnits of the namespace in spec.namespaces of the DevicePool"
        return f"{free} are free{held}, as {rule}; {fix}"
    if not names:
        return f"{free} are free, though no job holds any; kubectl describe devicepool {pools[0]} shows its nodes"
    return f"{free} are free{held}; the job waits until others end, or raise maxUnits of the pool"


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
