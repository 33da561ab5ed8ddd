"""Who computes which samples: contiguous intervals per stage, overlaid into segments, chopped into micro-batches.

Every function here is pure, and every process evaluates them for itself: an allocation is the only thing that is sent
when batch sizes change. See docs/protocol.md, "Allocation".

A stage cuts the batch [0, B) into one interval per worker. Laying the cuts of all stages over each other gives at most
sum(k_i) - K + 1 segments; a segment has exactly one worker per stage, so no tensor is split or merged on its way.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Allocation", "MicroBatch", "even_split", "micro_batches", "scale_batches"]


def even_split(total: int, parts: int) -> tuple[int, ...]:
    """Split `total` samples into `parts` sizes that differ by at most one."""
    quotient, remainder = divmod(total, parts)
    return tuple(quotient + (i < remainder) for i in range(parts))


def scale_batches(batches: Sequence[int], total: int) -> tuple[int, ...]:
    """The same shares of a batch of another size (the last batch of an epoch is smaller).

    Boundaries are scaled and rounded down, so the sizes add up to `total` and stay in proportion.
    """
    whole = sum(batches)
    if whole == total:
        return tuple(batches)
    bounds, seen = [0], 0
    for size in batches:
        seen += size
        bounds.append(seen * total // whole)
    return tuple(b - a for a, b in itertools.pairwise(bounds))


@dataclass(frozen=True)
class Allocation:
    """Batch sizes in force from a step on.

    Attributes:
        from_step: first step that uses them.
        batches: per stage, per worker of the stage, samples of a full global batch; each stage sums to it.
    """

    from_step: int
    batches: tuple[tuple[int, ...], ...]

    @classmethod
    def even(cls, global_batch: int, workers_per_stage: Sequence[int], from_step: int = 0) -> Allocation:
        """Equal shares for all workers."""
        return cls(from_step, tuple(even_split(global_batch, k) for k in workers_per_stage))

    def __post_init__(self) -> None:
        totals = {sum(stage) for stage in self.batches}
        if len(totals) != 1:
            raise ValueError(f"allocation: stages disagree on the global batch: {sorted(totals)}")
        for i, stage in enumerate(self.batches):
            if not stage or min(stage) < 0:
                raise ValueError(f"allocation.stages[{i}]: batch sizes must be >= 0, are {list(stage)}")


@dataclass(frozen=True)
class MicroBatch:
    """One unit of pipelined work: samples [start, stop) of the global batch, on one path through the stages.

    Attributes:
        index: position in the order that all processes share.
        path: the worker index at every stage.
    """

    index: int
    start: int
    stop: int
    path: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


def micro_batches(allocation: Allocation, batch_size: int, per_worker: int) -> tuple[MicroBatch, ...]:
    """All micro-batches of one step, in the order in which they are computed.

    Args:
        allocation: batch sizes of a full batch; scaled if `batch_size` differs.
        batch_size: samples of this step.
        per_worker: `training.microBatches`, the number of pieces that a worker of the widest stage cuts its share into.
            A plan of one stage has nothing to overlap: each worker computes its share at once.

    Returns:
        Micro-batches that tile [0, batch_size) exactly. They are ordered piece by piece across the segments, so that
        all paths of the pipeline are fed from the start.
    """
    stages = [scale_batches(stage, batch_size) for stage in allocation.batches]
    ends = []  # per stage, the running end of each worker's interval
    for stage in stages:
        total, stage_ends = 0, []
        for size in stage:
            total += size
            stage_ends.append(total)
        ends.append(stage_ends)
    bounds = sorted({0, *(e for stage_ends in ends for e in stage_ends)})
    widest = max(len(stage) for stage in stages)
    limit = batch_size if len(stages) == 1 else max(1, -(-batch_size // (per_worker * widest)))
    pieces: list[tuple[int, int, int, tuple[int, ...]]] = []
    for start, stop in itertools.pairwise(bounds):
        path = tuple(next(w for w, end in enumerate(stage_ends) if end > start) for stage_ends in ends)
        offset = start
        for number, size in enumerate(even_split(stop - start, -(-(stop - start) // limit))):
            pieces.append((number, offset, offset + size, path))
            offset += size
    pieces.sort()
    return tuple(MicroBatch(i, start, stop, path) for i, (_, start, stop, path) in enumerate(pieces))
