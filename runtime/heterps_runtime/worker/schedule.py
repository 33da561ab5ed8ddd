"""Which micro-batches of a step are this worker's: everything follows from the allocations announced so far."""

from __future__ import annotations

from functools import lru_cache

from heterps_runtime.allocation import Allocation, MicroBatch, micro_batches

__all__ = ["Schedule"]


class Schedule:
    """Micro-batches of every step of a generation, in training or in evaluation.

    Args:
        allocation: batch sizes at the generation's start.
        stage, rank: position of this worker.
        batch_size: samples of a full global batch.
        per_worker: `training.microBatches`.
        num_rows: rows of the training data.
    """

    def __init__(
        self, allocation: Allocation, *, stage: int, rank: int, batch_size: int, per_worker: int, num_rows: int
    ) -> None:
        self._allocations = [allocation]
        self._stage = stage
        self._rank = rank
        self._batch_size = batch_size
        self._per_worker = per_worker
        self._train_rows = self._num_rows = num_rows
        self._training = True
        self._cached = lru_cache(maxsize=64)(self._compute)

    @property
    def num_steps(self) -> int:
        """Steps of one pass over the data in use."""
        return -(-self._num_rows // self._batch_size)

    def train(self) -> None:
        """Steps are those of training."""
        self._training, self._num_rows = True, self._train_rows
        self._cached.cache_clear()

    def evaluate(self, num_rows: int) -> None:
        """Steps are batches of the evaluation data, in order, divided as the last training step was."""
        self._training, self._num_rows = False, num_rows
        self._cached.cache_clear()

    def add(self, allocation: Allocation) -> None:
        """Batch sizes change at a later step."""
        self._allocations.append(allocation)
        self._cached.cache_clear()

    def knows(self, from_step: int) -> bool:
        """Whether the allocation that begins at this step has arrived."""
        return any(a.from_step == from_step for a in self._allocations)

    def allocation(self, step: int) -> Allocation:
        """The allocation in force at a step."""
        if not self._training:
            return self._allocations[-1]
        return next(a for a in reversed(self._allocations) if a.from_step <= step)

    def size(self, step: int) -> int:
        """Samples of a step's global batch; the last of a pass may be smaller."""
        return min(self._batch_size, self._num_rows - (step % self.num_steps) * self._batch_size)

    def all(self, step: int) -> tuple[MicroBatch, ...]:
        """Every worker's micro-batches of a step, by index."""
        return self._cached(step)

    def mine(self, step: int) -> tuple[MicroBatch, ...]:
        """This worker's micro-batches of a step."""
        return tuple(m for m in self.all(step) if m.path[self._stage] == self._rank)

    def _compute(self, step: int) -> tuple[MicroBatch, ...]:
        return micro_batches(self.allocation(step), self.size(step), self._per_worker)
