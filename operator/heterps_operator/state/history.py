"""The plans that a job has had: when and why each was made, what it predicted, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MOST_RECORDS", "PlanRecord", "append"]

MOST_RECORDS = 50  # of one job; the oldest are forgotten first


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One plan of a job.

    Attributes:
        revision: of the plan.
        time: when it came into force, Unix seconds.
        reason: `PlanComputed` (the first plan), `Replanned`, `UnitsChanged` or `Redivided`.
        message: why it was made, for people; empty for the first plan.
        summary: `JobPlan.summary`.
        predicted: samples per second; None: no prediction.
        cost_per_hour: dollars; None: unknown.
        measured: samples per second, last measured under this plan; None: not yet.
    """

    revision: int
    time: float
    reason: str
    message: str = ""
    summary: str = ""
    predicted: float | None = None
    cost_per_hour: float | None = None
    measured: float | None = None


def append(records: Sequence[PlanRecord], record: PlanRecord) -> tuple[PlanRecord, ...]:
    """Return the records with another one, without the oldest if there are too many."""
    return (*records, record)[-MOST_RECORDS:]
