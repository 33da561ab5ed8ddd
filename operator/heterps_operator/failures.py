"""The failure policy: which death costs what.

- A process that says its input is bad (EXIT_BAD_INPUT) fails the job at once: starting it again cannot help.
- A worker or profiler that dies is started again, after a pause that doubles each time.
- A parameter server or the coordinator takes the state since the last checkpoint with it: everything ends and starts
  again from that checkpoint.
- Each death counts; one more than backoffLimit fails the job, with the last words of the process.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from heterps_operator.job import JobSpec
from heterps_operator.members import COORDINATOR, members
from heterps_operator.status import Event, Failure, Status
from heterps_operator.values import Observed, ProcessView
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, JobPhase, PlanDocument

__all__ = ["backoff_seconds", "current", "describe_exit", "is_current", "judge_exits"]

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# Phases in which a member may end by itself: its part is done, others still evaluate or write the model.
_MAY_LEAVE = frozenset({JobPhase.EVALUATING, JobPhase.EXPORTING, *JobPhase.FINAL})


def backoff_seconds(failures: int) -> float:
    """Pause before the next start after so many failures (>= 1)."""
    pause: float = min(_FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
    return pause


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "still running"
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


def current(observed: Observed, status: Status, name: str) -> ProcessView | None:
    """The process of this name, attempt and incarnation, running or ended."""
    process = observed.process(name)
    return process if process is not None and is_current(process, status) else None


def judge_exits(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Count the deaths that were not counted yet and decide their consequence.

    Returns:
        The status with `outcome` and `failure` set (the job fails), `incarnation` raised (everything starts again), or
        single `attempts` raised (a process is replaced); and what to tell people.
    """
    dead = [p for p in observed.processes if _died(p, observed, status) and not _dropped(p, job, status)]
    if not dead:
        return status, ()
    # The cause goes first: bad input explains other deaths, then whoever died earliest.
    dead.sort(key=lambda p: (p.exit_code != EXIT_BAD_INPUT, p.ended or 0.0, p.name))
    first = dead[0]
    if first.exit_code == EXIT_BAD_INPUT:
        message = first.last_lines[-1] if first.last_lines else f"{first.name} refused its input"
        return _fail(status, "BadInput", message, first, observed.time), ()
    fatal = [p for p in dead if p.spec.role in ("coordinator", "ps")]
    events: list[Event] = []
    # A server's death makes workers fail too: then it is the one death that counts.
    for process in fatal[:1] or dead:
        name = process.name
        failures = status.failures + 1
        end = describe_exit(process.exit_code)
        if failures > job.run_policy.backoff_limit:
            limit = job.run_policy.backoff_limit
            message = f"{name} ended ({end}); the limit of {limit} restarts (runPolicy.backoffLimit) is used up"
            failed = replace(status, failures=failures)
            return _fail(failed, "BackoffLimitExceeded", message, process, observed.time), tuple(events)
        pause = backoff_seconds(failures)
        restarts = {**status.restarts, name: status.restarts.get(name, 0) + 1}
        status = replace(status, failures=failures, restarts=restarts)
        if fatal:
            status = replace(
                status,
                incarnation=status.incarnation + 1,
                attempts={},
                not_before={"": observed.time + pause},
                last_observation=None,
                review=None,
                reviewed=None,
                speeds={},
            ).with_phase("Restarting", observed.time)
            text = f"{name} ended ({end}): everything starts again from the last checkpoint in {pause:g} s"
            events.append(Event("Warning", "JobRestarts", text, observed.time))
        else:
            status = replace(
                status,
                attempts={**status.attempts, name: process.spec.attempt + 1},
                not_before={**status.not_before, name: observed.time + pause},
            )
            text = f"{name} ended ({end}): it is started again in {pause:g} s"
            events.append(Event("Warning", "ProcessRestarts", text, observed.time))
    return status, tuple(events)


def _died(process: ProcessView, observed: Observed, status: Status) -> bool:
    """Whether a process has ended that should not have."""
    if process.running or not is_current(process, status):
        return False
    if process.spec.role == "profile":
        # Its result counts, not its exit; without the coordinator's answer nobody knows whether it arrived.
        pool = process.spec.pool
        done = any(name == pool for name in observed.profiles)
        return not done and (process.exit_code != EXIT_OK or observed.coordinator is not None)
    phase = observed.coordinator.phase if observed.coordinator is not None else None
    if process.name == COORDINATOR:
        return True
    return not (process.exit_code in (EXIT_OK, EXIT_INTERRUPTED) and phase in _MAY_LEAVE)


def _dropped(process: ProcessView, job: JobSpec, status: Status) -> bool:
    """Whether a later plan has no more use for this worker."""
    if status.plan is None or process.spec.role != "worker":
        return False
    plan = PlanDocument.from_json(dict(status.plan))
    return process.name not in [spec.name for spec in members(job, plan)]


def _fail(status: Status, reason: str, message: str, process: ProcessView, now: float) -> Status:
    failure = Failure(reason, message, process.name, process.exit_code, process.last_lines, process.log)
    return replace(status, outcome="Failed", outcome_since=now, failure=failure)
