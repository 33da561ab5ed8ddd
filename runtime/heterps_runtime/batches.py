"""Which samples of a data set belong to which step: consecutive global batches of one pass after another.

Coordinator, workers and data agree on it, because it follows from two numbers that all of them have.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Batches"]


@dataclass(frozen=True, slots=True)
class Batches:
    """Global batches of a data set.

    Attributes:
        num_rows: of the data set, >= 1.
        global_batch_size: samples of a batch, >= 1; the last one of a pass has fewer if the rows do not divide.
    """

    num_rows: int
    global_batch_size: int

    @property
    def per_epoch(self) -> int:
        """Steps of one pass over the data."""
        return -(-self.num_rows // self.global_batch_size)

    def epoch(self, step: int) -> int:
        """The pass, from 0, that a step (from 0, over all passes) belongs to."""
        return step // self.per_epoch

    def start(self, step: int) -> int:
        """Samples of the same pass that come before the step's."""
        return step % self.per_epoch * self.global_batch_size

    def size(self, step: int) -> int:
        """Samples of a step."""
        return min(self.global_batch_size, self.num_rows - self.start(step))
