"""The evaluation of the final model, of which each worker of the last stage computes a share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from heterps_runtime.coordinator.membership.members import Member
from heterps_runtime.wire.messages import Evaluated

__all__ = ["Evaluation", "Merge"]

Merge = Callable[[Sequence[Evaluated]], dict[str, Any]]  # reports of the last stage's workers -> the job's metrics


class Evaluation:
    """The reported shares and the job's metrics.

    Args:
        merge: merges reports.
    """

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._reports: dict[str, Evaluated] = {}
        self.rows = 0  # of the evaluation data; 0: there is none
        self.results: dict[str, Any] | None = None  # None until it is over

    @property
    def reported(self) -> Mapping[str, Evaluated]:
        """Reports by worker."""
        return self._reports

    def begin(self) -> None:
        """Start, or start again with other members."""
        self._reports.clear()

    def take(self, worker: str, report: Evaluated) -> None:
        """Take a worker's report."""
        self._reports[worker] = report

    def finish(self, last_stage: Collection[Member]) -> bool:
        """Compute the results if the whole last stage has reported; returns whether it has."""
        if any(m.name not in self._reports for m in last_stage):
            return False
        self.results = self._merge([self._reports[m.name] for m in last_stage])
        return True

    def describe(self) -> str:
        """The results on one line, without undefined ones (such as the AUC of samples with one label)."""
        return ", ".join(f"{name} {value:.5g}" for name, value in (self.results or {}).items() if value is not None)
