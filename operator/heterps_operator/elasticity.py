"""The number of units during the run: compare the measured throughput with the floor, and provision the stages anew.

A plan is made from a profile, and a profile can be wrong: other jobs share the nodes, a pool's machines differ. So the
times of the running stages, as the coordinator measures them, correct the profile (`calibrate`), and the planner
provisions the same stages again. What comes out takes effect without a restart: workers are added or end, the others go
on. Other stages or pools need a restart from the checkpoint; that is done only if the present ones cannot be had any
more (`stranded`).

A change needs a reason: the floor is missed by more than a tolerance, the job pays for clearly more than the floor, or
somebody wants another number of workers (`elasticity.workers`), whatever the floor. Between two looks at it lies
`elasticity.cooldownSeconds`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heterps_operator.job import JobSpec
from heterps_operator.members import units_by_pool
from heterps_operator.profiles import build_problem
from heterps_operator.status import Status
from heterps_operator.values import ComputePlan, CoordinatorView, Observed, PlanOutcome
from heterps_planner.cost_model import build_segments
from heterps_planner.problem import Problem
from heterps_runtime.contract import PlanDocument, worker_name

__all__ = ["calibrate", "divide_workers", "review", "stranded"]

_MISSED = 0.97  # of the floor; what is above this is noise
_EXCESS = 1.15  # of the floor; below this fewer units would be likely to miss it
_MIN_SAVING = 0.05  # of the price per hour, for giving units up
_MIN_STEPS = 20  # the first ones compile kernels and fill caches
_WIDEST = 50.0  # a profile further off than this says that the measurement is wrong
_TIMES = ("computeSeconds", "computeFixedSeconds", "transferSeconds", "transferFixedSeconds")
_STAGE_TIMES = ("stageSeconds", "stageFixedSeconds")


def review(
    job: JobSpec, observed: Observed, status: Status, plan: PlanDocument
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Look whether the job has the right number of units.

    Args:
        job: floor, limits and the policy.
        observed: with a coordinator that is training.
        status: of the job.
        plan: what runs.

    Returns:
        The status, with a new plan if there is one, and a request to the planner.
    """
    view, now = observed.coordinator, observed.time
    assert view is not None
    wanted, floor = job.elasticity.workers, job.min_samples_per_second or 0.0
    if job.elasticity.mode == "Off" or job.stages_by_hand or not (wanted or floor):
        return status, ()
    if status.review is not None:
        return _judge(job, observed, status, plan), ()
    if status.reviewed is None:  # training has just begun
        return replace(status, reviewed=now), ()
    if now - status.reviewed < job.elasticity.cooldown_seconds or observed.planning or not _settled(view, plan):
        return status, ()
    status = replace(status, reviewed=now)
    running, measured = sum(stage.pods for stage in plan.stages), view.samples_per_second
    missed, excess = measured < floor * _MISSED, measured > floor * _EXCESS
    if wanted:
        cause, text = "workers", f"{wanted} workers are wanted (elasticity.workers), the plan has {running}"
    else:
        cause = "missed" if missed else "excess"
        text = f"{measured:,.0f} samples/s are measured, the floor is {floor:,.0f}"
        if not missed and not (excess and any(stage.pods > 1 for stage in plan.stages)):
            return status, ()
    if any(pool.name not in observed.profiles for pool in job.pools):
        return status, ()  # a plan of an earlier run, whose profiles are gone
    try:
        servers = {"pool": plan.parameterServer.pool, "units": plan.parameterServer.units}  # they stay where they are
        problem = calibrate({**build_problem(job, observed.profiles), "parameterServer": servers}, plan, view)
    except ValueError:
        return status, ()  # the model has other layers now; the plan that runs stays
    stages: list[dict[str, Any]] = [{"pool": stage.pool, "lastLayer": stage.lastLayer} for stage in plan.stages]
    if wanted:
        pods = divide_workers(problem, plan, wanted)
        if pods == [stage.pods for stage in plan.stages]:
            return status, ()
        problem = {**problem, "minSamplesPerSecond": 0.0}
        for stage, number in zip(stages, pods, strict=True):
            stage["units"] = number * job.pool(stage["pool"]).units_per_pod
    revision = status.plan_revision + 1
    asked = replace(status, review={"revision": revision, "cause": cause, "message": text})
    return asked, (ComputePlan(problem, revision, tuple(stages)),)


def stranded(job: JobSpec, observed: Observed, status: Status) -> str:
    """Whether the plan cannot be carried on because a pool has shrunk, so that the job needs another one.

    A pool with fewer units than the plan alone is no reason: what runs goes on. A process of it that has waited for
    room longer than `elasticity.cooldownSeconds` is, as there is nothing to wait for.

    Returns:
        Why, for people; empty: it can be carried on.
    """
    if status.plan is None or job.elasticity.mode == "Off" or job.stages_by_hand:
        return ""
    for pool, units in sorted(units_by_pool(PlanDocument.from_json(dict(status.plan))).items()):
        room = observed.room.get(pool, units)
        waiting = sorted(
            p.name
            for p in observed.processes
            if p.running and p.spec.pool == pool and p.spec.incarnation == status.incarnation
            and p.problem is not None and p.problem.reason == "Unschedulable"
            and observed.time - p.started > job.elasticity.cooldown_seconds
        )  # fmt: skip
        if room < units and waiting:
            found = f"pool {pool} has {room} of the {units} units of plan {status.plan_revision}"
            return f"{found}, and {waiting[0]} finds no room; the job stops in order and goes on with another plan"
    return ""


def divide_workers(problem: Mapping[str, Any], plan: PlanDocument, workers: int) -> list[int]:
    """Give each worker to the stage that is slowest without it, which is the division with the highest throughput.

    Args:
        problem: a problem document, which predicts the stages' times.
        plan: its stages, and what its servers take of their pool.
        workers: in all stages together. Each stage has at least one, and pools have limits.

    Returns:
        Workers of each stage.
    """
    parsed = Problem.from_json(problem)
    segments = build_segments(parsed)
    pools = [parsed.pool_index(stage.pool) for stage in plan.stages]
    free = {index: pool.max_units for index, pool in enumerate(parsed.pools)}
    servers = parsed.pool_index(plan.parameterServer.pool)
    free[servers] -= plan.parameterServer.units
    for pool in pools:
        free[pool] -= parsed.pools[pool].units_per_pod
    pods = [1] * len(pools)

    def entry(stage: int) -> tuple[float, int]:
        of = plan.stages[stage]
        return -segments.stage_time(of.firstLayer, of.lastLayer, pools[stage], pods[stage]), stage

    slowest = [entry(stage) for stage in range(len(pools))]
    heapq.heapify(slowest)
    while slowest and sum(pods) < workers:
        _, stage = heapq.heappop(slowest)
        units = parsed.pools[pools[stage]].units_per_pod
        if free[pools[stage]] >= units:
            free[pools[stage]] -= units
            pods[stage] += 1
            heapq.heappush(slowest, entry(stage))
    return pods


def calibrate(problem: Mapping[str, Any], plan: PlanDocument, view: CoordinatorView) -> dict[str, Any]:
    """Scale the times of a problem so that it predicts what is measured.

    Each stage's layers are scaled by measured / predicted seconds per sample on their pool, and all of them by what the
    whole job loses beyond its slowest stage. Layers that run elsewhere are scaled like the stages of the same pool.

    Args:
        problem: a problem document with the profiled times.
        plan: what runs.
        view: with the measured throughput of every stage.

    Raises:
        ValueError: plan and problem do not fit together.
    """
    parsed = Problem.from_json(problem)
    segments = build_segments(parsed)
    rates = [float(stage["samplesPerSecond"]) for stage in view.document["stages"]]
    if plan.stages[-1].lastLayer != len(parsed.layers) - 1 or len(rates) != len(plan.stages):
        raise ValueError("the plan that runs is of another model")
    loss = max(1.0, min(rates) / view.samples_per_second)
    factors: dict[tuple[str, int], float] = {}  # (pool, layer)
    of_pool: dict[str, list[float]] = {}
    for stage, rate in zip(plan.stages, rates, strict=True):
        pool = parsed.pool_index(stage.pool)
        predicted = segments.stage_time(stage.firstLayer, stage.lastLayer, pool, stage.pods)
        factor = min(max(loss / (rate * predicted), 1 / _WIDEST), _WIDEST)
        of_pool.setdefault(stage.pool, []).append(factor)
        factors |= {(stage.pool, layer): factor for layer in range(stage.firstLayer, stage.lastLayer + 1)}
    mean = {pool: sum(values) / len(values) for pool, values in of_pool.items()}

    def scaled(times: Mapping[str, Any], names: tuple[str, ...], factor: float) -> dict[str, Any]:
        return {key: value * factor if key in names else value for key, value in times.items()}

    pools = [scaled(pool, _STAGE_TIMES, mean.get(pool["name"], loss)) for pool in problem["pools"]]
    layers = [
        {
            **layer,
            "pools": {
                name: scaled(times, _TIMES, factors.get((name, index), mean.get(name, loss)))
                for name, times in layer["pools"].items()
            },
        }
        for index, layer in enumerate(problem["layers"])
    ]
    return {**problem, "pools": pools, "layers": layers}


def _settled(view: CoordinatorView, plan: PlanDocument) -> bool:
    """Whether all workers are at work and their figures mean something."""
    names = [worker_name(i, index) for i, stage in enumerate(plan.stages) for index in range(stage.pods)]
    members = [view.member(name) for name in names]
    if any(member is None or member.state != "ready" for member in members):
        return False
    rates = [float(stage.get("samplesPerSecond") or 0.0) for stage in view.document.get("stages") or ()]
    return view.committed_steps >= _MIN_STEPS and view.samples_per_second > 0 and bool(rates) and min(rates) > 0


def _judge(job: JobSpec, observed: Observed, status: Status, plan: PlanDocument) -> Status:
    """Take the planner's answer, or leave it."""
    now, asked = observed.time, status.review
    assert asked is not None
    outcome = observed.outcome
    if outcome is None or outcome.revision != asked["revision"]:
        # Nobody is at work on it after a restart of the controller: think again after the next pause.
        return status if observed.planning else replace(status, review=None)
    done = replace(status, review=None, reviewed=now)
    if not outcome.feasible:
        if asked["cause"] == "excess":
            return done
        return done.with_condition("Rescaled", False, "CannotRescale", f"{asked['message']}; {_why(outcome)}", now)
    assert outcome.document is not None
    present = status.plan or {}
    new = _bounded(job, outcome.document, plan, present)
    taken = units_by_pool(PlanDocument.from_json(new))
    if any(units > observed.free_units.get(pool, units) for pool, units in taken.items()):
        return done  # other jobs took the units while the planner was at work
    pods, before = [int(stage["pods"]) for stage in new["stages"]], [stage.pods for stage in plan.stages]
    grows = any(n > old for n, old in zip(pods, before, strict=True))
    saves = new["costPerHour"] < float(present.get("costPerHour") or 0.0) * (1 - _MIN_SAVING)
    helps = {"missed": grows, "excess": saves, "workers": True}[asked["cause"]]
    if pods == before or not helps:
        return done
    moves = ", ".join(
        f"{stage.name} on {stage.pool}: {old} -> {n} workers"
        for stage, old, n in zip(plan.stages, before, pods, strict=True)
        if n != old
    )
    attempts = _attempts(observed, status, pods)
    done = replace(done, plan=new, plan_revision=int(asked["revision"]), plan_reason="UnitsChanged", attempts=attempts)
    return done.with_condition("Rescaled", True, "UnitsChanged", f"{asked['message']}: {moves}", now)


def _why(outcome: PlanOutcome) -> str:
    return str((outcome.document or {}).get("message") or outcome.error)


def _bounded(
    job: JobSpec, document: Mapping[str, Any], plan: PlanDocument, present: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan with at most `maxScaleDownPercent` of each stage's pods taken away, and the servers that run."""
    stages = []
    for new, old in zip(document["stages"], plan.stages, strict=True):
        removable = max(1, int(old.pods * job.elasticity.max_scale_down_percent / 100))
        pods = max(int(new["pods"]), old.pods - removable)
        stages.append({**new, "pods": pods, "units": pods * job.pool(old.pool).units_per_pod})
    servers = plan.parameterServer
    price = sum(float(job.pool(stage["pool"]).price_per_unit_hour) * stage["units"] for stage in stages)
    price += float(job.pool(servers.pool).price_per_unit_hour) * servers.units
    return {**document, "stages": stages, "parameterServer": present.get("parameterServer"), "costPerHour": price}


def _attempts(observed: Observed, status: Status, pods: list[int]) -> dict[str, int]:
    """A worker that ended when an earlier plan dropped it, and that is wanted again, is a new attempt."""
    attempts = dict(status.attempts)
    for number, count in enumerate(pods):
        for name in (worker_name(number, index) for index in range(count)):
            process = observed.process(name)
            if process is not None and not process.running:
                attempts[name] = max(attempts.get(name, 1), process.spec.attempt + 1)
    return attempts
