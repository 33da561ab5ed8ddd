"""The number of units during the run: compare the measured throughput with the floor, and provision the stages anew.

A plan is made from a profile, and a profile can be wrong: other jobs share the nodes, a pool's machines differ. So
the times of the running stages, as the coordinator measures them, correct the profile (`calibrate`), and the planner
provisions the same stages again. What comes out takes effect without a restart: workers are added or end, the others
go on. Other stages or pools may need a restart from the checkpoint; that is done only if the present ones cannot reach
the floor with any number of units (`redivision`), or cannot be had any more (`stranded`).

A change needs a reason: the floor is missed by more than a tolerance, the job pays for clearly more than the floor, or
`elasticity.workers` asks for another number of workers, whatever the floor. Between two looks at it lies
`elasticity.cooldownSeconds`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

from heterps_operator.api.job import JobSpec
from heterps_operator.control.machine import describe_cores, is_busy
from heterps_operator.control.problem import build_problem, with_running_servers
from heterps_operator.control.tuning.adoption import carry_out
from heterps_operator.control.tuning.calibration import calibrate, divide_workers
from heterps_operator.control.tuning.redivision import ask_for_stages, take_stages
from heterps_operator.formatting import format_time
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import (
    LEAST_SAMPLES,
    PATIENCE,
    Sample,
    ThroughputSeries,
    mean,
    pause_seconds,
    stage_means,
)
from heterps_operator.state.trials import Cause, Pods, Review, Trial, remember, spare
from heterps_operator.state.values import ComputePlan, CoordinatorView, Observed

__all__ = ["review", "stranded"]

_MISSED = 0.97  # of the floor; what is above this is noise
_EXCESS = 1.15  # of the floor; below this fewer units would be likely to miss it
_MIN_SAVING = 0.05  # of the price per hour, for giving units up
_MIN_STEPS = 20  # the first ones compile kernels and fill caches


def review(job: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Look whether the job has the right number of units.

    Args:
        job: floor, limits and the policy.
        observed: with a coordinator that is training.
        status: of the job.
        plan: what runs.

    Returns:
        The status, with a new plan if there is one, and a request to the planner.
    """
    now = observed.time
    wanted, floor = job.elasticity.workers, job.min_samples_per_second
    if job.elasticity.mode == "Disabled" or job.stages_by_hand or not (wanted or floor):
        return status, ()
    before, status = status.series, _measure(job, observed, status, plan)
    if status.review is not None and status.review.cause == Cause.PRICES:
        return status, ()  # the planner is busy with another question
    if status.review is not None:
        return _judge(job, observed, status, plan, status.review)
    if status.reviewed is None:  # training has just begun
        return replace(status, reviewed=now), ()
    if now - status.reviewed < job.elasticity.cooldown_seconds or observed.planning:
        return status, ()
    if any(pool.name not in observed.profiles for pool in job.pools):
        return status, ()  # a plan of an earlier run, whose profiles are gone
    if wanted is not None:
        return _follow_wish(job, observed, status, plan, wanted)
    if status.series.samples == before.samples:
        return status, ()  # nothing new is known
    return _follow_floor(job, observed, status, plan)


def _measure(job: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> Status:
    """Take the throughput in, if all workers of the plan are at work and it is measured."""
    view, series = observed.coordinator, status.series
    assert view is not None
    if series.revision != status.plan_revision:
        series = ThroughputSeries(status.plan_revision)
    if not _all_at_work(view, plan):
        series = series.unsettle()
    elif _is_measured(view):
        at = observed.time if view.measured is None else view.measured
        series = series.observe(Sample(at, view.samples_per_second, tuple(_stage_rates(view))), _pause(job))
    return replace(status, series=series)


def _follow_wish(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan, wanted: int
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Ask the planner to divide `elasticity.workers` among the stages."""
    view, present = observed.coordinator, plan.pods
    assert view is not None
    if not (_all_at_work(view, plan) and _is_measured(view)):
        return status, ()
    problem = _problem(job, observed, plan, view.samples_per_second, _stage_rates(view))
    if problem is None:
        return replace(status, reviewed=observed.time), ()
    pods = divide_workers(problem, plan, wanted)
    if tuple(pods) == present:
        return replace(status, reviewed=observed.time), ()
    text = f"elasticity.workers asks for {wanted} workers, the plan has {sum(present)}"
    units = [number * job.pool(stage.pool).units_per_pod for number, stage in zip(pods, plan.stages, strict=True)]
    problem = {**problem, "minSamplesPerSecond": 0.0}
    return _ask(observed, status, plan, problem, Review(Cause.WORKERS, text), units)


def _follow_floor(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Compare what was measured since the last change with the floor."""
    series, floor, now = status.series, job.min_samples_per_second, observed.time
    pause, present = _pause(job), plan.pods
    missed = series.misses(floor * _MISSED, pause)
    if not missed and not series.complete(pause, 1.0):
        return status, ()
    seen = mean(series.recent(pause) if missed else series.samples).value
    grown = next((t for t in status.trials if t.more == present and not t.more_rate), None)
    if grown is not None:
        judged = replace(grown, more_rate=seen)
        if missed and series.before == grown.fewer and not judged.gains(floor, judged.fewer_rate):
            return _give_back(job, observed, status, plan, judged), ()
        status = replace(status, trials=_replaced(status.trials, judged))
    least = series.least()
    excess = least > floor * _EXCESS and max(present) > 1 and series.complete(pause, PATIENCE)
    if not missed and not excess:
        return status, ()
    basis = _basis(job, observed, plan)
    status = replace(status, trials=tuple(trial for trial in status.trials if trial.basis == basis))
    text = f"measured {seen:,.0f} samples/s, the floor is {floor:,.0f}"
    if excess:
        stages = [rate * least / seen for rate in stage_means(series.samples)]
        problem = _problem(job, observed, plan, least, stages)
        return _ask(observed, status, plan, problem, Review(Cause.EXCESS, text, least, basis))
    rate = mean(series.samples[-LEAST_SAMPLES:]).value  # a load may have come while it was measured
    if any(trial.bars_more(present, floor, rate, now) for trial in status.trials):
        return status, ()
    if _fewer(present, series.before) and series.before_rate >= floor:
        asked = Review(Cause.MISSED, f"{text}, so as before", rate, basis)
        new = _with_pods(job, plan, plan, series.before)
        return _change(job, observed, replace(status, reviewed=now), plan, new, asked, ThroughputSeries()), ()
    if plan.machine is not None and is_busy(plan.machine):
        text = f"{describe_cores(plan.machine)}, so more workers would not bring it to the floor of {floor:,.0f}"
        return replace(status, reviewed=now).with_condition("Rescaled", False, "CoresBusy", text, now), ()
    stages = stage_means(series.recent(pause))
    problem = _problem(job, observed, plan, seen, stages)
    return _ask(observed, status, plan, problem, Review(Cause.MISSED, text, rate, basis))


def _ask(
    observed: Observed,
    status: Status,
    plan: JobPlan,
    problem: dict[str, Any] | None,
    review: Review,
    units: Sequence[int] = (),
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Let the planner provision the stages that run; `units` of each stage, if they are wanted."""
    status = replace(status, reviewed=observed.time)
    if problem is None:
        return status, ()
    stages: list[dict[str, Any]] = [{"pool": stage.pool, "lastLayer": stage.lastLayer} for stage in plan.stages]
    if units:
        stages = [{**stage, "units": number} for stage, number in zip(stages, units, strict=True)]
    revision = status.plan_revision + 1
    return replace(status, review=replace(review, revision=revision)), (ComputePlan(problem, revision, tuple(stages)),)


def _problem(
    job: JobSpec, observed: Observed, plan: JobPlan, throughput: float, stages: Sequence[float]
) -> dict[str, Any] | None:
    """The problem as the measured throughputs correct it, within what other jobs leave; None: of another model."""
    try:
        problem = build_problem(
            job.limited(observed.capacity.free_units), observed.profiles, observed.status.start_seconds
        )
        return calibrate(with_running_servers(problem, plan.servers), plan, throughput, stages)
    except ValueError:
        return None  # the model has other layers now; the plan that runs stays


def stranded(job: JobSpec, observed: Observed, status: Status) -> str:
    """Whether the plan cannot be carried on because a pool has shrunk, so that the job needs another one.

    A pool with fewer units than the plan alone is no reason: what runs goes on. A process of it that has waited for
    room longer than `elasticity.cooldownSeconds` is, as there is nothing to wait for.

    Returns:
        Why, for people; empty: it can be carried on.
    """
    if status.plan is None or job.elasticity.mode == "Disabled" or job.stages_by_hand:
        return ""
    for pool, units in sorted(status.plan.units.items()):
        room = observed.capacity.room.get(pool, units)
        waiting = sorted(
            p.name
            for p in observed.processes
            if p.running and p.spec.pool == pool and p.spec.incarnation == status.incarnation
            and p.problem is not None and p.problem.reason == "Unschedulable"
            and observed.time - p.started > job.elasticity.cooldown_seconds
        )  # fmt: skip
        if room < units and waiting:
            found = f"pool {pool} has {room} of the {units} units of plan {status.plan_revision}"
            return f"{found}, and {waiting[0]} does not fit; the job stops and resumes with another plan"
    return ""


def _all_at_work(view: CoordinatorView, plan: JobPlan) -> bool:
    """Whether all workers of the plan are ready, and the first steps are over."""
    members = [view.member(name) for name in plan.workers]
    ready = all(member is not None and member.state == "ready" for member in members)
    return ready and view.committed_steps >= _MIN_STEPS


def _is_measured(view: CoordinatorView) -> bool:
    rates = _stage_rates(view)
    return view.samples_per_second > 0 and bool(rates) and min(rates) > 0


def _stage_rates(view: CoordinatorView) -> list[float]:
    """Samples/s that each stage could have alone; 0: not measured."""
    return [float(stage.get("samplesPerSecond") or 0.0) for stage in view.document.get("stages") or ()]


def _basis(job: JobSpec, observed: Observed, plan: JobPlan) -> str:
    """What trials depend on besides the load: if anything of it changes, nothing is known of other numbers."""
    stages = [[stage.pool, stage.lastLayer] for stage in plan.stages]
    profiles = {pool.name: observed.profiles[pool.name] for pool in job.pools}
    pools = [replace(pool, price_per_unit_hour=Decimal(0)) for pool in job.pools]  # prices make no worker faster
    text = json.dumps([asdict(job.elasticity), pools, stages, profiles], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- answers ----------------------------------------------------------------------------------------------------------


def _judge(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan, asked: Review
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Take the planner's answer, or leave it; or ask for other stages, where the present ones do not do."""
    now, outcome = observed.time, observed.outcome
    if outcome is None or outcome.revision != asked.revision:
        # The controller restarted and the question was lost: decide again after the next pause.
        return (status if observed.planning else replace(status, review=None)), ()
    done = replace(status, review=None, reviewed=now)
    if asked.cause == Cause.STAGES:
        return take_stages(job, observed, done, plan, asked), ()
    if outcome.plan is not None:
        return _take_units(job, observed, done, plan, outcome.plan, asked), ()
    if asked.cause == Cause.EXCESS:
        return done, ()
    if asked.cause == Cause.MISSED:
        return ask_for_stages(job, observed, done, plan, asked, outcome.message)
    text = f"{asked.message}; {outcome.message}"
    return done.with_condition("Rescaled", False, "CannotRescale", text, now), ()


def _take_units(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan, answer: JobPlan, asked: Review
) -> Status:
    """Change the number of units to the planner's, if that helps and did not fail before."""
    now, present, in_the_way = observed.time, plan.pods, None
    pods = _bounded(job, answer, plan)
    if asked.cause == Cause.EXCESS:
        floor = job.min_samples_per_second
        pods, in_the_way = spare(status.trials, pods, floor=floor, present=present, rate=asked.rate, now=now)
    new = _with_pods(job, answer, plan, pods)
    grows = any(n > old for n, old in zip(pods, present, strict=True))
    saves = (new.cost_per_hour or 0.0) < (plan.cost_per_hour or 0.0) * (1 - _MIN_SAVING)
    helps = {Cause.MISSED: grows, Cause.EXCESS: saves, Cause.WORKERS: True}[asked.cause]
    if pods != present and helps:
        before = ThroughputSeries(before=present, before_rate=asked.rate)
        tried = ThroughputSeries() if asked.cause == Cause.WORKERS else before
        return _change(job, observed, status, plan, new, asked, tried)
    if in_the_way is None:
        return status
    return status.with_condition("Rescaled", False, "TriedBefore", _tried(plan, in_the_way, job), now)


def _give_back(job: JobSpec, observed: Observed, status: Status, plan: JobPlan, grown: Trial) -> Status:
    """Give units up that were added in vain."""
    now = observed.time
    failed = replace(grown, time=now, in_vain=True)  # it has its wait since the units were added
    new = _with_pods(job, plan, plan, grown.fewer)
    status = replace(status, trials=_replaced(status.trials, failed), reviewed=now)
    status = carry_out(observed, status, new, ThroughputSeries(), "UnitsChanged")
    moves, until = _moves(plan, grown.fewer, grown.more), format_time(failed.until)
    text = (
        f"{moves} gave {grown.more_rate:,.0f} samples/s after {grown.fewer_rate:,.0f}, the floor is "
        f"{job.min_samples_per_second:,.0f}; they are released; more are tried again at {until}, or halfway to "
        "it if the throughput falls"
    )
    return status.with_condition("Rescaled", False, "AddedInVain", text, now)


def _replaced(trials: Sequence[Trial], trial: Trial) -> tuple[Trial, ...]:
    return tuple(trial if known.fewer == trial.fewer else known for known in trials)


def _change(
    job: JobSpec,
    observed: Observed,
    status: Status,
    plan: JobPlan,
    new: JobPlan,
    asked: Review,
    series: ThroughputSeries,
) -> Status:
    """Carry a plan out that was asked for, unless other jobs took the units meanwhile.

    Args:
        job: its limits.
        observed: units that are free.
        status: of the job.
        plan: what runs.
        new: the same stages with other numbers of workers.
        asked: why.
        series: of the new plan, without measurements.
    """
    now = observed.time
    if any(units > observed.capacity.free_units.get(pool, units) for pool, units in new.units.items()):
        return status
    if asked.cause == Cause.MISSED:
        trial = Trial(plan.pods, new.pods, asked.rate, 0.0, now, 0.0, in_vain=False, basis=asked.basis)
        status = replace(status, trials=remember(status.trials, trial, _pause(job)))
    status = carry_out(observed, status, new, series, "UnitsChanged")
    text = f"{asked.message}: {_moves(plan, plan.pods, new.pods)}"
    return status.with_condition("Rescaled", True, "UnitsChanged", text, now)


def _moves(plan: JobPlan, before: Pods, after: Pods) -> str:
    """What changes: `stage-0 on cpu: 2 -> 3 workers`."""
    pairs = zip(plan.stages, before, after, strict=True)
    return ", ".join(f"{stage.name} on {stage.pool}: {old} -> {n} workers" for stage, old, n in pairs if n != old)


def _tried(plan: JobPlan, trial: Trial, job: JobSpec) -> str:
    """Why fewer units are not tried; the same words as long as that holds, as each new message is an event."""
    pairs = zip(plan.stages, trial.fewer, trial.more, strict=True)
    which = ", ".join(f"{n} workers of {stage.name} on {stage.pool}" for stage, n, more in pairs if n != more)
    return (
        f"{which} gave {trial.fewer_rate:,.0f} samples/s at {format_time(trial.time)}, the floor is "
        f"{job.min_samples_per_second:,.0f}; this is tried again at {format_time(trial.until)}, or halfway to it if "
        "the throughput rises"
    )


def _bounded(job: JobSpec, new: JobPlan, plan: JobPlan) -> Pods:
    """Workers of each stage by a new plan, with at most `maxScaleDownPercent` of each stage's taken away."""
    pods = []
    for wanted, old in zip(new.pods, plan.pods, strict=True):
        removable = max(1, int(old * job.elasticity.max_scale_down_percent / 100))
        pods.append(max(wanted, old - removable))
    return tuple(pods)


def _with_pods(job: JobSpec, new: JobPlan, plan: JobPlan, pods: Pods) -> JobPlan:
    """A new plan with these numbers of workers, and the servers of the plan that runs."""
    units_per_pod = {pool.name: pool.units_per_pod for pool in job.pools}
    return new.with_workers(pods, plan.servers, units_per_pod, job.prices)


def _fewer(pods: Pods, others: Pods) -> bool:
    """Whether no stage has more workers, and one has fewer."""
    return pods != others and len(pods) == len(others) and all(n <= o for n, o in zip(pods, others, strict=True))


def _pause(job: JobSpec) -> float:
    return pause_seconds(job.elasticity.cooldown_seconds)
