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
    """

    ordered: bool
    dense_lag: int
    rows_lag: int

    @classmethod
    def of(cls, config: RunConfig) -> Reads:
        """The mode of a job."""
        lag = config.max_staleness
        return cls(config.consistency == "sync", lag if config.consistency == "async" else 0, lag)

    @property
    def overlapping(self) -> bool:
        """Whether a step may use parameters while a later commit changes them."""
        return self.dense_lag > 0

    def steps_ahead(self, *, dense: bool) -> int:
        """Steps that may be computed after the first uncommitted one; `dense`: whether they read dense parameters."""
        return self.dense_lag if dense else self.rows_lag
