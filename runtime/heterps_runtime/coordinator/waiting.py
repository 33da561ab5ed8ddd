"""What a job waits for while it makes no progress."""

from __future__ import annotations

from typing import Protocol

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import JobPhase
from heterps_runtime.coordinator.checkpoints import Checkpoints
from heterps_runtime.coordinator.evaluation import Evaluation
from heterps_runtime.coordinator.membership.liveness import Liveness
from heterps_runtime.coordinator.membership.membership import Membership
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.coordinator.steps import Steps

__all__ = ["describe_hang"]


class Job(Protocol):
    """What the coordinator knows of a job; the attributes are those of `CoordinatorCore`."""

    config: RunConfig
    phase: JobPhase
    liveness: Liveness
    membership: Membership
    steps: Steps
    checkpoints: Checkpoints
    evaluation: Evaluation
    progress: Progress
    stop_requested: bool


def describe_hang(job: Job) -> str | None:
    """Describe what has kept a job with a plan from making progress for longer than it may; None: nothing has."""
    idle = job.liveness.idle_seconds
    waits = _describe_wait(job) if idle > job.config.hang_timeout_seconds else None
    return None if waits is None else f"{waits} for {idle:.0f} s (runPolicy.hangTimeoutSeconds)"


def _describe_wait(job: Job) -> str | None:
    """Describe what the job waits for; None if a process is missing, which is no hang: the controller replaces it."""
    phase, checkpoints = job.phase, job.checkpoints
    if not checkpoints.opened:
        return "the last checkpoint is not verified"
    if phase == JobPhase.EXPORTING:
        return "the model is not exported"
    ending = job.stop_requested or job.progress.finished
    if phase == JobPhase.TRAINING and ending and checkpoints.writing:
        return checkpoints.waits_for
    membership, step = job.membership, job.progress.committed
    roster = membership.planned
    if membership.forming:
        return f"the members wait for {', '.join(membership.setting_up)} to set up"
    if membership.running and phase == JobPhase.TRAINING:
        late = [m.name for m in roster.all_workers() if m.name not in job.steps.reported(step)]
        return f"no step was committed; step {step} waits for {', '.join(late) or 'the servers'}"
    if membership.running and phase == JobPhase.EVALUATING:
        late = [m.name for m in roster.all_workers() if m.name not in job.evaluation.reported]
        return f"the evaluation waits for {', '.join(late)}"
    return None
