"""Plans that take effect while the job runs. Pure.

The coordinator takes another number of workers at once. Stages with other layers begin when all of their workers have
joined, beside those of the present stages, and with the state that the parameter servers hold. That is all of it only
if no stage all-reduces, since such workers hold the dense parameters of their layers. Another number of
servers begins when the new ones have joined, which then copy their part of the state from the present ones.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import ThroughputSeries
from heterps_operator.state.values import Observed
from heterps_runtime.contract import worker_name

__all__ = ["carry_out", "needs_restart"]


def needs_restart(job: JobSpec, observed: Observed, plan: JobPlan, new: JobPlan) -> bool:
    """Whether a job must stop, and go on from a checkpoint, to change to other stages or servers.

    Args:
        job: its pools.
        observed: units that are free.
        plan: what runs.
        new: with other stages or servers.
    """
    kept = min(plan.servers.replicas, new.servers.replicas)
    if new.servers.pool != plan.servers.pool or new.server_units[:kept] != plan.server_units[:kept]:
        return True  # a server's process stays as it is
    if any(stage.pool != before.pool for stage, before in zip(new.stages, plan.stages, strict=False)):
        return True  # a worker's process stays on its pool
    stages = [
        [(s.firstLayer, s.lastLayer, s.all_reduces(job.pool(s.pool).device_type)) for s in p.stages]
        for p in (plan, new)
    ]
    if stages[0] != stages[1] and any(all_reduces for _, _, all_reduces in itertools.chain(*stages)):
        return True
    present, together = frozenset(plan.workers), dict(plan.units)
    together[new.servers.pool] = together.get(new.servers.pool, 0) + sum(new.server_units[kept:])
    for number, stage in enumerate(new.stages):
        joining = sum(worker_name(number, index) not in present for index in range(stage.pods))
        together[stage.pool] = together.get(stage.pool, 0) + joining * job.pool(stage.pool).units_per_pod
    limits = {pool.name: pool.max_units for pool in job.pools}
    fits = all(units <= (limits.get(pool) or units) for pool, units in together.items())
    return not (fits and observed.capacity.fits(together))


def carry_out(observed: Observed, status: Status, new: JobPlan, series: ThroughputSeries, reason: str) -> Status:
    """The status with a plan that takes effect while the job runs.

    Args:
        observed: with processes that ended before.
        status: of the job.
        new: the plan.
        series: of the new plan, without measurements.
        reason: of the plan, as in its history.
    """
    revision = status.plan_revision + 1
    return replace(
        status,
        plan=new,
        plan_revision=revision,
        plan_reason=reason,
        attempts=_attempts(observed, status, new),
        series=replace(series, revision=revision),
    )


def _attempts(observed: Observed, status: Status, plan: JobPlan) -> dict[str, int]:
    """A process that ended when an earlier plan dropped it, and that is wanted again, is a new attempt."""
    attempts = dict(status.attempts)
    for name in plan.members:
        process = observed.process(name)
        if process is not None and not process.running:
            attempts[name] = max(attempts.get(name, 1), process.spec.attempt + 1)
    return attempts
