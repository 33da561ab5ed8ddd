"""What a job waits for while it makes no progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterps_runtime.contract import JobPhase

if TYPE_CHECKING:
    from heterps_runtime.coordinator.core import CoordinatorCore

__all__ = ["describe_hang"]


def describe_hang(core: CoordinatorCore) -> str | None:
    """Describe what has kept a job with a plan from making progress for longer than it may; None: nothing has."""
    idle = core.liveness.idle_seconds
    waits = _describe_wait(core) if idle > core.config.hang_timeout_seconds else None
    return None if waits is None else f"{waits} for {idle:.0f} s (runPolicy.hangTimeoutSeconds)"


def _describe_wait(core: CoordinatorCore) -> str | None:
    """Describe what the job waits for; None if a process is missing, which is no hang: the controller replaces it."""
    phase, checkpoints = core.phase, core.checkpoints
    if not checkpoints.opened:
        return "the last checkpoint is not verified"
    if phase == JobPhase.EXPORTING:
        return "the model is not exported"
    ending = core.stop_requested or core.progress.finished
    if phase == JobPhase.TRAINING and ending and checkpoints.writing:
        return checkpoints.waits_for
    membership, step = core.membership, core.progress.committed
    roster = membership.planned
    if membership.forming:
        return f"the members wait for {', '.join(membership.setting_up)} to set up"
    if membership.running and phase == JobPhase.TRAINING:
        late = [m.name for m in roster.all_workers() if m.name not in core.steps.reported(step)]
        return f"no step was committed; step {step} waits for {', '.join(late) or 'the servers'}"
    if membership.running and phase == JobPhase.EVALUATING:
        late = [m.name for m in roster.all_workers() if m.name not in core.evaluation.reported]
        return f"the evaluation waits for {', '.join(late)}"
    return None
