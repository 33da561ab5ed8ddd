"""From the spec that a job runs with to the one that is wanted: what to do next.

A change that needs other processes stops the job with a checkpoint and starts it again. A change that may need another
plan is tried first, so that a job that trains is never stopped for a spec that has no plan, nor for a plan to which it
can change while it trains. docs/changes.md tells users the same.
"""

from __future__ import annotations

from enum import Enum, auto

from heterps_operator.api.job import JobSpec
from heterps_operator.control.changes import Effect, SpecChange
from heterps_operator.control.tuning.adoption import can_adopt, has_same_members
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.values import Observed

__all__ = ["BEGINS_AGAIN", "Step", "Trial", "is_stopped", "judge_plan", "needs_trial", "next_step", "resumes"]

# Final phases that a job leaves when its spec asks for training.
BEGINS_AGAIN = frozenset({Phase.SUSPENDED, Phase.PLANNED})


class Trial(Enum):
    """What the planner says about the wanted spec."""

    NOT_NEEDED = auto()
    PENDING = auto()
    UNMEASURED = auto()  # the job must stop and measure before a plan can be made
    SAME = auto()  # its plan has the stages and servers of the present one
    IN_PLACE = auto()  # the job can change to its plan while it trains
    FEASIBLE = auto()  # the job must stop to change to its plan
    INFEASIBLE = auto()


class Step(Enum):
    """What to do about a spec, the wanted one unless said otherwise."""

    KEEP = auto()  # run on with the present spec, and look again
    ADOPT = auto()  # decide by it from now on; no process notices
    CHANGE = auto()  # decide by it from now on, and change to its plan while the job trains
    STOP = auto()  # stop the processes in order, with a checkpoint
    RELOAD = auto()  # start over with it and the present plan
    REPLAN = auto()  # start over with it and no plan


def resumes(job: JobSpec) -> bool:
    """Whether the spec of a job that was suspended, or only planned, asks for training."""
    return job.goal == "train" and not job.run_policy.suspend


def is_stopped(status: Status, stopping: Effect) -> bool:
    """Whether a job that was stopped for a change (`stopping`) may go on with the wanted spec."""
    return stopping != Effect.NONE and status.phase == Phase.SUSPENDED


def needs_trial(status: Status, change: SpecChange, stopping: Effect, wanted: JobSpec) -> bool:
    """Whether the planner must find a plan for the wanted spec before the job stops for it."""
    undisturbed = stopping == Effect.NONE and _runs(status)
    return undisturbed and change.effect == Effect.REPLAN and resumes(wanted) and not wanted.paused


def judge_plan(job: JobSpec, wanted: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> Trial:
    """Judge a feasible plan for a changed spec without a field that processes read when they start.

    Args:
        job: the present spec.
        wanted: the changed one.
        observed: what is the case now.
        status: of the last decision, with the present plan.
        plan: for the changed spec.
    """
    if not {pool.name for pool in wanted.pools} <= {pool.name for pool in job.pools}:
        return Trial.FEASIBLE  # the coordinator reads the job's pools when it starts
    if status.plan is not None and has_same_members(status.plan, plan):
        return Trial.SAME
    return Trial.IN_PLACE if can_adopt(wanted, observed, status, plan) else Trial.FEASIBLE


def next_step(status: Status, change: SpecChange, stopping: Effect, trial: Trial) -> Step:
    """Decide what to do about a spec.

    Args:
        status: of the last decision.
        change: from the present spec to the wanted one.
        stopping: the effect of the change that the job is being stopped for; NONE: it is not.
        trial: what the planner says, if `needs_trial`.
    """
    if stopping != Effect.NONE:
        if not is_stopped(status, stopping):
            return Step.KEEP  # the wanted spec is read when the job has stopped
        return Step.REPLAN if stopping >= Effect.REPLAN else Step.RELOAD
    if trial in (Trial.PENDING, Trial.INFEASIBLE):
        return Step.KEEP
    if trial in (Trial.SAME, Trial.IN_PLACE):
        return Step.ADOPT if trial == Trial.SAME else Step.CHANGE
    if _runs(status) and change.effect in (Effect.RESTART, Effect.REPLAN):
        return Step.STOP
    if change.effect == Effect.NONE or (change.effect == Effect.LIVE and not status.final):
        return Step.ADOPT
    return Step.REPLAN if change.effect >= Effect.REPLAN and status.phase in BEGINS_AGAIN else Step.RELOAD


def _runs(status: Status) -> bool:
    return status.plan is not None and not status.final
