"""Processes that run but do not take part: stopped, hung, or cut off from the coordinator.

A member that is silent for a short time comes back by itself: the coordinator asks it to join again. One that stays
away is ended here, and its end is then judged like any other death (failures.py): it is restarted, and that counts to
backoffLimit.
"""

from __future__ import annotations

from heterps_operator.api.job import JobSpec
from heterps_operator.control.members import COORDINATOR
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView, Observed, ProcessView
from heterps_runtime.contract import JobPhase

__all__ = ["silent_coordinator", "unresponsive"]

# The coordinator counts a member as lost after 20 s. The rest of this time is for those that come back.
_SILENCE_SECONDS = 45.0
_AT_WORK = frozenset({JobPhase.STARTING, JobPhase.TRAINING, JobPhase.EVALUATING})


def unresponsive(job: JobSpec, observed: Observed, status: Status) -> dict[str, str]:
    """Processes that must be ended so that they can be restarted.

    Returns:
        Why, for people, by the name of the process.
    """
    silent = silent_coordinator(job, observed)
    if silent is not None and not silent.ready:
        limit = job.run_policy.hang_timeout_seconds
        return {COORDINATOR: f"has not answered for {limit:g} s (runPolicy.hangTimeoutSeconds)"}
    view = observed.coordinator
    if view is None or view.phase not in _AT_WORK or status.plan is None:
        return {}
    found = {}
    for process in observed.processes:
        if (
            process.running
            and not process.stopping
            and process.spec.incarnation == status.incarnation
            and process.begun is not None  # a pod that waits to start is no process yet
            and process.problem is None  # its pod or node is known to be in trouble, and that has its own rules
        ):
            why = _absence(job, process, view, observed.time)
            if why:
                found[process.name] = why
    return found


def silent_coordinator(job: JobSpec, observed: Observed) -> ProcessView | None:
    """The coordinator, if it runs but has not answered within hangTimeoutSeconds, and was not told to end.

    How long it may take until it runs is said by startDeadlineSeconds. It hangs only if its node does not find it ready
    either (`ProcessView.ready`): else something is between it and the controller, and training goes on.
    """
    process = observed.process(COORDINATOR)
    if process is None or not process.running or process.stopping or observed.coordinator is not None:
        return None
    if process.begun is None:
        return None
    since = max(process.started, process.begun, observed.last_contact or 0.0)
    return process if observed.time - since > job.run_policy.hang_timeout_seconds else None


def _absence(job: JobSpec, process: ProcessView, view: CoordinatorView, now: float) -> str:
    """Why a member must be ended; empty: it takes part, or has time left to."""
    member = view.member(process.name)
    if member is None:  # a profiler, or a worker that the plan has dropped
        return ""
    age = now - max(process.started, process.begun or 0.0)
    silent = member.silent_seconds
    if silent is None or silent > age:  # this process was never heard from, only one that it replaces
        limit = job.run_policy.hang_timeout_seconds
        text = f"was never heard from in {limit:g} s (runPolicy.hangTimeoutSeconds)"
        return text if age > limit else ""
    if silent > _SILENCE_SECONDS:
        return f"has not been heard from for {_SILENCE_SECONDS:g} s"
    deadline = job.run_policy.start_deadline_seconds
    if member.state == "absent" and deadline is not None and age > deadline:
        return f"has not joined within {deadline:g} s (runPolicy.startDeadlineSeconds)"
    return ""
