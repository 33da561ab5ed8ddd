"""The gradients of a step's pushes, added for each row.

Several threads divide the keys by their hashes: each of them reads all keys, numbers those that are its own, and adds
their gradients. So the terms of a row are added by one thread, in the order of the pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from heterps_runtime.store.kernel import PREFETCH_BLOCK, AnyFloats, Int32s, Int64s, kernel, mix64, prefetch
from heterps_runtime.store.team import Team

__all__ = ["Merger"]

_SHIFT_32 = np.uint64(32)
_SMALLEST_TABLE = 1 << 10
_NOTHING, _ENTRIES, _ROOM = 0, 1, 2
_AHEAD = 16  # rows whose memory is requested in advance
_LINE = 64  # bytes of a cache line


class Merger:
    """Merges pushes, and keeps its scratch memory between calls. Not thread-safe.

    Args:
        dim: elements of a gradient.
        dtype: of gradients.
        team: threads that compute.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], team: Team) -> None:
        self._team = team
        self._parts = [_Part() for _ in range(team.size)]
        self._sums: AnyFloats = np.empty((0, dim), dtype)

    def merge(self, pushes: Sequence[tuple[Int64s, AnyFloats]]) -> tuple[Int64s, AnyFloats]:
        """Return the distinct keys (U,), and the sums of their gradients (U, dim), valid until the next call.

        One thread returns the keys in the order of their first occurrence; several, each part in that order.

        Args:
            pushes: of (keys (n,), gradients (n, dim)); keys may repeat.
        """
        keys = pushes[0][0] if len(pushes) == 1 else np.concatenate([keys for keys, _ in pushes])
        parts = self._parts[: self._team.parts_of_rows(len(keys))]
        counts = self._team.each(len(parts), lambda i: parts[i].number(keys, i, len(parts)))
        total = sum(counts)
        if len(pushes) == 1 and total == len(keys):
            return pushes[0]
        if len(self._sums) < total:
            self._sums = np.empty((total + total // 4, self._sums.shape[1]), self._sums.dtype)
        sums, ends = self._sums[:total], list(accumulate(counts))
        self._team.each(len(parts), lambda i: parts[i].add(pushes, sums[ends[i] - counts[i] : ends[i]]))
        return parts[0].unique if len(parts) == 1 else np.concatenate([part.unique for part in parts]), sums


class _Part:
    """The keys of one thread."""

    def __init__(self) -> None:
        self.unique: Int64s = np.empty(0, np.int64)
        # Of positions of unique keys, sized by those of earlier calls, since most ids of a click log repeat. At most a
        # quarter is used: with a half, searches take half as long again.
        self._table: Int32s = np.zeros(_SMALLEST_TABLE, np.int32)
        # Of each key of this part, the position in all keys, and in `unique`.
        self._scratch: tuple[Int32s, Int32s] = np.empty(0, np.int32), np.empty(0, np.int32)
        self._keys: Int64s = np.empty(0, np.int64)  # `unique` and the room after it
        self._count = 0  # of keys, the repeated ones included

    def number(self, keys: Int64s, part: int, parts: int) -> int:
        """Find the distinct keys of this part; returns their number."""
        self._make_room(len(keys) // parts)
        counts = np.zeros(2, np.int64)
        while (lack := _number(keys, part, parts, self._table, *self._scratch, self._keys, counts)) != _NOTHING:
            # Start again with more room.
            if lack == _ENTRIES:
                self._table = np.zeros(2 * len(self._table), np.int32)
            else:
                self._make_room(2 * len(self._keys))
        self._count, distinct = counts.tolist()
        self.unique = self._keys[:distinct]
        return distinct

    def _make_room(self, count: int) -> None:
        if len(self._keys) <= count:
            size = count + count // 4 + 1
            self._scratch = np.empty(size, np.int32), np.empty(size, np.int32)
            self._keys = np.empty(size, np.int64)

    def add(self, pushes: Sequence[tuple[Int64s, AnyFloats]], sums: AnyFloats) -> None:
        """Set `sums` (U, dim) to the sums of this part's gradients."""
        places, numbers = self._scratch
        done, begin = np.zeros(2, np.int64), 0
        for keys, gradients in pushes:
            _add(gradients, begin, places, numbers, self._count, done, sums)
            begin += len(keys)


@kernel
def _number(
    keys: Int64s, part: int, parts: int, table: Int32s, places: Int32s, numbers: Int32s, unique: Int64s, counts: Int64s
) -> int:
    """Number the keys of a part. table[h] is 1 + a number, or 0.

    Args:
        keys: (N,), of all parts.
        part: the number of this one.
        parts: how many there are.
        table: a power of two of entries.
        places: (n,), output, the position in `keys` of each key of the part, which are less than n.
        numbers: (n,), output, its position in `unique`.
        unique: (n,), output, the distinct keys of the part in the order of first occurrence.
        counts: (2,), output: how many keys there are in `places`, and in `unique`.

    Returns:
        What is lacking: `_NOTHING`, `_ENTRIES` if `table` is a quarter full, or `_ROOM` for more keys in `places`.
    """
    own, others = np.uint64(part), np.uint64(parts)
    n = 0
    if parts == 1:
        n = keys.size
        if n > places.size:
            return _ROOM
        for i in range(n):
            places[i] = i
    else:
        for i in range(keys.size):  # without a branch on the key, which processors would foresee half of the time
            if n == places.size:
                return _ROOM
            places[n] = i
            n += (mix64(np.uint64(keys[i])) >> _SHIFT_32) * others >> _SHIFT_32 == own
    table[:] = 0
    mask = table.size - 1
    room = table.size // 4
    count = 0
    hashes = np.empty(PREFETCH_BLOCK, np.int64)
    for start in range(0, n, PREFETCH_BLOCK):
        stop = min(start + PREFETCH_BLOCK, n)
        for k in range(start, stop):
            # Not the low bits of the hash: a shard's keys share those.
            hashes[k - start] = np.int64(mix64(np.uint64(keys[np.uint64(places[k])])) >> _SHIFT_32) & mask
            prefetch(table, hashes[k - start])
        for k in range(start, stop):
            key, h = keys[np.uint64(places[k])], hashes[k - start]
            while True:
                p = table[h]
                if p == 0:
                    if count == room:
                        return _ENTRIES
                    unique[count] = key
                    count += 1
                    table[h] = count
                    p = count
                    break
                if unique[p - 1] == key:
                    break
                h = (h + 1) & mask
            numbers[k] = p - 1
    counts[0], counts[1] = n, count
    return _NOTHING


@kernel
def _add(
    gradients: AnyFloats, begin: int, places: Int32s, numbers: Int32s, count: int, done: Int64s, sums: AnyFloats
) -> None:
    """Add the gradients of one push.

    Args:
        gradients: (n, dim).
        begin: position of the push's first key among all keys.
        places: of `_number`.
        numbers: of `_number`.
        count: keys in `places`.
        done: (2,), how many of these have been added, and to how many sums; those of this push are added to it.
        sums: (U, dim); the first gradient of each is not added to it, but put there.
    """
    dim = gradients.shape[1]
    end = begin + gradients.shape[0]
    k, num_sums = done[0], done[1]
    while k < count and places[np.uint64(k)] < end:
        if k + _AHEAD < count:
            for j in range(0, dim, _LINE // sums.itemsize):
                prefetch(sums, np.int64(numbers[np.uint64(k + _AHEAD)]) * dim + j)
        row, at = np.uint64(numbers[np.uint64(k)]), np.uint64(places[np.uint64(k)] - begin)
        if row == np.uint64(num_sums):  # keys are numbered in the order of their first occurrence
            num_sums += 1
            for j in range(dim):
                sums[row, j] = gradients[at, j]
        else:
            for j in range(dim):
                sums[row, j] += gradients[at, j]
        k += 1
    done[0], done[1] = k, num_sums
