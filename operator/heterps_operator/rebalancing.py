"""Batch sizes during the run: measure, and move samples to the workers that have time.

The policy is `heterps_planner.balancing.BatchController`, which learns the workers' speeds from one observation after
the other. `reconcile` must be a function of values, so the status keeps the last observations and the controller is
made from them anew: that costs milliseconds, survives a restart, and needs no hidden state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heterps_operator.job import JobSpec
from heterps_operator.status import Status
from heterps_operator.values import CoordinatorView, MemberView, Observed, SubmitAllocation
from heterps_planner.balancing import BatchController
from heterps_runtime.contract import PlanDocument, worker_name

__all__ = ["rebalance"]

# Several observations per decision; older ones than these weigh next to nothing in the controller's estimate.
_OBSERVATIONS_PER_INTERVAL = 3
_KEPT_OBSERVATIONS = 24


def rebalance(
    job: JobSpec, observed: Observed, status: Status, plan: PlanDocument
) -> tuple[Status, tuple[SubmitAllocation, ...]]:
    """Take note of the workers' speeds, and divide the batch anew when it pays.

    Args:
        job: policy, interval and dead band.
        observed: with a coordinator that is training.
        status: with the observations so far.
        plan: the stages that run.

    Returns:
        The status with this observation, and the new division if there is one.
    """
    view, now = observed.coordinator, observed.time
    assert view is not None
    interval = job.balancing.interval_seconds
    if status.last_observation is None:  # training has just begun: the first steps are not typical
        return replace(status, last_observation=now, last_rebalance=now), ()
    if now - status.last_observation < interval / _OBSERVATIONS_PER_INTERVAL:
        return status, ()
    status = replace(status, last_observation=now)
    stages = [_workers(view, number, stage.pods) for number, stage in enumerate(plan.stages)]
    if not all(stages):
        return status, ()  # somebody is missing: the coordinator has divided the batch among the others
    batches = [[member.batch_size for member in stage] for stage in stages]
    if any(sum(stage) != job.global_batch_size for stage in batches):
        return status, ()
    shared = [member for stage in stages if len(stage) > 1 for member in stage]
    now_seen = {member.name: (member.batch_size, member.compute_seconds) for member in shared}
    if not now_seen or any(seconds <= 0 for _, seconds in now_seen.values()):
        return status, ()
    history = (*status.observations, now_seen)[-_KEPT_OBSERVATIONS:]
    status = replace(status, observations=history)
    assert status.last_rebalance is not None
    if now - status.last_rebalance < interval:
        return status, ()
    status = replace(status, last_rebalance=now)
    moved = []
    for number, stage in enumerate(plan.stages):
        names = [worker_name(number, index) for index in range(stage.pods)]
        proposal = _propose(job, history, names) if len(names) > 1 else None
        if proposal is not None:
            old, batches[number] = batches[number], [proposal[name] for name in names]
            moved.append(f"{stage.name}: {_sizes(old)} -> {_sizes(batches[number])}")
    if not moved:
        return status, ()
    status = status.with_condition("Rebalanced", True, "BatchesMoved", "; ".join(moved), now)
    return status, (SubmitAllocation(tuple(tuple(stage) for stage in batches)),)


def _workers(view: CoordinatorView, stage: int, count: int) -> list[MemberView]:
    """The workers of a stage in the order of their indices; none unless all are at work."""
    found = [view.member(worker_name(stage, index)) for index in range(count)]
    ready = [member for member in found if member is not None and member.state == "ready"]
    return ready if len(ready) == count else []


def _propose(
    job: JobSpec, history: tuple[Mapping[str, tuple[int, float]], ...], names: list[str]
) -> dict[str, int] | None:
    """Let the policy see the observations of one stage's workers; its answer to the last one counts."""
    policy = job.balancing
    controller = BatchController(job.global_batch_size, policy=policy.policy, min_gain_percent=policy.min_gain_percent)
    proposal = None
    for seen in history:
        if all(name in seen for name in names):
            proposal = controller.decide({name: seen[name] for name in names})
    return proposal


def _sizes(batches: list[int]) -> str:
    return "+".join(str(size) for size in batches)
