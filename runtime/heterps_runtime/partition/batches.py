"""The samples of each step: consecutive global batches of one epoch after another.

Coordinator, workers and data agree without messages, because the division depends on two numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Batches"]


@dataclass(frozen=True, slots=True)
class Batches:
    """Global batches of a data set.

    Attributes:
        num_rows: of the data set, >= 1.
        global_batch_size: samples of a batch, >= 1; the last batch of an epoch may be smaller.
    """

    num_rows: int
    global_batch_size: int

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-self.num_rows // self.global_batch_size)

    def epoch(self, step: int) -> int:
        """The epoch of a step; both count from 0."""
        return step // self.per_epoch

    def start(self, step: int) -> int:
        """Samples of the same epoch before the step."""
        return step % self.per_epoch * self.global_batch_size

    def size(self, step: int) -> int:
        """Samples of a step."""
        return min(self.global_batch_size, self.num_rows - self.start(step))
