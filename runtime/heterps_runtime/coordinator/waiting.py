"""What a job waits for while it makes no progress."""

from __future__ import annotations

from heterps_runtime.contract import JobPhase, MemberState
from heterps_runtime.coordinator.checkpoints import Checkpoints
from heterps_runtime.coordinator.evaluation import Evaluation
from heterps_runtime.coordinator.membership.membership import Membership
from heterps_runtime.coordinator.steps import Steps

__all__ = ["describe_wait"]


def describe_wait(
    phase: JobPhase,
    membership: Membership,
    checkpoints: Checkpoints,
    steps: Steps,
    evaluation: Evaluation,
    *,
    step: int,
    ending: bool,
) -> str | None:
    """Describe what keeps a job that has a plan from making progress.

    Args:
        phase: of the job.
        membership: the members and their generation.
        checkpoints: of the job.
        steps: reports of uncommitted steps.
        evaluation: reports of the evaluation.
        step: the step to be committed next.
        ending: whether training ends with a checkpoint of this step.

    Returns:
        The description; None if a process is missing, which is no hang: the controller replaces it.
    """
    if not checkpoints.opened:
        return "the last checkpoint is not verified"
    if phase == JobPhase.EXPORTING:
        return "the model is not exported"
    if phase == JobPhase.TRAINING and ending and checkpoints.writing:
        return checkpoints.waits_for
    roster = membership.planned
    if membership.forming:
        late = [m.name for m in roster.present.values() if m.state != MemberState.READY]
        return f"the members wait for {', '.join(late)} to set up"
    if membership.running and phase == JobPhase.TRAINING:
        late = [m.name for m in roster.all_workers() if m.name not in steps.reported(step)]
        return f"no step was committed; step {step} waits for {', '.join(late) or 'the servers'}"
    if membership.running and phase == JobPhase.EVALUATING:
        late = [m.name for m in roster.all_workers() if m.name not in evaluation.reported]
        return f"the evaluation waits for {', '.join(late)}"
    return None
