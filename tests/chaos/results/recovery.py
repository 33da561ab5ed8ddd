"""How long a job takes to go on after a fault. Pure: it only sees statuses and their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Recovery"]

_OVER = frozenset({"Evaluating", "Exporting", "Succeeded"})


@dataclass
class Recovery:
    """The time from a fault until committed steps advance again.

    Steps that were under way before the fault do not count: it is over when more steps have been committed than could
    be, from the lowest number of commits that was seen since (the job may have gone back to a checkpoint).

    Attributes:
        began: monotonic seconds of the fault.
        under_way: steps that may be under way at a time.
        ended: monotonic seconds; None: not yet.
    """

    began: float
    under_way: int
    ended: float | None = None
    _lowest: int | None = None
    _phase: str = ""

    def observe(self, now: float, status: Mapping[str, Any] | None) -> bool:
        """Take a status; returns whether the job goes on."""
        if self.ended is not None:
            return True
        if status is None:
            return False
        committed, phase = int(status["committedSteps"]), str(status["phase"])
        self._lowest = committed if self._lowest is None else min(self._lowest, committed)
        advanced = committed - self._lowest > self.under_way
        # After training there are no more steps: the next phase is what there is to reach.
        if (status["running"] and advanced) or (phase in _OVER and self._phase not in ("", phase)):
            self.ended = now
        self._phase = phase
        return self.ended is not None

    def finish(self, now: float) -> None:
        """Note the end of the job."""
        if self.ended is None:
            self.ended = now

    @property
    def seconds(self) -> float | None:
        """The time; None: the job has not gone on."""
        return None if self.ended is None else self.ended - self.began
