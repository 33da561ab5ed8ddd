"""The consistency modes of a worker: the staleness of reads, and the number of steps ahead."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.config import RunConfig

__all__ = ["Reads"]


@dataclass(frozen=True)
class Reads:
    """The table of docs/protocol.md, "Consistency modes".

    Attributes:
        ordered: micro-batches are computed in a fixed order, so that runs are reproducible.
        dense_lag: staleness of dense parameters, in commits.
        rows_lag: staleness of rows, in commits.
        warmup: steps at the beginning of training whose reads are not stale.
    """

    ordered: bool
    dense_lag: int
    rows_lag: int
    warmup: int

    @classmethod
    def of(cls, config: RunConfig) -> Reads:
        """The mode of a job."""
        lag = config.max_staleness
        dense_lag = lag if config.consistency == "async" else 0
        return cls(config.consistency == "sync", dense_lag, lag, config.staleness_warmup)

    @property
    def overlapping(self) -> bool:
        """Whether a step may use parameters while a later commit changes them."""
        return self.dense_lag > 0

    def dense_version(self, step: int) -> int:
        """The least version of dense parameters that a step may read."""
        return self._version(step, self.dense_lag)

    def rows_version(self, step: int) -> int:
        """The least version of rows that a step may read."""
        return self._version(step, self.rows_lag)

    def _version(self, step: int, lag: int) -> int:
        return min(step, max(self.warmup - 1, step - lag, 0))  # never less than for the step before

    def steps_ahead(self, *, dense: bool) -> int:
        """Steps that may be computed after the first uncommitted one; `dense`: whether they read dense parameters."""
        return self.dense_lag if dense else self.rows_lag
