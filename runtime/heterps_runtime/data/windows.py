"""The order of a streamed split's rows: a pure function of (seed, step) that reads in blocks.

An epoch is a seeded permutation of blocks, and of the rows in each block. It is cut into windows of some steps. Data is
often in the order of time, so that a block holds rows of one time only. Therefore each part of the data, of as many
consecutive blocks as there are windows, gives every window one of its blocks, at random.

The rows of a window of T steps with B samples each are dealt out like cards into a table of B columns, one per place in
the batch, and T rows, one per step, column by column:

    step   sample 0   sample 1   sample 2  ...
    0             0          T         2T
    1             1        T+1       2T+1
    ...

So a batch has rows of every block of the window, in proportion, and an interval of samples, which is what a worker
gets, needs consecutive blocks of the window, whatever the division into intervals. A worker with a share s of the
batch reads s of the window's rows, and at most one block more at each end.

Shuffling reaches as far as a window: its blocks are an even sample of all blocks, and each batch is an even sample of
the window.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.order import epoch_key, hash64
from heterps_runtime.partition.batches import Batches

__all__ = ["WindowedOrder"]

Rows = npt.NDArray[np.int64]

_IN_BLOCK = np.uint64(0x2545_F491_4F6C_DD1D)  # gives another stream than that of the blocks


@dataclass(frozen=True)
class _Epoch:
    """The order of blocks in one epoch."""

    number: int
    blocks: Rows  # (M,) in their order
    ends: Rows  # (M,) rows of the epoch up to the end of each


@dataclass(frozen=True)
class _Window:
    """Consecutive steps of an epoch, and the place of their samples among its rows."""

    first: int  # step
    steps: int
    batch: int  # samples of a step
    last_batch: int  # of the last step, which may end the epoch

    def columns(self, step: int, samples: Rows) -> Rows:
        """The columns of the samples of a step. A short last batch is spread over all columns."""
        short = step == self.first + self.steps - 1 and self.last_batch < self.batch
        return samples * self.batch // self.last_batch if short else samples

    def begins(self, columns: Rows) -> Rows:
        """Rows of the window in the columns before each of `columns`."""
        return columns * (self.steps - 1) - (-columns * self.last_batch // self.batch)


class WindowedOrder:
    """The rows of each step. Each row occurs once per epoch; `batches` divides an epoch into steps.

    Not thread-safe.

    Args:
        block_rows: int64 (M,), rows of each block, >= 1.
        global_batch_size: samples per step, >= 1.
        seed: of the job; None: blocks and rows stay in the order of the data.
        window_rows: rows of a window, about; at least a batch.
    """

    def __init__(self, block_rows: Rows, global_batch_size: int, seed: int | None, window_rows: int) -> None:
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size: must be >= 1, is {global_batch_size}")
        self._block_rows = block_rows
        self._starts = np.cumsum(block_rows) - block_rows
        self.batches = Batches(int(block_rows.sum()), global_batch_size)
        self._seed = seed
        per_epoch = self.batches.per_epoch
        self._windows = max(1, min(per_epoch, round(self.batches.num_rows / window_rows)))  # of an epoch
        self._epochs: dict[int, _Epoch] = {}  # the two latest: read-ahead reaches into the next one
        self._inside: dict[int, Rows] = {}  # block -> its rows in their order, of one window
        self._inside_of = -1  # first step of that window

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Row numbers of the samples `start` to `stop` (exclusive) of a step's batch, int64 (stop - start,).

        Any division of `[0, batches.size(step))` into intervals gives the same rows in the same order.
        """
        assert 0 <= start <= stop <= self.batches.size(step), (step, start, stop)
        if start == stop:
            return np.empty(0, dtype=np.int64)
        epoch, window = self._at(step)
        if self._inside_of != window.first:
            self._inside_of = window.first
            self._inside.clear()
        columns = window.columns(step, np.arange(start, stop, dtype=np.int64))
        positions = self.batches.start(window.first) + window.begins(columns) + (step - window.first)  # (n,)
        places = np.searchsorted(epoch.ends, positions, side="right")  # (n,) ascending
        blocks = epoch.blocks[places]
        offsets = positions - (epoch.ends[places] - self._block_rows[blocks])
        rows = np.empty(len(positions), dtype=np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
        for a, b in itertools.pairwise(bounds):
            rows[a:b] = self._shuffled(epoch, int(blocks[a]))[offsets[a:b]]
        return rows

    def blocks(self, step: int, start: int, stop: int) -> Rows:
        """The blocks with the samples `start` to `stop` of all steps of the step's window, int64 (m,), in order."""
        if start == stop:
            return np.empty(0, dtype=np.int64)
        epoch, window = self._at(step)
        ends = window.columns(step, np.array([start, stop - 1], dtype=np.int64))
        before = self.batches.start(window.first)
        first, after = before + window.begins(ends + np.array([0, 1]))
        low = int(np.searchsorted(epoch.ends, first, side="right"))
        high = int(np.searchsorted(epoch.ends, after - 1, side="right"))
        return epoch.blocks[low : high + 1]

    def window(self, step: int) -> range:
        """The steps of the step's window."""
        _, window = self._at(step)
        return range(window.first, window.first + window.steps)

    def _at(self, step: int) -> tuple[_Epoch, _Window]:
        number, per_epoch = self.batches.epoch(step), self.batches.per_epoch
        epoch = self._epochs.get(number)
        if epoch is None:
            epoch = self._epochs[number] = self._prepared(number)
            for old in sorted(self._epochs, key=lambda n: abs(n - number))[2:]:
                del self._epochs[old]
        within = step - number * per_epoch
        # Window k has the steps from k * per_epoch // windows on, so that sizes differ by one step at most.
        k = ((within + 1) * self._windows - 1) // per_epoch
        first, after = k * per_epoch // self._windows, (k + 1) * per_epoch // self._windows
        last = self.batches.size(number * per_epoch + after - 1)
        return epoch, _Window(number * per_epoch + first, after - first, self.batches.global_batch_size, last)

    def _prepared(self, epoch: int) -> _Epoch:
        blocks = np.arange(len(self._block_rows), dtype=np.int64)
        if self._seed is not None:
            blocks = self._shuffled_blocks(epoch_key(self._seed, epoch))
        return _Epoch(epoch, blocks, np.cumsum(self._block_rows[blocks]))

    def _shuffled_blocks(self, key: np.uint64) -> Rows:
        """A permutation of all blocks, (M,): round after round, a random block of each part of the data."""
        count = len(self._block_rows)
        rounds = min(self._windows, count)
        parts = -(-count // rounds)  # consecutive blocks, as many as there are rounds; the last one may have fewer
        keys = hash64(key + np.arange(parts * rounds, dtype=np.uint64)).reshape(parts, rounds)
        taken = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable")  # the round of each block
        within = hash64(keys.reshape(-1)[:count])
        return np.lexsort((within, taken.reshape(-1)[:count])).astype(np.int64)

    def _shuffled(self, epoch: _Epoch, block: int) -> Rows:
        """The rows of a block in the order of the epoch, int64 (n,)."""
        rows = self._inside.get(block)
        if rows is None:
            start, count = int(self._starts[block]), int(self._block_rows[block])
            rows = np.arange(start, start + count, dtype=np.int64)
            if self._seed is not None:
                inner = hash64(epoch_key(self._seed, epoch.number) ^ np.full(1, _IN_BLOCK))
                rows = rows[np.argsort(hash64(inner + rows.astype(np.uint64)), kind="stable")]
            self._inside[block] = rows
        return rows
