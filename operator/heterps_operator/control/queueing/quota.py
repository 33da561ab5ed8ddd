"""The quota of a queue, such as Kueue's: what a job asks for, what it may start, what it gives back. Pure.

A job in a queue is planned as if there were no other jobs: the queue decides whose turn it is, and may evict a job of
lower priority for it. It asks for all processes that have to run together: the coordinator with the profilers, later
the coordinator with the members of its plan. It starts them when the queue has admitted the request and the pools have
the units; until then it holds none. Workers that a later plan adds are a request of their own, so the others go on
meanwhile.

The queue may want its quota back, for a job of higher priority say. Then the job saves a checkpoint, ends its
processes, and asks again. Quota is given back when the processes have ended, so a queue never counts less than what
runs, and every request is gone when the job has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.members import COORDINATOR, members
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.values import (
    Action,
    Observed,
    ProcessSpec,
    ProcessView,
    QuotaRequest,
    ReclaimQuota,
    RequestQuota,
    ReturnQuota,
)

__all__ = [
    "WAITING_FOR_CAPACITY",
    "WAITING_FOR_QUOTA",
    "ask_for_all",
    "ask_for_more",
    "covered",
    "give_back",
    "judge_eviction",
    "without_others",
]

# Reasons of conditions.
WAITING_FOR_CAPACITY = "WaitingForCapacity"  # other jobs hold the units
WAITING_FOR_QUOTA = "WaitingForQuota"

_PLAN, _PROFILE = "plan", "profile"


def judge_eviction(observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Stop a job of which processes run without quota, to continue when the queue admits it again.

    Args:
        observed: what is the case.
        status: of a job that neither stops nor ends.

    Returns:
        The status, with `moving` set if the job stops; and an event.
    """
    if observed.quota is None:
        return status, ()
    granted = _granted(observed.quota, status.incarnation)
    running = [p for p in _running(observed, status.incarnation) if not p.stopping]
    bare = [p.name for p in running if p.name not in granted]
    if not bare:
        return status, ()
    evicted = [r for r in observed.quota if r.evicted and _incarnation(r) == status.incarnation]
    why = evicted[0].message if evicted else f"no request for quota covers {', '.join(bare)} any more"
    text = f"the queue wants its quota back: {why}"
    status = replace(status, moving=text, stopping_since=observed.time).with_phase(Phase.STOPPING, observed.time)
    told = f"{text}; the job saves a checkpoint, and continues when the queue admits it again"
    return status, (Event("Normal", "QuotaWithdrawn", told, observed.time),)


def without_others(observed: Observed) -> Observed:
    """Return what a job is planned with: in a queue, the units of other jobs too."""
    if observed.quota is None:
        return observed
    capacity = observed.capacity
    return replace(observed, capacity=replace(capacity, free_units=capacity.most_units, holders={}))


def covered(observed: Observed, status: Status, process: str) -> bool:
    """Whether a process of the present incarnation may run."""
    return observed.quota is None or process in _granted(observed.quota, status.incarnation)


def ask_for_all(
    observed: Observed, status: Status, specs: Sequence[ProcessSpec], in_use: str = ""
) -> tuple[Status, bool, tuple[Action, ...]]:
    """Ask for the quota of processes that start together: those of a plan, if there is one, or of its measurement.

    Args:
        observed: what is the case.
        status: of a job that goes forward.
        specs: the processes.
        in_use: why their units cannot be had, although the queue may admit them; empty: they can.

    Returns:
        The status, which tells why the job waits; whether the processes may start; and the request.
    """
    if observed.quota is None:
        return status, True, ()
    name, now = f"{_PROFILE if status.plan is None else _PLAN}-{status.incarnation}", observed.time
    found = _named(observed.quota, name)
    started = any(p.name != COORDINATOR and p.name in found.processes for p in _running(observed, status.incarnation))
    if found.grants and (started or found.processes >= {spec.name for spec in specs}):
        if in_use and not started:
            status = replace(status, queued=True).with_phase(Phase.PENDING, now)
            return status.with_condition("PodsReady", False, WAITING_FOR_CAPACITY, in_use, now), False, ()
        if status.queued:
            status = replace(status, queued=False, admitted=now)
            status = status.with_condition("PodsReady", None, "Admitted", "the queue has admitted the job", now)
        return status, True, ()
    actions: tuple[Action, ...] = ()
    # An eviction before anything was started: the request queues again if it is made again.
    if not found.name or found.processes != {spec.name for spec in specs} or found.evicted:
        actions = (RequestQuota(name, tuple(specs), not any(request.inactive for request in observed.quota)),)
    status = replace(status, queued=True).with_phase(Phase.PENDING, now)
    before = status.condition("PodsReady")
    if found.message:
        status = status.with_condition("PodsReady", False, WAITING_FOR_QUOTA, found.message, now)
    elif before.reason != WAITING_FOR_QUOTA:
        text = "the queue has not considered the job yet"
        status = status.with_condition("PodsReady", None, WAITING_FOR_QUOTA, text, now)
    return status, False, actions


def ask_for_more(observed: Observed, status: Status, specs: Sequence[ProcessSpec]) -> tuple[Action, ...]:
    """Ask for the quota of processes that a later plan has added to those that run.

    Args:
        observed: what is the case.
        status: of a job whose first request was admitted.
        specs: all processes of its plan.
    """
    if observed.quota is None:
        return ()
    name = f"{_PLAN}-{status.incarnation}-{status.plan_revision}"
    known = {process for request in _of_plan(observed.quota, status.incarnation) for process in request.processes}
    added = tuple(spec for spec in specs if spec.name not in known)
    return (RequestQuota(name, added),) if added else ()


def give_back(job: JobSpec, observed: Observed, status: Status) -> tuple[Action, ...]:
    """Give back the quota of processes that have ended and are not started again.

    Args:
        job: what is wanted.
        observed: what is the case.
        status: after this turn's decision.
    """
    requests = observed.quota or ()
    if not requests:
        return ()
    goes_on = status.outcome is None and status.stopping_since is None and not status.final
    wanted: set[str] = set()
    if goes_on and status.plan is not None:
        wanted = {COORDINATOR, *(spec.name for spec in members(job, status.plan))}
    actions: list[Action] = []
    for request in requests:
        kind, current = request.name.partition("-")[0], _incarnation(request) == status.incarnation
        if goes_on and current and kind == _PROFILE and status.plan is None:
            continue
        if goes_on and request.inactive and not any(_incarnation(r) == status.incarnation for r in requests):
            continue  # the next request must know that it is not to be considered
        others = tuple(other for other in requests if other != request)
        elsewhere = _granted(others, _incarnation(request)) if kind == _PROFILE else frozenset()
        used = {p.name for p in _running(observed, _incarnation(request))} & request.processes - elsewhere
        if goes_on and current and kind == _PLAN:
            used |= wanted & request.processes
        if not used:
            actions.append(ReturnQuota(request.name))
        elif request.reserved and used < request.processes and kind == _PLAN:
            actions.append(ReclaimQuota(request.name, request.processes - used))
    return tuple(actions)


# --- requests ---------------------------------------------------------------------------------------------------------


def _granted(requests: Sequence[QuotaRequest], incarnation: int | None) -> frozenset[str]:
    """Names of the processes of an incarnation that may run."""
    mine = (r for r in requests if r.grants and _incarnation(r) == incarnation)
    return frozenset(process for request in mine for process in request.processes)


def _of_plan(requests: Sequence[QuotaRequest], incarnation: int) -> list[QuotaRequest]:
    return [r for r in requests if r.name.startswith(f"{_PLAN}-") and _incarnation(r) == incarnation]


def _named(requests: Sequence[QuotaRequest], name: str) -> QuotaRequest:
    """The request of that name; one without a name if there is none."""
    return next((request for request in requests if request.name == name), QuotaRequest(""))


def _incarnation(request: QuotaRequest) -> int | None:
    """The incarnation that a request is for; None: another program made it."""
    parts = request.name.split("-")
    known = parts[0] in (_PLAN, _PROFILE) and len(parts) > 1 and parts[1].isdecimal()
    return int(parts[1]) if known else None


def _running(observed: Observed, incarnation: int | None) -> list[ProcessView]:
    return [p for p in observed.processes if p.running and p.spec.incarnation == incarnation]
