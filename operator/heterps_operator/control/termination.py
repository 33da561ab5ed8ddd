"""How a job ends: when, and in which order its processes do.

The coordinator ends its members in an orderly way after success, an orderly stop or a failure that it found itself;
then the controller only waits, and helps those that do not end. In every other case the controller ends the members.
The coordinator is ended last, so that it can be asked until nothing is left to ask about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions.failures import start_over
from heterps_operator.control.members import COORDINATOR
from heterps_operator.control.transition import BEGINS_AGAIN, resumes
from heterps_operator.control.tuning.elasticity import stranded
from heterps_operator.formatting import list_some
from heterps_operator.state.offers import Offer
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Failure, Phase, Status
from heterps_operator.state.values import Action, FailJob, Observed, RequestStop, Shutdown, StopProcess, plan_request
from heterps_runtime.contract import BEGUN_PHASES, EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, JobPhase

__all__ = ["Aftermath", "after_end", "judge", "orderly_stop", "wind_down"]

_MEMBER_GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
_MEMBERS_LEAVE_SECONDS = 10.0  # for members that the coordinator told to end
_COORDINATOR_LEAVES_SECONDS = 5.0  # after it was asked to
_STOP_SECONDS = 120.0  # for the checkpoint of an orderly stop
_SILENCE_SECONDS = 15.0  # of a coordinator that was to stop in order
_GATED = "SchedulingGated"  # as the API server says of pods with scheduling gates


def judge(job: JobSpec, observed: Observed, status: Status) -> Status:
    """Find out whether the job has ended or must end, for any reason but a process's death.

    Returns:
        The status with `outcome` set if the job ends now, or `stopping_since` if it is to be stopped in order.
    """
    now, view, policy = observed.time, observed.coordinator, job.run_policy
    suspended = observed.stop_requested or policy.suspend
    if suspended:
        status = replace(status, moving="", offer=None)
    if view is not None:
        status = replace(status, result=view.document)
        if view.phase == JobPhase.SUCCEEDED:
            return _end(status, Phase.SUCCEEDED, now, orderly=True)
        if view.phase == JobPhase.STOPPED and (suspended or status.stopping_since is not None):
            return _stopped(status, observed, orderly=True)  # otherwise it was told by others: see `failures`
        if view.phase == JobPhase.FAILED and not view.hung:
            error = view.error or {}
            failure = Failure(
                str(error.get("reason") or "Unknown"), str(error.get("message") or "the coordinator gave no reason")
            )
            return replace(_end(status, Phase.FAILED, now, orderly=True), failure=failure)
    refusal = observed.refused.get(plan_request(status.plan_revision))
    if refusal is not None:
        return _failed(status, "PlanRefused", refusal, now)
    if status.stopping_since is None and (why := stranded(job, observed, status)):
        status = status.with_condition("Planned", False, "PoolShrunk", why, now)
        return _begin_stop(observed, status)
    if suspended or status.stopping_since is not None:
        return _begin_stop(observed, status)
    assert status.started is not None
    limit = policy.active_deadline_seconds
    if limit is not None and now - status.started > limit:
        text = f"the job ran for more than {limit:g} s (runPolicy.activeDeadlineSeconds)"
        return _failed(status, "ActiveDeadlineExceeded", text, now)
    status = _with_queue(status, observed)
    limit = policy.start_deadline_seconds
    began = max(status.phase_since, status.admitted)
    starting = status.phase in (Phase.PROFILING, Phase.STARTING) and not status.queued
    if limit is not None and starting and now - began > limit:
        absent = [m for m in view.members if m.state != "ready"] if view is not None else []
        detail = list_some(f"{m.name} ({m.message or m.state})" for m in absent)
        text = f"{status.phase} took more than {limit:g} s (runPolicy.startDeadlineSeconds)"
        return _failed(status, "StartDeadlineExceeded", f"{text}; not ready: {detail}" if detail else text, now)
    return status


def _with_queue(status: Status, observed: Observed) -> Status:
    """Note whether scheduling gates hold pods back: that time does not count towards startDeadlineSeconds."""
    if observed.quota is not None:
        return status  # no pod is created before the queue admits the job
    queued = any(p.running and p.problem is not None and p.problem.reason == _GATED for p in observed.processes)
    if queued == status.queued:
        return status
    return replace(status, queued=queued, admitted=status.admitted if queued else observed.time)


def _begin_stop(observed: Observed, status: Status) -> Status:
    """Stop in order if there is progress to keep, at once if there is none."""
    now, view = observed.time, observed.coordinator
    if status.stopping_since is None:
        status = replace(status, stopping_since=now).with_phase(Phase.STOPPING, now)
    assert status.stopping_since is not None
    process = observed.process(COORDINATOR)
    if process is not None and process.running and now - status.stopping_since <= _STOP_SECONDS:
        contact = observed.last_contact
        if contact is None and (status.result or {}).get("phase") in BEGUN_PHASES:
            contact = status.stopping_since  # a controller that came later has not heard it yet
        if view is not None and view.phase in BEGUN_PHASES:
            return status
        if view is None and contact is not None and now - contact <= _SILENCE_SECONDS:
            return status  # busy for a moment, perhaps with the very checkpoint
    return _stopped(status, observed, orderly=False)


def _stopped(status: Status, observed: Observed, *, orderly: bool) -> Status:
    """What follows an orderly stop: a job that only leaves its nodes starts over, another one is suspended."""
    if status.moving:
        moved = replace(status, moving="", stopping_since=None, offer=None)
        if status.offer is not None:
            moved = _with_offer(moved, status.offer, observed.time)
        return start_over(moved, observed.time, 0.0)
    return _end(status, Phase.SUSPENDED, observed.time, orderly=orderly)


def _with_offer(status: Status, offer: Offer, now: float) -> Status:
    """The status of a job that stopped in order to continue with a cheaper plan."""
    plan, revision = JobPlan.from_json(offer.plan), status.plan_revision + 1
    text = f"plan {revision} by {plan.method}: {plan.summary}"
    status = replace(status, plan=plan, plan_revision=revision, plan_reason="Replanned")
    return replace(status, planned_with={}, possible=False).with_condition("Planned", True, "Replanned", text, now)


def orderly_stop(observed: Observed, status: Status) -> tuple[Status, tuple[Action, ...]]:
    """Ask the coordinator for a checkpoint and the end; `judge` sees when it has happened."""
    wanted = observed.coordinator is not None and "stop" not in observed.accepted
    return status, (RequestStop(),) if wanted else ()


def wind_down(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Action, ...]]:
    """End what still runs, the coordinator last; when nothing runs the job is in its final phase."""
    now, view = observed.time, observed.coordinator
    status = _with_last_words(_conclude(status, now), observed)
    running = [p for p in observed.processes if p.running]
    others = [p for p in running if p.name != COORDINATOR]
    if not running:
        assert status.outcome is not None
        return replace(status.with_phase(status.outcome, now), finished=now), ()
    status = status.with_phase(Phase.STOPPING, now)
    if others:
        actions: tuple[Action, ...] = ()
        failure = status.failure
        if failure is not None and view is not None and not view.final and "fail" not in observed.accepted:
            actions = (FailJob(failure.reason, failure.message),)
        if not status.orderly or now - status.outcome_since > _MEMBERS_LEAVE_SECONDS:
            actions += tuple(StopProcess(p.name, _MEMBER_GRACE_SECONDS) for p in others if not p.stopping)
        return status, actions
    if status.members_ended is None:
        status = replace(status, members_ended=now)
    assert status.members_ended is not None
    if view is not None and "shutdown" not in observed.accepted:
        return status, (Shutdown(),)
    late = now - status.members_ended > _COORDINATOR_LEAVES_SECONDS
    if (view is None and "shutdown" not in observed.accepted) or late:
        return status, tuple(StopProcess(p.name, _MEMBER_GRACE_SECONDS) for p in running if not p.stopping)
    return status, ()


def _conclude(status: Status, now: float) -> Status:
    """Set the conditions that sum the job up."""
    match status.outcome:
        case Phase.SUCCEEDED:
            status = status.with_condition("Succeeded", True, "Trained", "the model is trained and exported", now)
            return status.with_condition("Failed", False, "Trained", "", now)
        case Phase.FAILED:
            assert status.failure is not None
            reason, message = status.failure.reason, status.failure.message
            status = status.with_condition("Failed", True, reason, message, now)
            return status.with_condition("Succeeded", False, reason, message, now)
        case Phase.SUSPENDED:
            text = "stopped with a checkpoint" if status.orderly else "stopped; nothing new was checkpointed"
            return status.with_condition("Suspended", True, "StopRequested", text, now)
    return status


def _with_last_words(status: Status, observed: Observed) -> Status:
    """Add the log of the process that failed by itself, if the coordinator ended the job: it knows the details.

    A process tells the coordinator what is wrong before it ends, so it may end some turns later.
    """
    failure = status.failure
    if failure is None or failure.member or not status.orderly:
        return status
    ended = [
        p
        for p in observed.processes
        if not p.running and not p.stopping and p.exit_code not in (EXIT_OK, EXIT_INTERRUPTED)
    ]
    if not ended:
        return status
    # A process that found bad input knows the cause; otherwise the first that ended.
    first = min(ended, key=lambda p: (p.exit_code != EXIT_BAD_INPUT, p.ended or 0.0, p.name))
    words = replace(failure, member=first.name, exit_code=first.exit_code, last_lines=first.last_lines, log=first.log)
    return replace(status, failure=words)


def _end(status: Status, outcome: Phase, now: float, *, orderly: bool) -> Status:
    return replace(status, outcome=outcome, outcome_since=now, orderly=orderly)


def _failed(status: Status, reason: str, message: str, now: float) -> Status:
    return replace(_end(status, Phase.FAILED, now, orderly=False), failure=Failure(reason, message))


@dataclass(frozen=True)
class Aftermath:
    """What to do about a job that has ended."""

    begins_again: bool = False  # its spec asks for training again
    deletes_pods: bool = False
    running_only: bool = True  # of `deletes_pods`: leave those that have ended, for their logs
    deletes_job: bool = False
    seconds: float | None = None  # until it has to be looked at again; None: when something changes


def after_end(job: JobSpec, status: Status, now: float) -> Aftermath:
    """Decide what becomes of a job in a final phase, by `runPolicy`.

    Args:
        job: what is wanted.
        status: of the last decision.
        now: Unix seconds.
    """
    policy = job.run_policy
    if status.phase in BEGINS_AGAIN and resumes(job):
        return Aftermath(begins_again=True, seconds=0.0)
    cleans = policy.clean_pod_policy != "None" and status.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED)
    seconds = None
    if policy.ttl_seconds_after_finished is not None and status.phase in (Phase.SUCCEEDED, Phase.FAILED):
        seconds = (status.finished or 0.0) + policy.ttl_seconds_after_finished - now
    expired = seconds is not None and seconds <= 0
    return Aftermath(
        deletes_pods=cleans,
        running_only=policy.clean_pod_policy != "All",
        deletes_job=expired,
        seconds=None if expired else seconds,
    )
