"""Batch sizes during the run: measure, and move samples to the workers that have time.

The policy is `heterps_planner.balancing.BatchController`, which learns the workers' speeds from one observation after
the other. `reconcile` must be a function of values, so the status keeps what has been learnt, a few numbers for each
worker, and the controller is made from them anew: that survives a restart and needs no hidden state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.formatting import list_some
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView, MemberView, Observed, SubmitAllocation
from heterps_planner.balancing import BatchController, NodeMetrics, WorkerEstimate
from heterps_runtime.contract import worker_name

__all__ = ["rebalance"]

_OBSERVATIONS_PER_INTERVAL = 3  # several per decision


def rebalance(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan
) -> tuple[Status, tuple[SubmitAllocation, ...]]:
    """Take note of the workers' speeds, and divide the batch anew when it pays.

    Args:
        job: policy, interval and dead band.
        observed: with a coordinator that is training.
        status: with what is known of the workers' speeds.
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
    stages = [_workers(view, number, pods) for number, pods in enumerate(plan.pods)]
    if not all(stages):
        return status, ()  # a worker is missing: the coordinator has divided the batch among the others
    batches = [[member.batch_size for member in stage] for stage in stages]
    if any(sum(stage) != job.global_batch_size for stage in batches):
        return status, ()
    shared = [
        {member.name: (member.batch_size, member.compute_seconds) for member in stage}
        for stage in stages
        if len(stage) > 1
    ]
    now_seen = {name: seen for stage in shared for name, seen in stage.items()}
    if not now_seen or any(seconds <= 0 for _, seconds in now_seen.values()):
        return status, ()
    controller = _controller(job, status.speeds)
    controller.observe(now_seen)
    status = replace(status, speeds=controller.workers, pace=status.pace.observe(shared, controller.workers))
    assert status.last_rebalance is not None
    if now - status.last_rebalance < interval:
        return status, ()
    status = replace(status, last_rebalance=now)
    if job.balancing.policy == "optimal" and not status.pace.allows(now, interval):
        return status, ()
    moved = []
    for number, stage in enumerate(stages):
        if len(stage) == 1:
            continue
        names = [member.name for member in stage]
        controller = _controller(job, status.speeds, number)
        controller.metrics = {member.name: _metrics(member) for member in stage}
        proposal = controller.propose(dict(zip(names, batches[number], strict=True)))
        if proposal is not None:
            old, batches[number] = batches[number], [proposal[name] for name in names]
            moved.append(f"{plan.stages[number].name}: {_sizes(old)} -> {_sizes(batches[number])}")
    if not moved:
        return status, ()
    status = replace(status, pace=status.pace.change({name: batch for name, (batch, _) in now_seen.items()}, now))
    status = status.with_condition("Rebalanced", True, "BatchesMoved", "; ".join(moved), now)
    return status, (SubmitAllocation(tuple(tuple(stage) for stage in batches)),)


def _workers(view: CoordinatorView, stage: int, count: int) -> list[MemberView]:
    """The workers of a stage in the order of their indices; none unless all are at work."""
    found = [view.member(worker_name(stage, index)) for index in range(count)]
    ready = [member for member in found if member is not None and member.state == "ready"]
    return ready if len(ready) == count else []


def _controller(job: JobSpec, speeds: Mapping[str, WorkerEstimate], stage: int = 0) -> BatchController:
    """The policy, with what it knows of the workers."""
    policy = job.balancing
    return BatchController(
        job.global_batch_size,
        policy=policy.policy,
        min_gain_percent=policy.min_gain_percent,
        seed=(policy.seed, stage),
        workers=dict(speeds),
    )


def _metrics(member: MemberView) -> NodeMetrics:
    """What is measured of a worker; zero is not."""
    return NodeMetrics(
        member.operations_per_second or None, member.memory_bytes or None, member.round_trip_seconds or None
    )


def _sizes(batches: list[int]) -> str:
    return list_some(map(str, batches), "+")
