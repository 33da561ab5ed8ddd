"""The division of a batch among workers: intervals per stage, overlaid into segments, divided into micro-batches.

All functions are pure, and each process evaluates them itself, so that a change of batch sizes sends only an
allocation. See docs/protocol.md, "Allocation".

A stage divides the batch [0, B) into one interval per worker. Overlaying the divisions of K stages with k_i workers
gives at most sum(k_i) - K + 1 segments. Each segment has one worker per stage, so that no tensor is split or merged.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Allocation", "MicroBatch", "even_split", "micro_batches", "scale_batches"]


def even_split(total: int, parts: int) -> tuple[int, ...]:
    """Split `total` samples into `parts` sizes that differ by at most one."""
    quotient, remainder = divmod(total, parts)
    return tuple(quotient + (i < remainder) for i in range(parts))


def scale_batches(batches: Sequence[int], total: int) -> tuple[int, ...]:
    """Scale the shares to a batch of another size, such as the last one of an epoch.

    Boundaries are scaled and rounded down, so that the sizes add up to `total`.
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
    """Batch sizes from a step on.

    Attributes:
        from_step: first step that uses them.
        batches: per stage and worker, samples of a full global batch; each stage adds up to it.
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
    """The unit of pipelined work: samples [start, stop) of the global batch, on one path through the stages.

    Attributes:
        index: position in the order of all micro-batches of the step.
        path: index of the worker of each stage.
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
    """All micro-batches of a step, in the order of computation.

    Args:
        allocation: batch sizes of a full batch; scaled if `batch_size` differs.
        batch_size: samples of this step.
        per_worker: `training.microBatches`, pieces per worker of the widest stage. In a plan of one stage, which has
            nothing to overlap, each worker computes its share in one piece.

    Returns:
        Micro-batches that cover [0, batch_size) exactly. They alternate between the segments, so that all paths of the
        pipeline have work from the start.
    """
    stages = [scale_batches(stage, batch_size) for stage in allocation.batches]
    ends = [list(itertools.accumulate(stage)) for stage in stages]  # of each worker's interval
    bounds = sorted({0, *(e for stage_ends in ends for e in stage_ends)})
    widest = max(len(stage) for stage in stages)
    limit = batch_size if len(stages) == 1 else max(1, -(-batch_size // (per_worker * widest)))
    pieces: list[tuple[int, int, int, tuple[int, ...]]] = []
    for start, stop in itertools.pairwise(bounds):
        path = tuple(bisect.bisect_right(stage_ends, start) for stage_ends in ends)
        offset = start
        for number, size in enumerate(even_split(stop - start, -(-(stop - start) // limit))):
            pieces.append((number, offset, offset + size, path))
            offset += size
    pieces.sort()
    return tuple(MicroBatch(i, start, stop, path) for i, (_, start, stop, path) in enumerate(pieces))
