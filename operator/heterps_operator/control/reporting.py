"""Conditions and events: what a decision tells people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions import liveness
from heterps_operator.control.machine import describe_shortage
from heterps_operator.control.queueing.quota import WAITING_FOR_CAPACITY, WAITING_FOR_QUOTA
from heterps_operator.documents import Json
from heterps_operator.formatting import list_some
from heterps_operator.state.status import CONDITION_TYPES, Event, Phase, Relayed, Status
from heterps_operator.state.values import Observed, PodProblem, ProcessView
from heterps_runtime.contract import JobPhase

__all__ = ["news", "observe_members", "observe_resume", "relay_warnings", "warn_of_machine"]

# The first steps compile kernels and fill caches; they say nothing about the throughput.
_STEPS_BEFORE_JUDGING = 20
_ENDS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})
_REPEATED = frozenset({"Rebalanced", "Rescaled"})  # each new message of theirs is an event
_WAITING = "WaitingForMembers"
_NO_PROBLEMS = frozenset({_WAITING, WAITING_FOR_CAPACITY, WAITING_FOR_QUOTA})  # of pods
_TAKING_PART = frozenset({"ready", "running"})  # what a member last said, before its generation ended
_MOST_WARNINGS = 50  # of one job's coordinator, in this time:
_WARNINGS_SECONDS = 600.0
_CLOCKS_AGREE_SECONDS = 5.0  # an answer comes some seconds after the last turn of a busy operator


def observe_members(job: JobSpec, observed: Observed, status: Status) -> Status:
    """Set the conditions that follow from the members' state and the throughput."""
    view, now = observed.coordinator, observed.time
    if status.outcome is not None:
        return status
    troubled = [p for p in observed.processes if p.running and p.problem is not None]
    silent = liveness.silent_coordinator(job, observed)
    if silent is not None and silent.ready:
        troubled.append(replace(silent, problem=_unreachable(observed.silence)))
    status = _tell_problems(troubled, status, now)
    if view is None or status.plan is None or view.phase == JobPhase.PROFILING:
        return status
    if view.members and not troubled:
        absent = [m for m in view.members if m.state != "ready"]
        text = f"{len(view.members) - len(absent)} of {len(view.members)} members are ready"
        if absent:
            doing = [m.state if m.message in _TAKING_PART else m.message or m.state for m in absent]
            details = list_some(f"{m.name} {what}" for m, what in zip(absent, doing, strict=True))
            status = status.with_condition("PodsReady", False, _WAITING, f"{text}; {details}", now)
        else:
            status = status.with_condition("PodsReady", True, "AllReady", text, now)
    floor = job.min_samples_per_second
    judged = view.phase == JobPhase.TRAINING and view.committed_steps >= _STEPS_BEFORE_JUDGING
    if floor and judged and view.samples_per_second > 0:  # zero: it was not measured
        met = view.samples_per_second >= floor
        text = f"{view.samples_per_second:,.0f} samples/s, the floor is {floor:,.0f}"
        status = status.with_condition("ThroughputMet", met, "AboveFloor" if met else "BelowFloor", text, now)
    return status


def _unreachable(silence: str) -> PodProblem:
    text = (
        f"the kubelet reaches the coordinator, the operator does not ({silence}): let the operator reach port 7400 "
        "of the job's pods (is there a NetworkPolicy, a proxy or a service mesh between them?); training continues, "
        "but units, batch sizes and the reported progress stay as they are"
    )
    return PodProblem("CoordinatorUnreachable", text)


def _tell_problems(troubled: Sequence[ProcessView], status: Status, now: float) -> Status:
    """Report the pod that does not start, and why: the coordinator, a profiler or a member."""
    before = status.condition("PodsReady")
    problems = [p.problem for p in sorted(troubled, key=lambda p: p.name) if p.problem is not None]
    if not problems:
        solved = before.status == "False" and before.reason not in _NO_PROBLEMS
        return status.with_condition("PodsReady", None, "Starting", "pods are starting", now) if solved else status
    # What was told stays told as long as it holds: problems that take turns would be news each time.
    problem = next((p for p in problems if p.reason == before.reason), problems[0])
    others = f" (and {len(problems) - 1} more pods do not start)" if len(problems) > 1 else ""
    return status.with_condition("PodsReady", False, problem.reason, problem.message + others, now)


def observe_resume(observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Say once per incarnation from which step training goes on; the coordinator may go on before the next turn."""
    view = observed.coordinator
    if view is None or view.phase in (JobPhase.PROFILING, JobPhase.STARTING):
        return status, ()
    step = view.document.get("resumedFromStep")
    if step is None or status.resumed_incarnation >= status.incarnation:
        return status, ()
    event = Event("Normal", "Resumed", f"resuming from step {step} of {view.total_steps}", observed.time)
    if step == 0:  # the only checkpoint of step 0 is that of another job's model
        event = replace(event, reason="ModelImported", message="beginning with the model of spec.model.initFrom")
    return replace(status, resumed_incarnation=status.incarnation), (event,)


def relay_warnings(observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Tell people once what the coordinator warns of: a damaged or failed checkpoint, a member that was lost.

    A job relays at most `_MOST_WARNINGS` in `_WARNINGS_SECONDS`, the newest of each answer: the coordinator is the
    user's program, and each warning costs the API server an object. One event tells of each gap.
    """
    view = observed.coordinator
    if view is None:
        return status, ()
    news = _unheard(view.document.get("events") or (), status.heard)
    if not news:
        return status, ()
    now, relayed = observed.time, status.relayed
    if not relayed.since <= now < relayed.since + _WARNINGS_SECONDS:
        relayed = Relayed(since=now)
    told = (view.error or {}).get("reason")  # why the job ends is said once, with the job's own condition
    # By the clock of the coordinator's node, which may be wrong.
    ahead = float(view.document.get("time", now)) - now
    ahead = ahead if abs(ahead) > _CLOCKS_AGREE_SECONDS else 0.0
    warnings = [
        Event("Warning", str(e["reason"]), str(e["message"]), float(e["time"]) - ahead)
        for e in news
        if e["type"] == "Warning" and e["reason"] != told
    ]
    dropped = max(0, len(warnings) - (_MOST_WARNINGS - relayed.warnings))
    kept = warnings[dropped:]
    if dropped and not relayed.dropped:
        text = f"the coordinator reports more than {_MOST_WARNINGS} warnings in {_WARNINGS_SECONDS / 60:g} minutes"
        text = f"{text}; {dropped} of them, and those that follow, are only in its log"
        kept.append(Event("Warning", "WarningsDropped", text, now))
    relayed = Relayed(relayed.since, relayed.warnings + len(warnings) - dropped, relayed.dropped + dropped)
    return replace(status, heard=float(news[-1]["time"]), relayed=relayed), tuple(kept)


def _unheard(events: Sequence[Json], heard: float) -> Sequence[Json]:
    """Return what follows the event of this time; all, if it is not there: another coordinator tells them.

    Later times would not do: a coordinator may come after one whose clock was ahead.
    """
    known = [place for place, event in enumerate(events) if float(event["time"]) == heard]
    return events[known[-1] + 1 :] if known else events


def warn_of_machine(job: JobSpec, before: Status, after: Status, now: float) -> tuple[Event, ...]:
    """Say once of each plan that this machine has not the cores for it."""
    if after.plan is None or after.plan_revision == before.plan_revision:
        return ()
    plan = after.plan
    text = describe_shortage(plan.machine, plan.throughput, job.min_samples_per_second)
    return (Event("Warning", "MachineTooSmall", text, now),) if text else ()


def news(before: Status, after: Status, observed: Observed) -> tuple[Event, ...]:
    """Events for the conditions that changed with this decision."""
    events: list[Event] = []
    for kind in CONDITION_TYPES if after.conditions != before.conditions else ():
        old, new = before.condition(kind), after.condition(kind)
        waiting = kind == "PodsReady" and new.reason == _WAITING
        problem = kind == "PodsReady" and new.status == "False" and not waiting
        changed = new.status != old.status or (kind in _REPEATED and new.message != old.message)
        changed = changed or (problem and new.reason != old.reason)
        # That a job has not failed, succeeded or been suspended is no news; nor that members are not ready at once.
        denial = new.status == "False" and (kind in _ENDS or (waiting and old.status == "Unknown"))
        if changed and new.status != "Unknown" and not denial:
            bad = new.status == "False" or kind == "Failed"
            event = Event("Warning" if bad else "Normal", new.reason, new.message, observed.time)
            if event not in events:  # that there is no plan is also why the job has failed
                events.append(event)
    if after.phase == Phase.PROFILING and before.phase != Phase.PROFILING:
        events.append(Event("Normal", "ProfilingStarted", "measuring the model's layers on every pool", observed.time))
    return tuple(events)
