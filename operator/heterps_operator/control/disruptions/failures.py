"""The failure policy: which death costs what.

The first rule of `runPolicy.failurePolicy` that fits decides; without one:

- A process that says its input is bad (EXIT_BAD_INPUT) fails the job at once: starting it again cannot help.
- What a cluster took away (deleted, evicted, preempted, its node lost) is started again and counts nothing, however
  often; but at most once a minute in the long run.
- A worker, server or profiler that dies is started again alone. A server takes rows with it, so all members return to
  the last checkpoint, in their own processes.
- The coordinator takes the agreement on the state with it: everything ends and starts again from that checkpoint.
- A job that others end in order (SIGTERM to its coordinator or a server, by an eviction for example) has saved a
  checkpoint, and starts again from it. That counts nothing either.
- A job without progress, although all its members are connected, starts again from the last checkpoint, too.
- Each death or hang counts; one more than backoffLimit fails the job, with the last words of the process. The first
  restart is immediate. Pauses double while the job dies before it has passed the step at which it died last.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import replace

from heterps_operator.api.job import FailureAction, JobSpec, RunPolicy
from heterps_operator.control.members import COORDINATOR
from heterps_operator.formatting import list_some
from heterps_operator.state.status import Event, Failure, Phase, Status
from heterps_operator.state.throughput import ThroughputSeries
from heterps_operator.state.values import CoordinatorView, Observed, ProcessView
from heterps_planner.balancing import Pace
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, FINAL_PHASES, JobPhase, Role

__all__ = ["backoff_seconds", "describe_end", "describe_exit", "is_current", "judge_exits", "start_over"]

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_MOST_TOLD = 16  # restarts of one turn, each with an event of its own
_QUIET_SECONDS = 600.0  # without a death that does not count: then the next pause is the first again
_TAKEN_AWAY = frozenset({"Deleted", "Evicted", "NodeLost", "Preempted"})  # not the job's fault
_REASONS = {
    "Deleted": "its pod was deleted by another client",
    "Evicted": "its node evicted it",
    "NodeLost": "its node was lost",
    "Preempted": "a pod of higher priority took its place",
    "StartError": "its container could not start",
}
# Phases in which a member may end in order: its part is done, and the coordinator writes the model. An evaluation takes
# a worker of each stage, so one that was told to end meanwhile is started again.
_MAY_LEAVE = frozenset({JobPhase.EXPORTING, *FINAL_PHASES})


def backoff_seconds(failures: int) -> float:
    """Pause before the next start after so many failures in a row (>= 1)."""
    return _doubled(failures - 1) if failures > 1 else 0.0


def _doubled(count: int) -> float:
    """The pause of this number (>= 1), each twice as long as the one before."""
    pause: float = min(_FIRST_PAUSE_SECONDS * 2.0 ** (count - 1), _LONGEST_PAUSE_SECONDS)
    return pause


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "no exit code is known"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does this when memory runs out)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def is_current(process: ProcessView, status: Status) -> bool:
    """Whether a process is the one that should be there now, not an earlier attempt."""
    attempt = status.attempts.get(process.name, 1)
    return process.spec.incarnation == status.incarnation and process.spec.attempt == attempt


def describe_end(process: ProcessView, job: JobSpec) -> str:
    """How a process ended, in words, with the way out where there is one."""
    if process.reason == "OOMKilled":
        return f"out of memory; raise {_memory_limit(process, job)}"
    words = _REASONS.get(process.reason)
    if words is None:
        return describe_exit(process.exit_code)
    return words if process.exit_code is None else f"{words}, {describe_exit(process.exit_code)}"


def judge_exits(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Count the deaths that were not counted yet and decide their consequence.

    Returns:
        The status with `outcome` and `failure` set (the job fails), `incarnation` raised (everything starts again), or
        single `attempts` raised (a process is replaced); and what to tell people.
    """
    view = observed.coordinator
    if view is not None and view.hung:
        return _judge_hang(job, observed, status, view)
    coordinator = observed.process(COORDINATOR)
    current = coordinator is not None and is_current(coordinator, status)  # not if the job has just started over
    if view is not None and view.phase == JobPhase.STOPPED and current:
        return _judge_interruption(job, observed, status)
    wanted = frozenset(() if status.plan is None else status.plan.members)
    dead = [p for p in observed.processes if _died(p, observed, status) and not _dropped(p, status, wanted)]
    if not dead:
        return status, ()
    actions = {p.name: _action(p, job.run_policy) for p in dead}
    # The cause goes first: a death that fails the job explains the others; then the earliest.
    dead.sort(key=lambda p: (actions[p.name] != FailureAction.FAIL_JOB, p.ended or 0.0, p.name))
    first = dead[0]
    if actions[first.name] == FailureAction.FAIL_JOB:
        return _refuse(first, job, status, observed.time), ()
    fatal = [p for p in dead if p.spec.role == "coordinator" or actions[p.name] == FailureAction.RESTART_JOB]
    events: list[Event] = []
    attempts, not_before, restarts = dict(status.attempts), dict(status.not_before), dict(status.restarts)
    for process in fatal[:1] or dead:
        name, end = process.name, describe_end(process, job)
        if actions[name] == FailureAction.IGNORE:
            status, pause = _excuse(status, observed.time)
        elif status.failures >= job.run_policy.backoff_limit:
            status = replace(status, restarts=restarts)
            return _give_up(job, status, f"{name} ended ({end})", process, observed.time), tuple(events)
        else:
            status, pause = _count(status)
        restarts[name] = restarts.get(name, 0) + 1
        uncounted = "; this does not count towards backoffLimit" if actions[name] == FailureAction.IGNORE else ""
        if fatal:
            status = start_over(replace(status, restarts=restarts), observed.time, pause)
            text = f"{name} ended ({end}): everything restarts from the last checkpoint {_when(pause)}{uncounted}"
            events.append(Event("Warning", "JobRestarts", text, observed.time))
        else:
            attempts[name] = process.spec.attempt + 1
            not_before[name] = observed.time + pause
            text = f"{name} ended ({end}): it restarts {_when(pause)}{uncounted}"
            events.append(Event("Warning", "ProcessRestarts", text, observed.time))
    if not fatal:
        status = replace(status, attempts=attempts, not_before=not_before, restarts=restarts)
    if (more := len(events) - _MOST_TOLD) > 0:
        text = f"{more:,} more processes ended in the same turn of the operator, and restart"
        events[_MOST_TOLD:] = [Event("Warning", "ProcessRestarts", text, observed.time)]
    return status, tuple(events)


def _judge_hang(
    job: JobSpec, observed: Observed, status: Status, view: CoordinatorView
) -> tuple[Status, tuple[Event, ...]]:
    """Count a hang, and start over."""
    now, why = observed.time, str((view.error or {}).get("message") or "no progress")
    if status.failures >= job.run_policy.backoff_limit:
        return _give_up(job, status, why, observed.process(COORDINATOR), now), ()
    status, pause = _count(status)
    text = f"{why}: everything restarts from the last checkpoint {_when(pause)}"
    return start_over(status, now, pause), (Event("Warning", "JobRestarts", text, now),)


def _judge_interruption(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Start a job over that others have ended in order, unless a rule says otherwise."""
    taken = [p for p in observed.processes if p.reason in _TAKEN_AWAY and is_current(p, status)]
    for process in taken:
        if _action(process, job.run_policy) == FailureAction.FAIL_JOB:
            return _refuse(process, job, status, observed.time), ()
    why = list_some(f"{p.name} ends ({_REASONS[p.reason]})" for p in taken) or "a process was told to end"
    status, pause = _excuse(status, observed.time)
    text = f"{why}: the job has saved a checkpoint, and continues from it {_when(pause)}; this does not count"
    event = Event("Normal", "JobMoves", f"{text} towards backoffLimit", observed.time)
    return start_over(status, observed.time, pause), (event,)


def _action(process: ProcessView, policy: RunPolicy) -> FailureAction:
    """Return what the end of a process leads to."""
    for rule in policy.failure_rules:
        if rule.role in (None, process.spec.role) and (
            _shell_code(process) in rule.exit_codes or process.reason in rule.reasons
        ):
            return rule.action
    if process.exit_code == EXIT_BAD_INPUT:
        return FailureAction.FAIL_JOB
    taken = process.reason in _TAKEN_AWAY or process.exit_code == EXIT_INTERRUPTED
    return FailureAction.IGNORE if taken else FailureAction.RESTART_POD


def _shell_code(process: ProcessView) -> int | None:
    """The exit code as a shell and Kubernetes have it: 128 + the number of a signal."""
    code = process.exit_code
    return code if code is None or code >= 0 else 128 - code


def _count(status: Status) -> tuple[Status, float]:
    """Count a failure, and find the pause before the next start.

    Failures are in a row as long as training has not passed the step at which it failed before.
    """
    step = int((status.result or {}).get("committedSteps") or 0)
    in_a_row = 1 if step > status.failed_at_step else status.failures_in_a_row + 1
    status = replace(
        status,
        failures=status.failures + 1,
        failures_in_a_row=in_a_row,
        failed_at_step=max(step, status.failed_at_step),
    )
    return status, backoff_seconds(in_a_row)


def _when(pause: float) -> str:
    return f"in {pause:g} s" if pause else "now"


def _excuse(status: Status, now: float) -> tuple[Status, float]:
    """Take note of a death that does not count, and find the pause before the next start.

    Those of one burst, a node's pods say, share one pause. Pauses double while one burst follows the other.
    """
    count, since = status.disruptions, now - status.disrupted
    if count == 0 or since > _QUIET_SECONDS:
        count = 1
    elif since > _doubled(count):
        count += 1
    else:
        return status, _doubled(count)
    return replace(status, disruptions=count, disrupted=now), _doubled(count)


def start_over(status: Status, now: float, pause: float) -> Status:
    """The status of a job whose processes all end, and start again from the last checkpoint after a pause."""
    return replace(
        status,
        incarnation=status.incarnation + 1,
        attempts={},
        not_before={"": now + pause},
        last_observation=None,
        review=None,
        reviewed=None,
        pace=Pace(),
        series=ThroughputSeries(),
        speeds={},
    ).with_phase(Phase.RESTARTING, now)


def _refuse(process: ProcessView, job: JobSpec, status: Status, now: float) -> Status:
    """The job fails at once, by wrong input or by a rule."""
    if process.exit_code == EXIT_BAD_INPUT:
        message = process.last_lines[-1] if process.last_lines else f"{process.name} refused its input"
        return _fail(status, "BadInput", message, process, now)
    message = f"{process.name} ended ({describe_end(process, job)}); a rule of runPolicy.failurePolicy fails the job"
    return _fail(status, "FailurePolicy", message, process, now)


def _memory_limit(process: ProcessView, job: JobSpec) -> str:
    """The field that bounds the memory of a process."""
    pool = next((pool for pool in job.pools if pool.name == process.spec.pool), None)
    by_pool = pool is not None and pool.device_type == "CPU" and pool.memory_bytes_per_pod is not None
    if process.spec.role == "ps" and (job.server_memory_bytes is not None or not by_pool):
        return "spec.parameterServer.memoryLimit"
    if by_pool and process.spec.role in ("ps", "worker"):
        return f"spec.memoryPerUnit of DevicePool {process.spec.pool}"
    template = {"coordinator": "coordinator", "worker": "worker", "profile": "profiler"}[process.spec.role]
    return f"the memory limit of container heterps in spec.podTemplates.{template}"


def _died(process: ProcessView, observed: Observed, status: Status) -> bool:
    """Whether a process has ended that should not have."""
    if process.running or not is_current(process, status):
        return False
    if process.spec.role == "profile":
        # Its result counts, not its exit; only the coordinator's answer shows whether it arrived.
        pool = process.spec.pool
        done = any(name == pool for name in observed.profiles)
        return not done and (process.exit_code != EXIT_OK or observed.coordinator is not None)
    phase = observed.coordinator.phase if observed.coordinator is not None else None
    if process.name == COORDINATOR:
        return True
    return not (process.exit_code in (EXIT_OK, EXIT_INTERRUPTED) and phase in _MAY_LEAVE)


def _dropped(process: ProcessView, status: Status, wanted: Collection[str]) -> bool:
    """Whether a later plan, with the members that are `wanted`, has no more use for this worker or server."""
    if status.plan is None or process.spec.role not in (Role.WORKER, Role.PS):
        return False
    return process.name not in wanted


def _give_up(job: JobSpec, status: Status, what: str, process: ProcessView | None, now: float) -> Status:
    """Fail a job that has used up its restarts."""
    limit = job.run_policy.backoff_limit
    message = f"{what}; the limit of {limit} restarts (runPolicy.backoffLimit) is exhausted"
    return _fail(replace(status, failures=status.failures + 1), "BackoffLimitExceeded", message, process, now)


def _fail(status: Status, reason: str, message: str, process: ProcessView | None, now: float) -> Status:
    failure = Failure(reason, message)
    if process is not None:
        failure = Failure(reason, message, process.name, process.exit_code, process.last_lines, process.log)
    return replace(status, outcome=Phase.FAILED, outcome_since=now, failure=failure)
