"""Plans that take effect while the job runs. Pure.

The coordinator takes another number of workers at once. Stages with other layers begin when all of their workers have
joined, beside those of the present stages, and with the state that the parameter servers hold. That is all of it only
if no stage all-reduces, since such workers hold the dense parameters of their layers. Another number of
servers begins when the new ones have joined, and all have copied their part of the rows from the present ones.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.throughput import ThroughputSeries
from heterps_operator.state.values import Observed, plan_request
from heterps_runtime.contract import JobPhase, worker_name

__all__ = ["adopt_changed_plan", "can_adopt", "carry_out", "describe", "has_same_members", "needs_restart"]


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


def has_same_members(plan: JobPlan, new: JobPlan) -> bool:
    """Whether two plans have the same stages and servers, whatever they predict."""
    return (plan.stages, plan.servers, plan.server_units) == (new.stages, new.servers, new.server_units)


def can_adopt(job: JobSpec, observed: Observed, status: Status, new: JobPlan) -> bool:
    """Whether a job trains, and can change without a restart to a plan that was made for a changed spec.

    Args:
        job: the changed spec.
        observed: what is the case now.
        status: of the last decision.
        new: the plan.
    """
    plan, view = status.plan, observed.coordinator
    if plan is None or view is None or view.phase != JobPhase.TRAINING or status.phase != Phase.RUNNING:
        return False
    if plan_request(status.plan_revision) not in observed.accepted:
        return False
    known = {pool.name for pool in job.pools}
    if not known.issuperset({plan.servers.pool, *(stage.pool for stage in plan.stages)}):
        return False
    return not needs_restart(job, observed, plan, new)


def adopt_changed_plan(observed: Observed, status: Status, new: JobPlan) -> Status:
    """The status of a job that changes to the plan of its changed spec while it trains (`can_adopt`)."""
    assert status.plan is not None
    text = f"the spec has changed, and its plan is {describe(status.plan, new)}: the job changes to it while it runs"
    status = carry_out(observed, status.without_questions(), new, ThroughputSeries(), "Redivided")
    status = replace(status, review=None, reviewed=observed.time, judged_prices={}, offer=None)
    return status.with_condition("Rescaled", True, "Redivided", text, observed.time)


def describe(plan: JobPlan, new: JobPlan) -> str:
    """The later of two plans in words, with the number of servers if it differs."""
    before, after = plan.servers.replicas, new.servers.replicas
    return new.summary if before == after else f"{new.summary} with {before} -> {after} parameter servers"


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
