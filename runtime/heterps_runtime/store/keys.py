"""Row keys, their shards, and the unique keys of a batch.

A key is `(table << 48) | id`, a non-negative int64. A hash of the key is its slot, and each slot belongs to a shard.
Moving a slot to another shard therefore moves an equal share of each table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.initial import ID_BITS
from heterps_runtime.store.kernel import Int32s, Int64s, kernel, mix64, view

__all__ = ["NUM_SLOTS", "Partition", "UniqueKeys", "fill_keys", "group_by_shard", "partition", "shard_of"]

NUM_SLOTS = 1024  # upper limit of the number of shards; a power of two

_SLOT_MASK = np.uint64(NUM_SLOTS - 1)  # the hash index of a store uses the high bits, slots the low ones
_SHIFT_32 = np.uint64(32)
_SMALLEST_SCRATCH = 1 << 10


def fill_keys(table: int, num_rows: int, ids: NDArray[np.int64], keys: Int64s) -> None:
    """Set `keys` (N,) to the keys of the rows `ids` (N,) of a table.

    Ids are reduced modulo the table's number of rows, so that 64-bit hashes and plain ids both work.
    """
    _fill_keys(view(ids, np.int64), table << ID_BITS, num_rows, keys)


class UniqueKeys:
    """Makes keys unique, and keeps its scratch memory between calls. Not thread-safe.

    The scratch is a hash table of positions, sized by the unique keys of earlier calls, since most ids of a click log
    repeat. At most a quarter of it is used: with a half, searches take half as long again.
    """

    def __init__(self) -> None:
        self._table = np.zeros(_SMALLEST_SCRATCH, np.int32)

    def __call__(self, keys: NDArray[np.int64]) -> tuple[Int64s, Int32s]:
        """Return (unique (U,), inverse (N,)): unique[inverse] == keys, in order of first occurrence."""
        given = view(keys, np.int64)
        unique = np.empty(len(given), np.int64)
        inverse = np.empty(len(given), np.int32)
        while (count := _unique(given, self._table, unique, inverse)) < 0:
            # The table is too full: start again with a larger one.
            self._table = np.zeros(2 * len(self._table), np.int32)
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


def group_by_shard(
    keys: NDArray[np.int64], inverse: Int32s, slot_to_shard: NDArray[np.int32], num_shards: int
) -> tuple[Int64s, Int64s]:
    """Reorder unique keys (U,) by shard, and make `inverse` (N,) point to their new positions, in place.

    Returns:
        The keys, and (num_shards + 1,) the start of each shard's, and the end.
    """
    order, starts = (parts := partition(keys, slot_to_shard, num_shards)).order, parts.starts
    _follow(order, inverse)
    return keys[order], starts


def _checked_map(slot_to_shard: NDArray[np.int32]) -> Int32s:
    shards: Int32s = view(slot_to_shard, np.int32)
    assert shards.shape == (NUM_SLOTS,)
    assert shards.min() >= 0
    assert shards.max() < NUM_SLOTS
    return shards


@kernel
def _fill_keys(ids: Int64s, prefix: int, num_rows: int, keys: Int64s) -> None:
    for i in range(ids.size):
        number = ids[i]
        if number < 0 or number >= num_rows:  # most are not, and a division takes as long as ten of these tests
            number %= num_rows
        keys[i] = prefix | number


@kernel
def _follow(order: Int32s, inverse: Int32s) -> None:
    """Replace each position before a reordering by the one after it."""
    places = np.empty_like(order)
    for place in range(order.size):
        places[order[place]] = place
    for i in range(inverse.size):
        inverse[i] = places[inverse[i]]


@kernel
def _unique(keys: Int64s, table: Int32s, unique: Int64s, inverse: Int32s) -> int:
    """Fill `unique` and `inverse`; -1 if `table` is more than a quarter full. table[h] is 1 + a position, or 0."""
    table[:] = 0
    mask = table.size - 1
    room = table.size // 4
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
