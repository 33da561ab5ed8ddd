"""The hash index of a row store: key -> row number, by open addressing in buckets of one cache line.

A bucket has eight entries, filled from the front, and then the next bucket is used. It is 16 words: the high halves of
the hashes of eight keys, then their row numbers plus one (0: no entry, so new memory is an empty table). The half gives
the bucket, and the rest of it tells the entries of a bucket apart. Eight are compared at once. The key itself is with
the row, and is compared with that of the first entry that has the same half.

A table grows by a quarter. Its buckets move to the new table a few at a time, whenever rows are added, so growth never
stops a server; memory from which they have moved is given back at once. Buckets keep their order, and entries know
theirs: moving them reads and writes memory in sequence, and needs no keys. During a move, each key has one table, by
its bucket in the old one: those before a boundary have moved.

An entry that is removed leaves no mark behind. A later entry that had found no room in the bucket takes its place, and
so on, so that a search still ends at the first bucket with an empty entry.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_runtime.store.initial import ID_BITS
from heterps_runtime.store.kernel import (
    PREFETCH_BLOCK,
    Int32s,
    Int64s,
    Words,
    first_equal,
    kernel,
    mix64,
    prefetch,
)
from heterps_runtime.store.memory import Slab

__all__ = ["MAX_ROWS", "HashIndex"]

MAX_ROWS = (1 << 31) - 1  # row numbers are int32

_BUCKET = 8  # entries
_WORDS = 16  # of a bucket
_SMALLEST = 1 << 7  # buckets
_LOAD = 0.8  # share of entries in use at which a table grows
_GROWTH = 1.25  # with `_LOAD`: 10 to 12.5 bytes per row
_SMALLEST_TAIL = 1 << 9  # buckets after the last, so that probing need not begin again at the first
_MOVED_PER_ROW = 1  # buckets, for each new row: a move is over after two thirds of the rows that the new table adds
_MOVED_AT_LEAST = 1 << 9  # buckets, at a time
_MOST_EXTRA = 8  # buckets after a part of the table that usually have all its entries
_NONE: Int32s = np.empty(0, np.int32)

_ID_MASK = np.int64((1 << ID_BITS) - 1)
_U32 = np.uint64(32)
_U1, _U8, _U16 = np.uint64(1), np.uint64(_BUCKET), np.uint64(_WORDS)


class HashIndex:
    """The index of a row store, whose keys the store keeps: `row_keys`, the key of each row."""

    def __init__(self) -> None:
        self._tail = _SMALLEST_TAIL
        self._table = self._new_table(_SMALLEST)
        self._old = _NO_TABLE
        # Buckets of `_table`, without the tail; of `_old`; the first bucket of `_old` that has not moved.
        self._sizes: Int64s = np.array([_SMALLEST, 0, 1], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables, without memory that is given back."""
        buckets, old_buckets, boundary = self._sizes.tolist()
        remaining = old_buckets - boundary if old_buckets else 0
        return int(buckets + remaining) * self._table.row_nbytes

    @property
    def moves(self) -> bool:
        """Whether entries are moving to a larger table."""
        return bool(self._sizes[1])

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows at once."""
        buckets = math.ceil(num_rows / (_LOAD * _BUCKET))
        if buckets > self._sizes[0]:
            self._rebuild(buckets)

    def find(self, keys: Int64s, row_keys: Int64s, rows: Int32s, unknown: Int32s) -> int:
        """Look up keys: rows[i] is the row of keys[i], or -1. `unknown` gets the positions of unknown keys.

        Returns:
            The number of unknown keys.
        """
        return _find(_flat(self._table), _flat(self._old), self._sizes, keys, row_keys, rows, unknown)

    def claim(
        self,
        keys: Int64s,
        first: int,
        limits: Int64s,
        row_keys: Int64s,
        num_rows: int,
        rows: Int32s,
        free: Int32s = _NONE,
    ) -> tuple[int, int, int]:
        """Assign rows to keys[first:], new ones from the end of `free` and then after all others. Entries move on.

        Args:
            keys: (N,).
            first: index of the first key.
            limits: (T, 3); [:, 0] is the number of ids of each table.
            row_keys: key of each row, for as many rows as the store has room for; those of new rows are added.
            num_rows: rows that exist, with the free ones among them.
            rows: (N,), output: the row of each key.
            free: rows that have no key.

        Returns:
            N when done; i < N if `row_keys` has no room for keys[i]; -1 - i if keys[i] belongs to no table; the new
            number of rows; and the number of `free` that are left, which are its first.
        """
        counts = np.array([num_rows, len(free), 0], np.int64)
        used = num_rows - len(free)
        while True:
            room = int(_LOAD * _BUCKET * self._sizes[0])
            tables = _flat(self._table), _flat(self._old)
            first = _claim(*tables, self._sizes, keys, first, room, limits, row_keys, rows, free, counts)
            num_rows, num_free, overrun = counts.tolist()
            self._move_on(_MOVED_PER_ROW * (num_rows - num_free - used) + _MOVED_AT_LEAST)
            used = num_rows - num_free
            if overrun:
                self._tail *= 2
                self._rebuild(int(self._sizes[0]))
            elif 0 <= first < len(keys) and (num_free or num_rows < len(row_keys)):
                self._grow()
            else:
                return first, num_rows, num_free

    def remove(self, keys: Int64s, rows: Int32s) -> None:
        """Remove the entries of keys (N,), which have these rows (N,)."""
        _remove(_flat(self._table), _flat(self._old), self._sizes, keys, rows)

    def rows_of_part(self, part: int, parts: int) -> Int32s:
        """Rows (n,) of the keys in one of several equal parts, by the high half of their hashes."""
        start, stop = (-(-(number << 32) // parts) for number in (part, part + 1))
        buckets, old_buckets = (int(self._sizes[i]) * (stop - start) >> 32 for i in range(2))
        room = _BUCKET * (buckets + old_buckets + _MOST_EXTRA)
        while True:
            found = np.empty(room, np.int32)
            count = _rows_between(_flat(self._table), _flat(self._old), self._sizes, start, stop, found)
            if count >= 0:
                return found[:count]
            room *= 2  # entries that had no room in their buckets are after the part

    def _grow(self) -> None:
        """Begin to move to a larger table; if entries are moving now, move all of them at once."""
        buckets = int(self._sizes[0])
        larger = int(_GROWTH * buckets)
        if self.moves:
            self._rebuild(larger)
        else:
            self._table, self._old = self._new_table(larger), self._table
            self._sizes[:] = larger, buckets, 0

    def _move_on(self, num_buckets: int) -> None:
        if not self.moves:
            return
        buckets, old_buckets, boundary = self._sizes.tolist()
        self._table.populate(int(_GROWTH * (boundary + num_buckets)))
        source = _flat(self._old), old_buckets, old_buckets
        reached = int(_move(*source, boundary, boundary + num_buckets, _flat(self._table), buckets))
        if reached < 0:
            self._tail *= 2
            self._rebuild(buckets)
        elif reached >= old_buckets:  # those of the tail have moved with the bucket that had no room for them
            self._old = _NO_TABLE
            self._sizes[:] = buckets, 0, 1
        else:
            self._old.release(reached)
            self._sizes[2] = reached

    def _rebuild(self, buckets: int) -> None:
        """Move all entries to a table of so many buckets at once."""
        _, old_buckets, boundary = self._sizes.tolist()
        # Not what a move that failed has left in the new table: those entries are still in the old one.
        sources = (self._old, old_buckets, boundary), (self._table, boundary, 0)
        while True:
            table = self._new_table(buckets)
            table.populate(buckets)
            moved = (
                _move(_flat(source), old_buckets, limit, start, source.capacity, _flat(table), buckets)
                for source, limit, start in sources
            )
            if all(reached >= 0 for reached in moved):
                break
            self._tail *= 2
        self._table, self._old = table, _NO_TABLE
        self._sizes[:] = buckets, 0, 1

    def _new_table(self, buckets: int) -> Slab:
        return Slab(np.uint32, (_WORDS,), buckets + self._tail)


_NO_TABLE = Slab(np.uint32, (_WORDS,), 1)


def _flat(table: Slab) -> Words:
    """The words of a table; a kernel that makes such a view for each key takes twice as long."""
    words: Words = table.array.reshape(-1)
    return words


@kernel
def _first_word(half: np.uint64, buckets: np.uint64) -> np.uint64:
    """Offset of the bucket for the high half of a hash, in scale: in a larger table, entries are in the same order."""
    return (half * buckets >> _U32) * _U16


@kernel
def _candidate(words: Words, offset: np.uint64, half: np.uint32) -> np.int64:
    """Row of the first entry from a bucket on with this half of a hash; or -1 - (offset of the empty entry for it)."""
    while offset < np.uint64(words.size):
        j = first_equal(words, offset, half)
        if j < _U8 and words[offset + _U8 + j] != 0:  # an empty entry has the half 0
            return np.int64(words[offset + _U8 + j]) - 1
        if words[offset + _U16 - _U1] == 0:
            return -1 - np.int64(offset + first_equal(words, offset + _U8, np.uint32(0)))
        offset += _U16
    return -1 - np.int64(offset)


@kernel
def _search(words: Words, offset: np.uint64, half: np.uint32, key: int, row_keys: Int64s) -> np.int64:
    """Row of a key from a bucket on; or -1 - (offset of the empty entry for it), or of the end of the table."""
    while offset < np.uint64(words.size):
        for j in range(_BUCKET):
            place = offset + np.uint64(j)
            row = words[place + _U8]
            if row == 0:
                return -1 - np.int64(place)
            if words[place] == half and row_keys[np.uint64(row) - _U1] == key:
                return np.int64(row) - 1
        offset += _U16
    return -1 - np.int64(offset)


@kernel
def _candidates(
    table: Words, old: Words, sizes: Int64s, keys: Int64s, start: int, stop: int, row_keys: Int64s, found: Int64s
) -> None:
    """Set `found` (PREFETCH_BLOCK,) to the candidates of keys[start:stop], and request their keys."""
    buckets, old_buckets, moved = np.uint64(sizes[0]), np.uint64(sizes[1]), np.uint64(sizes[2]) * _U16
    for i in range(start, stop):
        half = mix64(np.uint64(keys[i])) >> _U32
        offset = _first_word(half, old_buckets)
        if offset < moved:
            prefetch(table, np.int64(_first_word(half, buckets)))
        else:
            prefetch(old, np.int64(offset))
    for i in range(start, stop):
        half = mix64(np.uint64(keys[i])) >> _U32
        offset = _first_word(half, old_buckets)
        if offset < moved:
            candidate = _candidate(table, _first_word(half, buckets), np.uint32(half))
        else:
            candidate = _candidate(old, offset, np.uint32(half))
        found[i - start] = candidate
        prefetch(row_keys, max(candidate, 0))


@kernel
def _find(
    table: Words, old: Words, sizes: Int64s, keys: Int64s, row_keys: Int64s, rows: Int32s, unknown: Int32s
) -> int:
    buckets, old_buckets, moved = np.uint64(sizes[0]), np.uint64(sizes[1]), np.uint64(sizes[2]) * _U16
    found = np.empty(PREFETCH_BLOCK, np.int64)
    num_unknown = 0
    for start in range(0, keys.size, PREFETCH_BLOCK):
        stop = min(start + PREFETCH_BLOCK, keys.size)
        _candidates(table, old, sizes, keys, start, stop, row_keys, found)
        for i in range(start, stop):
            row = found[i - start]
            if row >= 0 and row_keys[np.uint64(row)] != keys[i]:  # another key with the same half
                half = mix64(np.uint64(keys[i])) >> _U32
                offset = _first_word(half, old_buckets)
                if offset < moved:
                    row = _search(table, _first_word(half, buckets), np.uint32(half), keys[i], row_keys)
                else:
                    row = _search(old, offset, np.uint32(half), keys[i], row_keys)
            rows[i] = max(row, -1)
            if row < 0:
                unknown[num_unknown] = i
                num_unknown += 1
    return num_unknown


@kernel
def _claim(
    table: Words,
    old: Words,
    sizes: Int64s,
    keys: Int64s,
    first: int,
    max_entries: int,
    limits: Int64s,
    row_keys: Int64s,
    rows: Int32s,
    free: Int32s,
    counts: Int64s,
) -> int:
    """See `HashIndex.claim`.

    `counts` has the number of rows and that of free ones, which are updated, and whether probing ran over the end of a
    table.
    """
    buckets, old_buckets, moved = np.uint64(sizes[0]), np.uint64(sizes[1]), np.uint64(sizes[2]) * _U16
    found = np.empty(PREFETCH_BLOCK, np.int64)
    num_rows, num_free = counts[0], counts[1]
    counts[2] = 0
    result = keys.size
    for start in range(first, keys.size, PREFETCH_BLOCK):
        stop = min(start + PREFETCH_BLOCK, keys.size)
        _candidates(table, old, sizes, keys, start, stop, row_keys, found)
        for i in range(start, stop):
            key, row = keys[i], found[i - start]
            if row >= 0 and row_keys[np.uint64(row)] == key:
                rows[i] = row
                continue
            half = mix64(np.uint64(key)) >> _U32
            offset = _first_word(half, old_buckets)
            has_moved = offset < moved
            place = np.uint64(-1 - row)  # stays the first empty one, unless a key of the same block has taken it
            end = np.uint64(table.size if has_moved else old.size)
            if row >= 0 or place >= end or (table[place + _U8] if has_moved else old[place + _U8]) != 0:
                if has_moved:
                    row = _search(table, _first_word(half, buckets), np.uint32(half), key, row_keys)
                else:
                    row = _search(old, offset, np.uint32(half), key, row_keys)
                if row >= 0:
                    rows[i] = row
                    continue
                place = np.uint64(-1 - row)
            id_table = key >> ID_BITS
            if id_table < 0 or id_table >= limits.shape[0] or (key & _ID_MASK) >= limits[id_table, 0]:
                result = -1 - i
                break
            is_full = num_rows >= row_keys.size and num_free == 0
            if num_rows - num_free >= max_entries or is_full or place >= end:
                counts[2] = place >= end
                result = i
                break
            if num_free > 0:
                num_free -= 1
                row = np.int64(free[np.uint64(num_free)])
            else:
                row = num_rows
                num_rows += 1
            row_keys[np.uint64(row)] = key
            rows[i] = row
            if has_moved:
                table[place], table[place + _U8] = np.uint32(half), row + 1
            else:
                old[place], old[place + _U8] = np.uint32(half), row + 1
        if result < keys.size:
            break
    counts[0], counts[1] = num_rows, num_free
    return result


@kernel
def _remove(table: Words, old: Words, sizes: Int64s, keys: Int64s, rows: Int32s) -> None:
    """See `HashIndex.remove`."""
    buckets, old_buckets, moved = np.uint64(sizes[0]), np.uint64(sizes[1]), np.uint64(sizes[2]) * _U16
    for i in range(keys.size):
        if i + PREFETCH_BLOCK < keys.size:
            half = mix64(np.uint64(keys[i + PREFETCH_BLOCK])) >> _U32
            offset = _first_word(half, old_buckets)
            if offset < moved:
                prefetch(table, np.int64(_first_word(half, buckets)))
            else:
                prefetch(old, np.int64(offset))
        half = mix64(np.uint64(keys[i])) >> _U32
        offset = _first_word(half, old_buckets)
        if offset < moved:
            _take_out(table, _first_word(half, buckets), buckets, np.uint32(rows[i] + 1))
        else:
            _take_out(old, offset, old_buckets, np.uint32(rows[i] + 1))


@kernel
def _take_out(words: Words, offset: np.uint64, buckets: np.uint64, entry: np.uint32) -> None:
    """Remove an entry, given by its row number plus one, which lies in the bucket at `offset` or after it."""
    j = first_equal(words, offset + _U8, entry)
    while j == _U8:
        offset += _U16
        j = first_equal(words, offset + _U8, entry)
    while True:
        place = offset + j
        heir = _heir(words, offset, buckets)
        if heir == place:
            break
        words[place], words[place + _U8] = words[heir], words[heir + _U8]
        if heir < offset + _U16:
            place = heir
            break
        offset, j = heir // _U16 * _U16, heir % _U16
    words[place], words[place + _U8] = np.uint32(0), np.uint32(0)


@kernel
def _heir(words: Words, offset: np.uint64, buckets: np.uint64) -> np.uint64:
    """Offset of an entry that may move to the bucket at `offset`: one that had no room in it, or else its last one."""
    later = offset
    while words[later + _U16 - _U1] != 0 and later + _U16 < np.uint64(words.size):
        later += _U16
        for j in range(_BUCKET):
            place = later + np.uint64(j)
            if words[place + _U8] == 0:
                break
            if _first_word(np.uint64(words[place]), buckets) <= offset:
                return place
    return offset + first_equal(words, offset + _U8, np.uint32(0)) - _U1


@kernel
def _rows_between(table: Words, old: Words, sizes: Int64s, start: int, stop: int, found: Int32s) -> int:
    """Find the rows whose hashes have a high half from `start` to `stop`; -1 if `found` has no room for them."""
    count = _rows_in(table, sizes[0], sizes, False, start, stop, found, 0)
    return _rows_in(old, sizes[1], sizes, True, start, stop, found, count) if sizes[1] > 0 and count >= 0 else count


@kernel
def _rows_in(
    words: Words, size: int, sizes: Int64s, is_old: bool, start: int, stop: int, found: Int32s, count: int
) -> int:
    """The same for one of the tables, which has `size` buckets; `found` has `count` rows already."""
    buckets, old_buckets, moved = np.uint64(size), np.uint64(sizes[1]), np.uint64(sizes[2]) * _U16
    offset, end = _first_word(np.uint64(start), buckets), _first_word(np.uint64(stop - 1), buckets) + _U16
    while offset < np.uint64(words.size):
        if offset >= end and words[offset - _U1] == 0:
            break
        for j in range(_BUCKET):
            half, row = np.uint64(words[offset + np.uint64(j)]), words[offset + _U8 + np.uint64(j)]
            if row == 0:
                break
            if np.uint64(start) <= half < np.uint64(stop) and (_first_word(half, old_buckets) >= moved) == is_old:
                if count == found.size:
                    return -1
                found[np.uint64(count)] = row - 1
                count += 1
        offset += _U16
    return count


@kernel
def _move(source: Words, old_buckets: int, limit: int, start: int, stop: int, target: Words, buckets: int) -> np.int64:
    """Copy the buckets of `source` from `start` to `stop`, and those after them that may have their entries.

    Args:
        source: a table.
        old_buckets: of the table from which entries are moving, without the tail; 0: of none.
        limit: only entries are copied whose bucket there is one before this.
        start: the first bucket.
        stop: the bucket after the last.
        target: a table.
        buckets: of the target, without the tail.

    Returns:
        The first bucket that was not copied; -1 if probing ran over the end of the target.
    """
    offset, end = np.uint64(start) * _U16, np.uint64(stop) * _U16
    first_kept = np.uint64(limit) * _U16
    while offset < np.uint64(source.size):
        if offset >= end and source[offset - _U1] == 0:
            break
        for j in range(_BUCKET):
            half, row = source[offset + np.uint64(j)], source[offset + _U8 + np.uint64(j)]
            if row == 0:
                break
            if _first_word(np.uint64(half), np.uint64(old_buckets)) >= first_kept:
                continue
            place = _empty(target, _first_word(np.uint64(half), np.uint64(buckets)))
            if place >= np.uint64(target.size):
                return np.int64(-1)
            target[place], target[place + _U8] = half, row
        offset += _U16
    return np.int64(offset // _U16)


@kernel
def _empty(words: Words, offset: np.uint64) -> np.uint64:
    """Offset of the first empty entry from a bucket on, or of the end of the table."""
    while offset < np.uint64(words.size):
        j = first_equal(words, offset + _U8, np.uint32(0))
        if j < _U8:
            return offset + j
        offset += _U16
    return offset
