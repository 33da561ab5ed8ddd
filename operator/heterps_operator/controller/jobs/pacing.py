"""When to look at a job again: soon after it has changed, ever later while it does not."""

from __future__ import annotations

from typing import Any

from heterps_operator.state.status import Status
from heterps_operator.state.turn import Turn

__all__ = ["FIRST_PAUSE_SECONDS", "Pacing"]

FIRST_PAUSE_SECONDS = 0.25
_GROWTH = 1.5
_MOST_STEPS = 20


class Pacing:
    """The pauses between looks at one job."""

    def __init__(self) -> None:
        self._seen: Status | None = None
        self._quiet = 0  # looks in a row that found nothing new

    def observe(self, turn: Turn) -> None:
        """Take note of a turn."""
        before, self._seen = self._seen, turn.status
        same = before is not None and not turn.events and _milestones(before) == _milestones(turn.status)
        self._quiet = self._quiet + 1 if same else 0

    def seconds(self, longest: float) -> float:
        """Seconds until the next look, `longest` at most."""
        return min(FIRST_PAUSE_SECONDS * _GROWTH ** min(self._quiet, _MOST_STEPS), longest)


def _milestones(status: Status) -> tuple[Any, ...]:
    """Fields whose change makes another look worthwhile soon; throughput and cost change at every look."""
    conditions = tuple((c.type, c.status, c.reason) for c in status.conditions)
    return status.phase, status.incarnation, status.plan_revision, status.attempts, status.outcome, conditions
