"""The order of a job's rows: a pure function of (seed, step), independent of plan, split and restarts.

An epoch is a seeded permutation of blocks of 64 rows, and a seeded permutation of the rows of each block. Blocks keep
reads local: a worker reads about as many cache lines and pages as it trains rows. A batch of 4,096 rows comes from 64
places of the data. Both permutations sort hashes of (seed, epoch, position), because the streams of a library's
generator may change between versions, and a resumed job must see the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from heterps_runtime.partition.batches import Batches
from heterps_runtime.partition.splitmix import GOLDEN, mix64

__all__ = ["BLOCK_ROWS", "BatchOrder", "RowOrder", "Rows", "SequentialOrder", "epoch_key", "hash64"]

#: Rows per block. At 26 ids and 13 numbers, a block is about 16 KiB: four pages.
BLOCK_ROWS = 64

#: Row numbers.
Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


def hash64(x: _Words) -> _Words:
    """A hash of each word: neighbours have unrelated hashes."""
    return mix64(x + GOLDEN)


def epoch_key(seed: int, epoch: int) -> np.uint64:
    """The start of the hashes of an epoch."""
    words = np.array([seed & 0xFFFFFFFFFFFFFFFF, epoch], dtype=np.uint64)
    return np.uint64(hash64(hash64(words[:1]) + words[1:])[0])


class RowOrder(Protocol):
    """The rows of each step."""

    batches: Batches

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Row numbers of the samples `start` to `stop` (exclusive) of a step's batch, int64 (stop - start,)."""


class SequentialOrder:
    """The rows in the order of the data.

    Args:
        num_rows: rows of the data set, >= 1.
        global_batch_size: samples per step, >= 1.
    """

    def __init__(self, num_rows: int, global_batch_size: int) -> None:
        self.batches = Batches(num_rows, global_batch_size)

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """See `RowOrder.rows`."""
        first = self.batches.start(step)
        return np.arange(first + start, first + stop, dtype=np.int64)


@dataclass(frozen=True)
class _BlockOrder:
    """The order of blocks in one epoch."""

    epoch: int
    blocks: Rows  # in their order
    gap: int  # position at which the data's short last block ends


class BatchOrder:
    """The rows of each step. Each row occurs once per epoch; `batches` divides an epoch into steps.

    Args:
        num_rows: rows of the data set, >= 1.
        global_batch_size: samples per step, >= 1.
        seed: of the job.
    """

    def __init__(self, num_rows: int, global_batch_size: int, seed: int) -> None:
        if num_rows < 1:
            raise ValueError(f"num_rows: must be >= 1, is {num_rows}")
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size: must be >= 1, is {global_batch_size}")
        self.batches = Batches(num_rows, global_batch_size)
        self.seed = seed
        self._num_blocks = -(-num_rows // BLOCK_ROWS)
        self._missing = self._num_blocks * BLOCK_ROWS - num_rows  # rows missing from the data's last block
        self._latest = self._prepared(0)

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Row numbers of the samples `start` to `stop` (exclusive) of a step's batch, int64 (stop - start,).

        Any division of `[0, batches.size(step))` into intervals gives the same rows in the same order.
        """
        assert 0 <= start <= stop <= self.batches.size(step), (step, start, stop)
        epoch = self.batches.epoch(step)
        order = self._latest  # read once: another thread may move on to the next epoch
        if order.epoch != epoch:
            order = self._latest = self._prepared(epoch)
        first = self.batches.start(step)
        positions = np.arange(first + start, first + stop, dtype=np.int64)  # (n,)
        if not len(positions):
            return positions
        # As if the short block were padded: then a division gives the block of a position.
        positions += np.where(positions >= order.gap, self._missing, 0)
        places, offsets = positions // BLOCK_ROWS, positions % BLOCK_ROWS
        blocks = order.blocks[places[0] : places[-1] + 1]  # (b,), in order
        inside = self._shuffled(epoch, blocks)  # (b, BLOCK_ROWS)
        where = places - places[0]
        rows: Rows = blocks[where] * BLOCK_ROWS + inside[where, offsets]
        return rows

    def _prepared(self, epoch: int) -> _BlockOrder:
        keys = hash64(epoch_key(self.seed, epoch) + np.arange(self._num_blocks, dtype=np.uint64))
        blocks = np.argsort(keys, kind="stable").astype(np.int64)
        short = int(np.flatnonzero(blocks == self._num_blocks - 1)[0])
        return _BlockOrder(epoch, blocks, (short + 1) * BLOCK_ROWS - self._missing)

    def _shuffled(self, epoch: int, blocks: Rows) -> Rows:
        """A permutation of each block's rows, (b, BLOCK_ROWS); rows missing from a short block are last."""
        # The constant gives another stream than that of the blocks.
        inner = hash64(epoch_key(self.seed, epoch) ^ np.full(1, 0x5BF0_3635_4A0F_9C11, dtype=np.uint64))
        rows = blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS, dtype=np.int64)  # (b, BLOCK_ROWS)
        keys = hash64(inner + rows.astype(np.uint64)) >> np.uint64(1)
        keys[rows >= self.batches.num_rows] = np.uint64(0xFFFFFFFFFFFFFFFF)
        return np.argsort(keys, axis=1, kind="stable").astype(np.int64)
