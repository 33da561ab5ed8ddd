"""Slots for rows on disk, as in a log: rows that leave memory together are written together, to new slots.

A slot is given up when its row is changed in memory, and its block is used again when it has no rows left. When a third
of all slots is given up, the rows of blocks with many such slots move to new ones.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_runtime.store.kernel import Int32s, Int64s, kernel
from heterps_runtime.store.memory import Slab

__all__ = ["Blocks"]

_LEAST_USE = 2 / 3  # share of the slots of blocks, on average
_CLEANED = 256  # blocks at a time, at most
_MOST_SLOTS = 1 << 31  # their numbers are int32


class Blocks:
    """Blocks of slots.

    Args:
        slots_per_block: in each.

    Attributes:
        num_blocks: that exist, free ones included.
    """

    def __init__(self, slots_per_block: int) -> None:
        self._slots_per_block = slots_per_block
        self._offsets = np.arange(slots_per_block, dtype=np.int32)
        self._used = Slab(np.int32)  # slots in use of each block
        self._free: Int32s = np.empty(0, np.int32)
        self._hand: Int64s = np.zeros(1, np.int64)
        self._num_used = 0
        self.num_blocks = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.num_blocks * self._used.row_nbytes

    def allocate(self, count: int) -> Int32s:
        """New slots (count,), of whole blocks; only the last may have slots that stay unused.

        Raises:
            MemoryError: there are too many slots.
        """
        size = self._slots_per_block
        needed = -(-count // size)
        reused, self._free = self._free[:needed], self._free[needed:]
        first = self.num_blocks
        self.num_blocks += needed - len(reused)
        if self.num_blocks * size >= _MOST_SLOTS:
            raise MemoryError("a store has at most 2 billion rows on disk: use more parameter servers")
        self._used.reserve(self.num_blocks)
        blocks = np.concatenate([reused, np.arange(first, self.num_blocks, dtype=np.int32)])
        self._used.array[blocks] = size
        self._used.array[blocks[-1]] = count - (needed - 1) * size
        self._num_used += count
        return self.slots_of(blocks)[:count]

    def slots_of(self, blocks: Int32s) -> Int32s:
        """All slots of blocks (n,), in this order: (n * slots_per_block,)."""
        slots: Int32s = (blocks[:, None] * np.int32(self._slots_per_block) + self._offsets).reshape(-1)
        return slots

    def give_up(self, slots: Int32s) -> None:
        """Note that slots (n,) are not needed any more."""
        emptied = np.empty(len(slots), np.int32)
        count = _give_up(slots, self._slots_per_block, self._used.array, emptied)
        self._free = np.concatenate([self._free, emptied[:count]])
        self._num_used -= len(slots)

    def sparse(self) -> Int32s:
        """Blocks (n,) whose rows should move to other slots, so that they become free; none if few slots are unused."""
        size = self._slots_per_block
        occupied = (self.num_blocks - len(self._free)) * size
        if occupied < size * _CLEANED or self._num_used >= _LEAST_USE * occupied:
            return self._free[:0]
        found = np.empty(_CLEANED, np.int32)
        count = _find_sparse(self._hand, self.num_blocks, self._used.array, math.floor(_LEAST_USE * size), found)
        return found[:count]


@kernel
def _give_up(slots: Int32s, size: int, used: Int32s, emptied: Int32s) -> int:
    count = 0
    for i in range(slots.size):
        block = np.uint32(slots[i]) // np.uint32(size)
        used[np.uint64(block)] -= 1
        if used[np.uint64(block)] == 0:
            emptied[count] = block
            count += 1
    return count


@kernel
def _find_sparse(hand: Int64s, num_blocks: int, used: Int32s, most: int, found: Int32s) -> int:
    count = 0
    for _ in range(num_blocks):
        if count == found.size:
            break
        block = np.uint64(hand[0]) if hand[0] < num_blocks else np.uint64(0)
        hand[0] = block + np.uint64(1)
        if 0 < used[block] <= most:
            found[count] = block
            count += 1
    return count
