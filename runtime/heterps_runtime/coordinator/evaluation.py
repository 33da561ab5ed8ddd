"""The evaluation of the final model, of which each worker of the last stage computes a share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import Evaluated

__all__ = ["Evaluation", "Merge"]

Merge = Callable[[Sequence[Evaluated]], dict[str, Any]]  # reports of the last stage's workers -> the job's metrics


class Evaluation:
    """The reported shares and the job's metrics.

    Args:
        merge: merges reports. Raises ValueError if one is wrong.
    """

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._reports: dict[str, Evaluated] = {}
        self._last_stage: tuple[str, ...] = ()
        self._missing: set[str] = set()  # of these, without a report
        self.rows = 0  # of the evaluation data; 0: there is none
        self.results: dict[str, Any] | None = None  # None until it is over

    @property
    def reported(self) -> Mapping[str, Evaluated]:
        """Reports by worker."""
        return self._reports

    def begin(self, last_stage: Iterable[str] = ()) -> None:
        """Start, or start again with other members.

        Args:
            last_stage: names of the workers whose reports make the results; none: only forget the earlier ones.
        """
        self._reports.clear()
        self._last_stage = tuple(last_stage)
        self._missing = set(self._last_stage)

    def take(self, worker: str, report: Evaluated) -> bool:
        """Take a worker's report; returns whether the whole last stage has reported, which makes the results.

        Raises:
            ProtocolError: its metrics are not those of this job.
        """
        if worker in self._last_stage:
            try:
                self._merge([report])
            except ValueError as error:
                raise ProtocolError(f"an {report.op} message is wrong: {error}") from error
        self._reports[worker] = report
        self._missing.discard(worker)
        if self._missing or not self._last_stage:
            return False
        self.results = self._merge([self._reports[name] for name in self._last_stage])
        return True

    def describe(self) -> str:
        """The results on one line, without undefined ones (such as the AUC of samples with one label)."""
        return ", ".join(f"{name} {value:.5g}" for name, value in (self.results or {}).items() if value is not None)
