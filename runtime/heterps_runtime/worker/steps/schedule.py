"""A worker's micro-batches of each step, according to the announced allocations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from heterps_runtime.partition.allocation import Allocation, MicroBatch, micro_batches
from heterps_runtime.partition.batches import Batches

__all__ = ["Schedule"]

_MOST_DIVISIONS = 64  # most steps have the same size and allocation
_divide = lru_cache(_MOST_DIVISIONS)(micro_batches)


@lru_cache(_MOST_DIVISIONS)
def _share(allocation: Allocation, batch_size: int, per_worker: int, stage: int, rank: int) -> tuple[MicroBatch, ...]:
    """The micro-batches of one worker, found once among those of all."""
    return tuple(m for m in _divide(allocation, batch_size, per_worker) if m.path[stage] == rank)


@dataclass(frozen=True)
class Schedule:
    """The micro-batches of all steps of a generation, in training or evaluation.

    A schedule is immutable: the feed's thread keeps its schedule when the engine replaces its own.

    Attributes:
        batches: of the data in use.
        allocations: announced so far, by first step.
        stage, rank: position of this worker.
        per_worker: `training.microBatches`.
        training: False: steps are batches of the evaluation data, divided like the last training step.
    """

    batches: Batches
    allocations: tuple[Allocation, ...]
    stage: int
    rank: int
    per_worker: int
    training: bool = True

    def adding(self, allocation: Allocation) -> Schedule:
        """The schedule with another allocation, from a later step on."""
        return replace(self, allocations=(*self.allocations, allocation))

    def evaluating(self, num_rows: int) -> Schedule:
        """The schedule of the evaluation data, which has `num_rows` rows."""
        return replace(self, batches=Batches(num_rows, self.batches.global_batch_size), training=False)

    def knows(self, from_step: int) -> bool:
        """Whether the allocation that starts at this step is announced."""
        return any(a.from_step == from_step for a in self.allocations)

    def allocation(self, step: int) -> Allocation:
        """The allocation of a step."""
        if not self.training:
            return self.allocations[-1]
        return next(a for a in reversed(self.allocations) if a.from_step <= step)

    def mine(self, step: int) -> tuple[MicroBatch, ...]:
        """This worker's micro-batches of a step."""
        size = self.batches.size(step)
        return _share(self.allocation(step), size, self.per_worker, self.stage, self.rank)
