"""Keeps the record of a job's plans. Pure."""

from __future__ import annotations

from dataclasses import replace

from heterps_operator.state.history import PlanRecord, append
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import LEAST_SAMPLES, mean
from heterps_operator.state.values import CoordinatorView
from heterps_runtime.contract import JobPhase

__all__ = ["record_plan"]


def record_plan(before: Status, after: Status, view: CoordinatorView | None, now: float) -> Status:
    """Return the later status with a record of its plan, or with what was measured of that plan.

    Args:
        before: the status of the last decision.
        after: the status of this decision.
        view: the coordinator's status; None: it does not answer.
        now: Unix seconds.
    """
    if after.plan is None:
        return after
    if after.plan_revision != before.plan_revision:
        record = PlanRecord(
            revision=after.plan_revision,
            time=now,
            reason=after.plan_reason,
            message=_cause(before, after),
            summary=after.plan.summary,
            predicted=after.plan.throughput,
            cost_per_hour=after.plan.cost_per_hour,
        )
        return replace(after, history=append(after.history, record))
    measured = _measured(after, view)
    if measured is None or not after.history or after.history[-1].revision != after.plan_revision:
        return after
    return replace(after, history=(*after.history[:-1], replace(after.history[-1], measured=measured)))


def _cause(before: Status, after: Status) -> str:
    """Why there is a new plan: what the conditions say, of the units that changed or of the plan that was dropped."""
    if after.plan_reason in ("UnitsChanged", "Redivided"):
        return after.condition("Rescaled").message
    if before.moving:  # to a cheaper plan
        return before.moving
    planned = before.condition("Planned")
    return "" if planned.status == "True" else planned.message


def _measured(status: Status, view: CoordinatorView | None) -> float | None:
    """Samples per second: the mean since the workers settled if it is known, else the coordinator's last figure."""
    series = status.series
    if series.revision == status.plan_revision and len(series.samples) >= LEAST_SAMPLES:
        return mean(series.samples).value
    if view is None or view.phase != JobPhase.TRAINING:
        return None
    return view.samples_per_second or None  # zero: not measured
