"""The heart of the controller: from what is observed to what is to be done.

`reconcile(job, observed)` is a pure function of values. It does no I/O and reads no clock: the same observation gives
the same decision, and an observation in which the actions have taken effect gives none. So it does not matter whether
it runs twice a second, after a crash, or twice for one change, and every situation can be tested as a value.

A job is profiled on every pool, planned, started, run with rebalancing, and ended. Each turn looks for a reason to end
first, then for processes of an earlier incarnation, then for the next step forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.control import reporting, termination
from heterps_operator.control.choices import as_chosen
from heterps_operator.control.disruptions import failures, liveness
from heterps_operator.control.disruptions.crowding import judge_crowding, limited_to_room
from heterps_operator.control.disruptions.departures import judge_departures
from heterps_operator.control.history import record_plan
from heterps_operator.control.market import judge_prices, note_start
from heterps_operator.control.measuring import pools_to_measure
from heterps_operator.control.members import COORDINATOR, coordinator, members, profiler
from heterps_operator.control.problem import build_problem
from heterps_operator.control.queueing import quota, waiting
from heterps_operator.control.queueing.quota import WAITING_FOR_CAPACITY
from heterps_operator.control.queueing.waiting_line import covers
from heterps_operator.control.tuning import elasticity, rebalancing
from heterps_operator.control.tuning.adoption import adopt_changed_plan
from heterps_operator.state.plan import JobPlan, PlanOutcome
from heterps_operator.state.selection import describe_selection
from heterps_operator.state.status import Event, Failure, Phase, Status
from heterps_operator.state.values import (
    Action,
    ComputePlan,
    CoordinatorView,
    Decision,
    Observed,
    ProcessSpec,
    ReportLost,
    SaveProfile,
    StartProcess,
    StopProcess,
    SubmitPlan,
)
from heterps_planner.plans.selection import Selection
from heterps_runtime.contract import JobPhase, Role

__all__ = ["reconcile"]

_STALE_GRACE_SECONDS = 5.0
_PROFILER_GRACE_SECONDS = 5.0
_DROPPED_SECONDS = 10.0  # for a member to end by itself that a later plan has no use for


def reconcile(job: JobSpec, observed: Observed) -> Decision:
    """Decide what is to be done now.

    Args:
        job: what is wanted.
        observed: what is the case, with the status of the last decision.

    Returns:
        The actions, the status to remember, and the events that this decision makes.
    """
    before = observed.status
    if before.final:
        return Decision(before, quota.give_back(job, observed, before))
    now = observed.time
    status = before if before.started is not None else replace(before, started=now, phase_since=now)
    job = as_chosen(job, before)
    process = observed.process(COORDINATOR)
    if process is None or not failures.is_current(process, status):
        observed = replace(observed, coordinator=None)  # a coordinator of the past
    observed = limited_to_room(observed, status)
    if observed.changed_plan is not None:
        status = adopt_changed_plan(observed, status, observed.changed_plan)
    if job.paused:
        return Decision(waiting.since_when(job, observed, status.with_phase(Phase.PAUSED, now)))
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()

    # 1. Did the job end, must it end?
    if status.outcome is None:
        status = termination.judge(job, observed, status)
    if status.outcome is None and status.stopping_since is None:
        status, events = failures.judge_exits(job, observed, status)
    hung: Mapping[str, str] = {}
    if status.outcome is None and status.stopping_since is None:
        hung = liveness.unresponsive(job, observed, status)
        events += tuple(
            Event("Warning", "Unresponsive", f"{name} {why}; restarting it", now) for name, why in hung.items()
        )

    if status.outcome is None and status.stopping_since is None:
        status, evictions = quota.judge_eviction(observed, status)
        events += evictions

    leaves: tuple[Action, ...] = ()
    if status.outcome is None and status.stopping_since is None and not hung:
        status, leaves, moves = judge_departures(job, observed, status)
        events += moves

    if status.outcome is None and status.stopping_since is None and not hung:
        status, crowded = judge_crowding(job, observed, status)
        events += crowded

    questions: tuple[Action, ...] = ()
    if status.outcome is None and status.stopping_since is None and not hung:
        status, questions, moves = judge_prices(job, observed, status)
        events += moves

    # 2. Carry the end out, or go on.
    if status.outcome is not None:
        status, actions = termination.wind_down(job, observed, status)
    elif status.stopping_since is not None:
        status, actions = termination.orderly_stop(observed, status)
    else:
        status, actions = _advance(job, observed, status, hung)
        actions = leaves + questions + actions
        if status.outcome is not None:  # the step forward found that there is none
            status, actions = termination.wind_down(job, observed, status)
        elif status.stopping_since is not None:  # or that it leads to other stages
            status, actions = termination.orderly_stop(observed, status)
    actions += quota.give_back(job, observed, status)
    # What was measured is kept, even if the job ends with it.
    saves = tuple(
        SaveProfile(pool, profile)
        for pool, profile in sorted(observed.profiles.items())
        if pool not in observed.cached_profiles
    )
    # The coordinator's answer is about the past of a job that has just started over.
    present = observed if status.incarnation == before.incarnation else replace(observed, coordinator=None)
    status = reporting.observe_members(job, present, status)
    status, resumed = reporting.observe_resume(present, status)
    status, warnings = reporting.relay_warnings(observed, status)
    status = waiting.since_when(job, observed, status)
    status = record_plan(before, status, observed.coordinator, now)
    events += reporting.warn_of_machine(job, before, status, now)
    events += resumed + reporting.news(before, status, observed)
    return Decision(status, saves + actions, warnings + events)


# --- forward ----------------------------------------------------------------------------------------------------------


def _advance(
    job: JobSpec, observed: Observed, status: Status, hung: Mapping[str, str]
) -> tuple[Status, tuple[Action, ...]]:
    """Take the next step towards a trained model; first end processes that are `hung`."""
    now = observed.time
    if hung:  # their end is then judged like any other death
        return status, tuple(StopProcess(name, _STALE_GRACE_SECONDS) for name in hung)
    stale = [p for p in observed.processes if p.running and p.spec.incarnation != status.incarnation]
    if stale:
        return status, tuple(StopProcess(p.name, _STALE_GRACE_SECONDS) for p in stale if not p.stopping)
    if now < status.not_before.get("", 0.0):
        return status, ()
    # A profiler that has delivered has nothing else to do, and what it occupies is charged.
    delivered = [p for p in observed.processes if p.running and p.spec.role == "profile"]
    ends = tuple(
        StopProcess(p.name, _PROFILER_GRACE_SECONDS)
        for p in delivered
        if p.spec.pool in observed.profiles and not p.stopping
    )
    planning = quota.without_others(observed)
    status = _drop_plan(planning, status)
    missing = tuple(pool for pool in job.pools if pool.name not in observed.profiles)
    if status.plan is not None:
        status, actions = _run(job, observed, status, status.plan)
    elif missing:
        status, actions = _profile(job, observed, status, missing)
    else:
        status, actions = _make_plan(job, planning, status)
    return status, ends + actions


def _profile(
    job: JobSpec, observed: Observed, status: Status, missing: Sequence[PoolSpec]
) -> tuple[Status, tuple[Action, ...]]:
    """Measure the model on the missing pools, of which the first is waited for."""
    first, now = missing[0], observed.time
    specs = {pool.name: profiler(job, pool.name) for pool in missing}
    status, admitted, asks = quota.ask_for_all(observed, status, (coordinator(), *specs.values()))
    if not admitted:
        return status, asks
    # The wait does not count as time that pods take to start.
    if not observed.capacity.fits({first.name: first.units_per_pod}):
        text = f"one worker of pool {first.name} is needed to measure the model there"
        text = waiting.with_place(f"{text}: ", job, observed, (first.name,))
        status = status.with_phase(Phase.PENDING, now)
        return _release(observed, status.with_condition("Profiled", False, WAITING_FOR_CAPACITY, text, now))
    if status.condition("Profiled").reason == WAITING_FOR_CAPACITY:
        status = status.with_condition("Profiled", None, "Measuring", f"measuring the layers on {first.name}", now)
    status = status.with_phase(Phase.PROFILING, now)
    actions = _ensure(observed, status, coordinator())
    if observed.coordinator is None:
        return status, actions
    for pool in pools_to_measure(job, observed.profiles, observed.processes, observed.capacity):
        actions += _ensure(observed, status, specs[pool.name])
    return status, actions


def _make_plan(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Action, ...]]:
    """Let the planner work on the measured problem, and judge its answer."""
    now = observed.time
    pools = ", ".join(pool.name for pool in job.pools)
    status = status.with_condition("Profiled", True, "AllPoolsMeasured", f"layers measured on {pools}", now)
    if job.goal == "profile":
        return _reach(status, Phase.PROFILED, now), ()
    status = status.with_phase(Phase.PLANNING, now)
    if observed.planning:
        return status, ()
    outcome, revision = observed.outcome, status.plan_revision + 1
    if outcome is None or outcome.revision != revision:
        return _ask_with_room(job, observed, status)
    plan = outcome.plan
    if plan is None or not observed.capacity.fits(plan.units):
        return _judge_refusal(job, observed, status, outcome)
    reason = "Replanned" if status.plan_revision else "PlanComputed"
    status = replace(status, plan=plan, plan_revision=revision, plan_reason=reason)
    status = replace(status, judged_prices={}, offer=None, claim={}, refused_with={})
    status = replace(status, claim_precision="", claim_exchange="")
    message = f"plan {status.plan_revision} by {plan.method}: {plan.summary}"
    for word, selection in (("precision", plan.precision), ("dense exchange", plan.dense_exchange)):
        if selection is not None:
            message = f"{message}; {word} {describe_selection(selection)}"
    status = status.with_condition("Planned", True, reason, message, now)
    if job.goal == "plan":
        return _reach(status, Phase.PLANNED, now), ()
    return _run(job, observed, status, plan)


def _judge_refusal(
    job: JobSpec, observed: Observed, status: Status, outcome: PlanOutcome
) -> tuple[Status, tuple[Action, ...]]:
    """Ask again, wait, or fail, after an answer without a plan that fits into what others leave.

    A job that cannot have a plan now is planned once more as if it were alone, first with what the pools have, then
    with all that they may have: a job that could not run alone must not wait, and what it would have is its claim.
    """
    asked, now = dict(status.planned_with), observed.time  # what the answer is to; empty: no other jobs, whole pools
    free, most = dict(observed.capacity.free_units), dict(observed.capacity.most_units)
    room, alone = job.limited(free), job.limited(most)
    plan = outcome.plan
    # A plan by hand that does not fit is an error, where a search finds that there is none.
    refused = plan is None and (outcome.refusal is not None or bool(job.stages_by_hand))
    if refused and asked:
        status = replace(status, refused_with=asked)
    if plan is not None and asked in ({}, most):
        within = all(number <= most.get(pool, number) for pool, number in plan.units.items())
        status = replace(status, possible=True, claim=dict(plan.units) if within else {})
        status = replace(status, claim_precision=_name(plan.precision), claim_exchange=_name(plan.dense_exchange))
    if plan is None and (not asked or (room == job and covers(asked, free)) or (not refused and asked == free)):
        if outcome.refusal is not None:
            status = status.with_condition("Planned", False, outcome.reason, outcome.message, now)
        return _fail(status, Failure(outcome.reason, outcome.message), now), ()
    if status.possible and _is_outdated(status, most):
        status = replace(status, possible=False, claim={})
    if not covers(status.refused_with, free) or (plan is not None and not status.possible):
        return _ask_with_room(job, observed, status)
    if not status.possible:  # is it for want of room?
        if asked != most and alone not in (room, job):
            return _ask_planner(alone, observed, status, most)
        return _ask_planner(job, observed, status, {})
    if status.claim:
        text = f"its plan needs {waiting.list_units(status.claim)}"
        lacking = [pool for pool, number in sorted(status.claim.items()) if number > free.get(pool, number)]
    else:
        text = f"its plan needs {waiting.list_units(plan.units)}" if plan is not None else outcome.message
        lacking = []
    lacking = lacking or [pool.name for pool, left in zip(job.pools, room.pools, strict=True) if pool != left]
    text = waiting.with_place(f"{text}; ", job, observed, lacking)
    return _release(observed, status.with_condition("Planned", False, WAITING_FOR_CAPACITY, text, now))


def _is_outdated(status: Status, most: Mapping[str, int]) -> bool:
    """Whether the pools have changed so much that a waiting job may have another plan when it is alone."""
    if status.claim:
        return any(number > most.get(pool, number) for pool, number in status.claim.items())
    return bool(status.refused_with) and not covers(status.refused_with, most)


def _ask_with_room(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Action, ...]]:
    """Let the planner work with what other jobs leave."""
    free = dict(observed.capacity.free_units)
    status, actions = _ask_planner(job.limited(free), observed, status, free)
    # It loads while the planner works. A job that may have to wait for others holds nothing meanwhile.
    undisturbed = not any(observed.capacity.holders.values()) and quota.covered(observed, status, COORDINATOR)
    if actions and job.goal == "train" and undisturbed:
        actions += _ensure(observed, status, coordinator())
    return status, actions


def _release(observed: Observed, status: Status) -> tuple[Status, tuple[Action, ...]]:
    """End the coordinator of a job that waits: on a small node it takes the room of a whole unit from other jobs.

    Its end is no failure, as the next attempt is the current one from now on. A profiler that still measures needs it.
    """
    process = observed.process(COORDINATOR)
    needed = any(p.running and p.name != COORDINATOR for p in observed.processes)
    if process is None or not process.running or process.stopping or needed:
        return status, ()
    attempts = {**status.attempts, COORDINATOR: process.spec.attempt + 1}
    return replace(status, attempts=attempts), (StopProcess(COORDINATOR, _STALE_GRACE_SECONDS),)


def _ask_planner(
    job: JobSpec, observed: Observed, status: Status, planned_with: Mapping[str, int]
) -> tuple[Status, tuple[Action, ...]]:
    try:
        problem = build_problem(job, observed.profiles, status.start_seconds)
    except ValueError as error:
        return _fail(status, Failure("ProfileMismatch", str(error)), observed.time), ()
    return replace(status, planned_with=planned_with), (ComputePlan(problem, status.plan_revision + 1),)


def _drop_plan(observed: Observed, status: Status) -> Status:
    """Forget a plan whose units others have taken, or the pool has lost, while the job had no processes."""
    occupied = any(process.running and process.spec.units for process in observed.processes)
    if status.plan is None or occupied or observed.capacity.fits(status.plan.units):
        return status
    text = f"plan {status.plan_revision} needs units that are no longer free"
    status = replace(status.without_questions(), plan=None)
    return status.with_condition("Planned", None, "Replanning", text, observed.time)


def _run(job: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> tuple[Status, tuple[Action, ...]]:
    """Keep the plan's processes running, and the batch divided well."""
    if status.precision is None and plan.precision is not None:  # from now on, the job computes in no other one
        status = replace(status, precision=plan.precision)
    job = as_chosen(job, status)
    now, view, wanted = observed.time, observed.coordinator, members(job, plan)
    in_use = "" if observed.capacity.fits(plan.units) else waiting.in_use(job, observed, tuple(plan.units))
    status, admitted, actions = quota.ask_for_all(observed, status, (coordinator(), *wanted), in_use)
    if not admitted:
        status, ends = _release(observed, status)
        return status, actions + ends
    training = view is not None and view.phase not in (JobPhase.PROFILING, JobPhase.STARTING)
    if not training and status.phase != Phase.RUNNING:
        status = status.with_phase(Phase.STARTING, now)
    actions += _ensure(observed, status, coordinator())
    if view is None:
        return status, actions
    precision = job.precision if job.allowed_precisions else None
    submission = SubmitPlan(plan, status.plan_revision, precision)
    if submission.request not in observed.accepted:  # a worker that the coordinator does not expect would be sent away
        return status, (*actions, submission)
    if view.phase == JobPhase.PROFILING:
        return status, actions
    actions += quota.ask_for_more(observed, status, wanted)
    for spec in wanted:
        if quota.covered(observed, status, spec.name):
            actions += _ensure_member(job, observed, status, view, spec)
    actions += _stop_dropped(observed, status, view, wanted)
    if training:
        status = note_start(status, now).with_phase(Phase.RUNNING, now)
        if view.phase == JobPhase.TRAINING:
            status, submissions = rebalancing.rebalance(job, observed, status, plan)
            actions += submissions
            status, requests = elasticity.review(job, observed, status, plan)
            actions += requests
            if status.plan_revision != submission.revision and status.plan is not None:
                actions += (SubmitPlan(status.plan, status.plan_revision, precision),)
    return status, actions


def _ensure(observed: Observed, status: Status, spec: ProcessSpec) -> tuple[Action, ...]:
    """Start a process if it is not there and its pause is over."""
    present = observed.process(spec.name)
    if present is not None and (present.running or failures.is_current(present, status)):
        return ()
    if observed.time < status.not_before.get(spec.name, 0.0):
        return ()
    attempt = status.attempts.get(spec.name, 1)
    return (StartProcess(replace(spec, incarnation=status.incarnation, attempt=attempt)),)


def _ensure_member(
    job: JobSpec, observed: Observed, status: Status, view: CoordinatorView, spec: ProcessSpec
) -> tuple[Action, ...]:
    """Start a member; one that died is first made known to the coordinator, so that its work goes to others."""
    process, member = observed.process(spec.name), view.member(spec.name)
    if process is not None and not process.running and not failures.is_current(process, status):
        same_job = process.spec.incarnation == status.incarnation
        if same_job and member is not None and member.state == "ready":
            return (ReportLost(spec.name, failures.describe_end(process, job)),)
    return _ensure(observed, status, spec)


def _stop_dropped(
    observed: Observed, status: Status, view: CoordinatorView, wanted: Sequence[ProcessSpec]
) -> tuple[Action, ...]:
    """End workers and servers that a later plan has no use for; the coordinator has told them to end, and most have.

    While other stages wait for their workers, those of the present stages are members; so are servers that others copy.
    """
    if status.reviewed is None or observed.time - status.reviewed <= _DROPPED_SECONDS:
        return ()
    names = {spec.name for spec in wanted}
    return tuple(
        StopProcess(p.name, _STALE_GRACE_SECONDS)
        for p in observed.processes
        if p.running and p.spec.role in (Role.WORKER, Role.PS) and p.name not in names and not p.stopping
        if view.member(p.name) is None
    )


def _name(selection: Selection | None) -> str:
    return "" if selection is None else selection.name


def _reach(status: Status, outcome: Phase, now: float) -> Status:
    return replace(status, outcome=outcome, outcome_since=now)


def _fail(status: Status, failure: Failure, now: float) -> Status:
    return replace(_reach(status, Phase.FAILED, now), failure=failure)
