"""Row keys, their shards, and the unique keys of a batch.

A key is `(table << 48) | id`, a non-negative int64. A hash of the key is its slot, and each slot belongs to a shard.
Moving a slot to another shard therefore moves an equal share of each table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps_runtime.store.initial import ID_BITS, MAX_TABLES
from heterps_runtime.store.kernel import Int32s, Int64s, kernel, mix64, view

__all__ = ["NUM_SLOTS", "Partition", "UniqueKeys", "make_key", "partition", "shard_of"]

NUM_SLOTS = 1024  # upper limit of the number of shards; a power of two

_SLOT_MASK = np.uint64(NUM_SLOTS - 1)  # the hash index of a store uses the high bits, slots the low ones
_SHIFT_32 = np.uint64(32)
_SMALLEST_SCRATCH = 1 << 10


def make_key(table: int, ids: ArrayLike) -> Int64s:
    """Keys of the rows `ids` (any shape) of a table.

    Raises:
        ValueError: the table number or an id is out of range.
    """
    if not 0 <= table < MAX_TABLES:
        raise ValueError(f"table: must be in 0 .. {MAX_TABLES - 1}, is {table}")
    array = np.asarray(ids, np.int64)
    if array.size and (array.min() < 0 or array.max() >> ID_BITS):
        raise ValueError(f"ids: must be in 0 .. 2**{ID_BITS} - 1, are {array.min()} .. {array.max()}")
    return array | np.int64(table << ID_BITS)


class UniqueKeys:
    """Makes keys unique, and keeps its scratch memory between calls. Not thread-safe.

    The scratch is a hash table of positions, sized by the unique keys of earlier calls: most ids of a click log repeat,
    and a table that fits the second-level cache is twice as fast.
    """

    def __init__(self) -> None:
        self._table = np.zeros(_SMALLEST_SCRATCH, np.int32)

    def __call__(self, keys: NDArray[np.int64]) -> tuple[Int64s, Int32s]:
        """Return (unique (U,), inverse (N,)): unique[inverse] == keys, in order of first occurrence."""
        given = view(keys, np.int64)
        unique = np.empty(len(given), np.int64)
        inverse = np.empty(len(given), np.int32)
        while (count := _unique(given, self._table, unique, inverse)) < 0:
            # The table is more than half full: start again with a larger one.
            self._table = np.zeros(4 * len(self._table), np.int32)
        return unique[:count].copy() if count < len(unique) // 2 else unique[:count], inverse


class Partition(NamedTuple):
    """Keys grouped by shard: shard s has keys[order[starts[s]:starts[s + 1]]], in their original order."""

    order: Int32s  # (N,)
    counts: Int64s  # (num_shards,)

    @property
    def starts(self) -> Int64s:
        """(num_shards + 1,): start of each shard's slice of `order`, and the end."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])


def shard_of(keys: NDArray[np.int64], slot_to_shard: NDArray[np.int32]) -> Int32s:
    """Shard of each key (N,), given the shard of each slot (NUM_SLOTS,)."""
    given = view(keys, np.int64)
    shards = np.empty(len(given), np.int32)
    _shards(given, _checked_map(slot_to_shard), shards, np.zeros(NUM_SLOTS, np.int64))
    return shards


def partition(keys: NDArray[np.int64], slot_to_shard: NDArray[np.int32], num_shards: int) -> Partition:
    """Group keys (N,) by shard with a stable counting sort."""
    given = view(keys, np.int64)
    order = np.empty(len(given), np.int32)
    if num_shards == 1:
        order[:] = np.arange(len(given), dtype=np.int32)
        return Partition(order, np.array([len(given)], np.int64))
    shards, counts = np.empty(len(given), np.int32), np.zeros(NUM_SLOTS, np.int64)
    _shards(given, _checked_map(slot_to_shard), shards, counts)
    _counting_sort(shards, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]]), order)
    assert not counts[num_shards:].any(), "slot_to_shard names a shard that does not exist"
    return Partition(order, counts[:num_shards])


def _checked_map(slot_to_shard: NDArray[np.int32]) -> Int32s:
    shards: Int32s = view(slot_to_shard, np.int32)
    assert shards.shape == (NUM_SLOTS,)
    assert shards.min() >= 0
    assert shards.max() < NUM_SLOTS
    return shards


@kernel
def _unique(keys: Int64s, table: Int32s, unique: Int64s, inverse: Int32s) -> int:
    """Fill `unique` and `inverse`; -1 if `table` is more than half full. table[h] is 1 + a position, or 0."""
    table[:] = 0
    mask = table.size - 1
    room = table.size // 2
    count = 0
    for i in range(keys.size):
        key = keys[i]
        h = np.int64(mix64(np.uint64(key)) >> _SHIFT_32) & mask  # not the low bits: a shard's keys share those
        while True:
            p = table[h]
            if p == 0:
                if count == room:
                    return -1
                unique[count] = key
                inverse[i] = count
                count += 1
                table[h] = count
                break
            if unique[p - 1] == key:
                inverse[i] = p - 1
                break
            h = (h + 1) & mask
    return count


@kernel
def _shards(keys: Int64s, slot_to_shard: Int32s, shards: Int32s, counts: Int64s) -> None:
    for i in range(keys.size):
        shard = slot_to_shard[np.int64(mix64(np.uint64(keys[i])) & _SLOT_MASK)]
        shards[i] = shard
        counts[shard] += 1


@kernel
def _counting_sort(shards: Int32s, starts: Int64s, order: Int32s) -> None:
    for i in range(shards.size):
        order[starts[shards[i]]] = i
        starts[shards[i]] += 1
