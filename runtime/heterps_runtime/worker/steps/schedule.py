"""Which micro-batches of a step are this worker's: everything follows from the allocations announced so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from heterps_runtime.allocation import Allocation, MicroBatch, micro_batches
from heterps_runtime.batches import Batches

__all__ = ["Schedule"]

_cut = lru_cache(maxsize=64)(micro_batches)  # a batch of one size and allocation is cut many times


@dataclass(frozen=True)
class Schedule:
    """Micro-batches of every step of a generation, in training or in evaluation.

    A schedule never changes. The feed's thread goes on with the one that it was given when the engine takes another.

    Attributes:
        batches: steps of the data in use.
        allocations: announced so far, by their first steps.
        stage, rank: position of this worker.
        per_worker: `training.microBatches`.
        training: False: steps are batches of the evaluation data, divided as the last training step was.
    """

    batches: Batches
    allocations: tuple[Allocation, ...]
    stage: int
    rank: int
    per_worker: int
    training: bool = True

    def adding(self, allocation: Allocation) -> Schedule:
        """The same, with other batch sizes from a later step on."""
        return replace(self, allocations=(*self.allocations, allocation))

    def evaluating(self, num_rows: int) -> Schedule:
        """The schedule of the evaluation data, which has so many rows."""
        return replace(self, batches=Batches(num_rows, self.batches.global_batch_size), training=False)

    def knows(self, from_step: int) -> bool:
        """Whether the allocation that begins at this step has arrived."""
        return any(a.from_step == from_step for a in self.allocations)

    def allocation(self, step: int) -> Allocation:
        """The allocation in force at a step."""
        if not self.training:
            return self.allocations[-1]
        return next(a for a in reversed(self.allocations) if a.from_step <= step)

    def all(self, step: int) -> tuple[MicroBatch, ...]:
        """Every worker's micro-batches of a step, by index."""
        return _cut(self.allocation(step), self.batches.size(step), self.per_worker)

    def mine(self, step: int) -> tuple[MicroBatch, ...]:
        """This worker's micro-batches of a step."""
        return tuple(m for m in self.all(step) if m.path[self.stage] == self.rank)
