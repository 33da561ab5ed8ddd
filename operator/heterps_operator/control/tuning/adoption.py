"""Plans that take effect while the job runs. Pure.

The coordinator takes another number of workers at once. Stages with other layers begin when all of their workers have
joined, beside those of the present stages, and with the state that the parameter servers hold. That is all of it only
if no stage all-reduces, since such workers hold the dense parameters of their layers.
"""

from __future__ import annotations

from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import ThroughputSeries
from heterps_operator.state.values import Observed
from heterps_runtime.contract import worker_name

__all__ = ["carry_out", "needs_restart"]


def needs_restart(job: JobSpec, observed: Observed, plan: JobPlan, new: JobPlan) -> bool:
    """Whether a job must stop, and go on from a checkpoint, to change to other stages.

    Args:
        job: its pools.
        observed: units that are free.
        plan: what runs.
        new: with other stages.
    """
    if (new.servers.pool, new.servers.replicas) != (plan.servers.pool, plan.servers.replicas):
        return True
    if any(stage.all_reduces(job.pool(stage.pool).device_type) for stage in (*plan.stages, *new.stages)):
        return True
    if any(stage.pool != before.pool for stage, before in zip(new.stages, plan.stages, strict=False)):
        return True  # a worker's process stays on its pool
    present, together = frozenset(plan.workers), dict(plan.units)
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
    """A worker that ended when an earlier plan dropped it, and that is wanted again, is a new attempt."""
    attempts = dict(status.attempts)
    for name in plan.workers:
        process = observed.process(name)
        if process is not None and not process.running:
            attempts[name] = max(attempts.get(name, 1), process.spec.attempt + 1)
    return attempts
