"""One turn of the control loop: what was observed and what was decided."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_operator.api.job import JobSpec
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Event, Status
from heterps_operator.state.values import Observed

__all__ = ["Turn"]


@dataclass(frozen=True)
class Turn:
    """One turn of the loop, for those who show it."""

    job: JobSpec
    observed: Observed
    status: Status
    bill: Bill
    events: tuple[Event, ...]
    unfinished: bool = False  # there was more to do than one turn may

    @property
    def measured(self) -> float | None:
        """When the coordinator's figures were measured, Unix seconds; None: it did not answer."""
        view = self.observed.coordinator
        return None if view is None else view.measured or self.observed.time
