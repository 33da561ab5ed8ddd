"""Pauses between the turns of a job: short after a change, growing while nothing changes."""

from __future__ import annotations

from typing import Any

from heterps_operator.state.status import Status
from heterps_operator.state.turn import Turn

__all__ = ["FIRST_PAUSE_SECONDS", "Pacing"]

FIRST_PAUSE_SECONDS = 0.25
_GROWTH = 1.5
_MOST_STEPS = 20


class Pacing:
    """Pauses between the turns of one job."""

    def __init__(self) -> None:
        self._seen: Status | None = None
        self._quiet = 0  # consecutive turns without a change

    def observe(self, turn: Turn) -> None:
        """Take a turn into account."""
        before, self._seen = self._seen, turn.status
        news = turn.unfinished or turn.events
        same = before is not None and not news and _milestones(before) == _milestones(turn.status)
        self._quiet = self._quiet + 1 if same else 0

    def seconds(self, longest: float) -> float:
        """Return the seconds until the next turn, `longest` at most."""
        return min(FIRST_PAUSE_SECONDS * _GROWTH ** min(self._quiet, _MOST_STEPS), longest)


def _milestones(status: Status) -> tuple[Any, ...]:
    """Return the fields whose change resets the pause; throughput and cost change in every turn."""
    conditions = tuple((c.type, c.status, c.reason) for c in status.conditions)
    return status.phase, status.incarnation, status.plan_revision, status.attempts, status.outcome, conditions
