"""Which pools a job's layers are measured on at a time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.state.values import PoolCapacity, ProcessView
from heterps_runtime.contract import Role

__all__ = ["pools_to_measure"]


def pools_to_measure(
    job: JobSpec, measured: Collection[str], processes: Iterable[ProcessView], capacity: PoolCapacity
) -> tuple[PoolSpec, ...]:
    """Return the pools that have or get a profiler now: any number that have no node in common.

    Two profilers on one node would measure each other. A job on one machine has no pools that are known to be apart,
    and measures them in turn.

    Args:
        job: the job.
        measured: pools with a profile.
        processes: the job's processes.
        capacity: what the pools have for the job.

    Returns:
        The pools, those whose profilers run first; empty if no further one can start now.
    """
    running = [p.spec.pool for p in processes if p.running and p.spec.role == Role.PROFILE]  # some may be about to end
    missing = [pool for pool in job.pools if pool.name not in measured]
    chosen = [pool for pool in missing if pool.name in running]
    for pool in missing:
        apart = capacity.apart.get(pool.name, frozenset())
        busy = {*running, *(other.name for other in chosen)}
        if pool not in chosen and busy <= apart and capacity.fits({pool.name: pool.units_per_pod}):
            chosen.append(pool)
    return tuple(chosen)
