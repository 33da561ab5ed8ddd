"""Other stages for a job whose running stages cannot reach the floor with any number of workers. Pure.

The planner is then asked for any plan, with the profile as the measured throughput corrects it. If one reaches the
floor, the job changes to it while it runs if it can (`adoption`). Otherwise it moves as to a cheaper plan at other
prices: it saves a checkpoint, stops, and continues with that plan. Either costs time, and the new prediction may be
wrong as well. So the floor must have been missed for three times `elasticity.cooldownSeconds`, also by the best half a
minute. After each change the next one waits, twice as long each time, unless the floor is another one.
"""

from __future__ import annotations

from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import build_problem
from heterps_operator.control.tuning.adoption import carry_out, describe, needs_restart
from heterps_operator.control.tuning.calibration import calibrate
from heterps_operator.formatting import format_time
from heterps_operator.state.offers import Offer
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.throughput import PATIENCE, ThroughputSeries, pause_seconds, stage_means
from heterps_operator.state.trials import Cause, Review
from heterps_operator.state.values import ComputePlan, Observed

__all__ = ["ask_for_stages", "take_stages"]


def ask_for_stages(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan, asked: Review, why: str
) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Ask the planner for other stages, unless a move for the same floor was made not long ago.

    Args:
        job: floor, limits and the policy.
        observed: profiles and free units.
        status: without a question to the planner.
        plan: what runs.
        asked: the question that had no answer: measured throughput and floor.
        why: no number of units of the running stages reaches the floor.
    """
    text, floor, pause = (
        f"{asked.message}; {why}",
        job.min_samples_per_second,
        pause_seconds(job.elasticity.cooldown_seconds),
    )
    lasts = status.series.complete(pause, PATIENCE) and status.series.most() < floor
    if not lasts:
        return _cannot(status, text, observed.time), ()
    until = status.moved_for_floor.until(floor, observed.time)
    if until is not None:
        text += f"; the last move to other stages did not help, the next is tried at {format_time(until)}"
        return _cannot(status, text, observed.time), ()
    try:
        problem = build_problem(
            job.limited(observed.capacity.free_units), observed.profiles, observed.status.start_seconds
        )
        problem = calibrate(problem, plan, asked.rate, stage_means(status.series.recent(pause)))
    except ValueError:  # the model has other layers now
        return _cannot(status, text, observed.time), ()
    revision = status.plan_revision + 1
    review = replace(asked, cause=Cause.STAGES, message=text, revision=revision)
    return replace(status, review=review), (ComputePlan(problem, revision),)


def take_stages(job: JobSpec, observed: Observed, status: Status, plan: JobPlan, asked: Review) -> Status:
    """Change to the planner's plan if there is one and there is room for it.

    Args:
        job: the floor and the prices.
        observed: with the planner's answer.
        status: without the question.
        plan: what runs.
        asked: the question.
    """
    now, outcome = observed.time, observed.outcome
    assert outcome is not None
    new = outcome.plan
    if new is None:
        text = asked.message if outcome.message in asked.message else f"{asked.message}; {outcome.message}"
        return _cannot(status, text, now)
    if not observed.capacity.fits(new.units):
        return status  # other jobs took the units meanwhile
    restarts = needs_restart(job, observed, plan, new)
    how = "the job saves a checkpoint and moves to it" if restarts else "the job changes to it while it runs"
    text = f"{asked.message}; {describe(plan, new)} does by the corrected profile: {how}"
    pause = pause_seconds(job.elasticity.cooldown_seconds)
    moves = status.moved_for_floor.again(job.min_samples_per_second, now, pause)
    reason = "StagesChanged" if restarts else "Redivided"
    status = replace(status.with_condition("Rescaled", True, reason, text, now), moved_for_floor=moves)
    if not restarts:
        return carry_out(observed, status, new, ThroughputSeries(), reason)
    return replace(
        status,
        offer=Offer(dict(new.document), {pool.name: str(pool.price_per_unit_hour) for pool in job.pools}),
        moving=text,
        stopping_since=now,
    ).with_phase(Phase.STOPPING, now)


def _cannot(status: Status, text: str, now: float) -> Status:
    return status.with_condition("Rescaled", False, "CannotRescale", text, now)
