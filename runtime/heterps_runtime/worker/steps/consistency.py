"""What the consistency modes mean for a worker: how old a read may be, and how far steps may run ahead."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.config import RunConfig

__all__ = ["Reads"]


@dataclass(frozen=True)
class Reads:
    """The table of docs/protocol.md, "Consistency modes".

    Attributes:
        ordered: micro-batches are computed in their fixed order, so that a run repeats exactly.
        dense_lag: commits that dense parameters may lag behind.
        rows_lag: commits that rows may lag behind.
    """

    ordered: bool
    dense_lag: int
    rows_lag: int

    @classmethod
    def of(cls, config: RunConfig) -> Reads:
        """Those of a job."""
        lag = config.max_staleness
        return cls(config.consistency == "sync", lag if config.consistency == "async" else 0, lag)

    @property
    def overlapping(self) -> bool:
        """Whether a step may still compute with parameters while the next commit changes them."""
        return self.dense_lag > 0

    def steps_ahead(self, *, dense: bool) -> int:
        """Steps that may be computed beyond the first uncommitted one.

        Args:
            dense: whether they read dense parameters.
        """
        return self.dense_lag if dense else self.rows_lag
