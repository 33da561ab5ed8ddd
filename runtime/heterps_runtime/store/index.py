"""The hash index of a row store: key -> row number, by open addressing with linear probing.

An entry is two adjacent int64, in one cache line: `key + 1` (0 is an empty entry, so new memory is an empty table) and
a word of row number (low 32 bits) and *mark* (high 32 bits). The mark is the row's position among the rows touched in
the current step. Marks are never cleared: a mark p is valid if p < num_touched and touched[p] is that row, after Briggs
and Torczon, "An efficient representation for sparse sets", 1993. Summing duplicate keys thus needs no further memory
access.

The place of an entry is the high bits of the hash. Doubling keeps the order of entries, so that rehashing is two
sequential passes: about 25 ms per million rows, mostly for new pages.
"""

from __future__ import annotations

import numpy as np

from heterps_runtime.store.initial import ID_BITS
from heterps_runtime.store.kernel import PREFETCH_BLOCK, Int32s, Int64s, kernel, mix64, prefetch

__all__ = ["MAX_ROWS", "HashIndex", "claim_rows", "find_rows"]

MAX_ROWS = (1 << 31) - 1  # row numbers and positions are int32

_LOAD = 0.6  # share of entries in use at which the index doubles: 27 to 53 bytes per row
_ID_MASK = np.int64((1 << ID_BITS) - 1)
_LOW_WORD = np.int64(0xFFFFFFFF)


class HashIndex:
    """The memory of the index.

    Attributes:
        entries: (2 * capacity,) int64, see the module's docstring.
    """

    def __init__(self) -> None:
        self._bits = 10
        self.entries: Int64s = np.zeros(2 << self._bits, np.int64)

    @property
    def shift(self) -> np.uint64:
        """64 - log2(capacity): a hash shifted right by it is a place in the table."""
        return np.uint64(64 - self._bits)

    @property
    def max_rows(self) -> int:
        """Rows that fit without growing."""
        return int(_LOAD * (1 << self._bits))

    def reserve(self, num_rows: int) -> None:
        """Double until `num_rows` rows fit."""
        bits = self._bits
        while int(_LOAD * (1 << bits)) < num_rows:
            bits += 1
        if bits > self._bits:
            larger = np.zeros(2 << bits, np.int64)
            _rehash(self.entries, larger, np.uint64(64 - bits))
            self.entries, self._bits = larger, bits


@kernel
def find_rows(entries: Int64s, shift: np.uint64, keys: Int64s, rows: Int32s, unknown: Int32s) -> int:
    """Look up keys: rows[i] is the row of keys[i], or -1. `unknown` gets the positions of unknown keys.

    Returns:
        The number of unknown keys.
    """
    mask = (entries.size >> 1) - 1
    num_unknown = 0
    for start in range(0, keys.size, PREFETCH_BLOCK):
        stop = min(start + PREFETCH_BLOCK, keys.size)
        for i in range(start, stop):
            prefetch(entries, np.int64(mix64(np.uint64(keys[i])) >> shift) << 1)
        for i in range(start, stop):
            wanted = keys[i] + 1
            place = np.int64(mix64(np.uint64(keys[i])) >> shift)
            while True:
                found = entries[2 * place]
                if found == 0:
                    rows[i] = -1
                    unknown[num_unknown] = i
                    num_unknown += 1
                    break
                if found == wanted:
                    rows[i] = entries[2 * place + 1] & _LOW_WORD
                    break
                place = (place + 1) & mask
    return num_unknown


@kernel
def claim_rows(
    entries: Int64s,
    shift: np.uint64,
    keys: Int64s,
    first: int,
    max_rows: int,
    limits: Int64s,
    row_keys: Int64s,
    touched: Int32s,
    where: Int32s,
    counts: Int64s,
) -> int:
    """Assign rows to keys[first:], new ones at the end, and positions among the rows touched in this step.

    Args:
        entries: of the index.
        shift: of the index.
        keys: (N,).
        first: index of the first key.
        max_rows: capacity of index and row arrays.
        limits: (T, 3); [:, 0] is the number of ids of each table.
        row_keys: key of each row; appended to.
        touched: row numbers by first occurrence in this step; appended to.
        where: (N,), output: touched[where[i]] is the row of keys[i].
        counts: number of rows, number of touched rows; updated.

    Returns:
        N when done; i < N if there is no room for keys[i]; -1 - i if keys[i] belongs to no table.
    """
    mask = (entries.size >> 1) - 1
    num_rows, num_touched = counts[0], counts[1]
    result = keys.size
    for start in range(first, keys.size, PREFETCH_BLOCK):
        stop = min(start + PREFETCH_BLOCK, keys.size)
        for i in range(start, stop):
            prefetch(entries, np.int64(mix64(np.uint64(keys[i])) >> shift) << 1)
        for i in range(start, stop):
            key = keys[i]
            place = np.int64(mix64(np.uint64(key)) >> shift)
            row, mark = np.int64(-1), np.int64(0)
            while True:
                found = entries[2 * place]
                if found == 0:
                    break
                if found == key + 1:
                    word = entries[2 * place + 1]
                    row, mark = word & _LOW_WORD, word >> 32
                    break
                place = (place + 1) & mask
            if row < 0:
                table = key >> ID_BITS
                if table < 0 or table >= limits.shape[0] or (key & _ID_MASK) >= limits[table, 0]:
                    result = -1 - i
                    break
                if num_rows >= max_rows:
                    result = i
                    break
                row = num_rows
                row_keys[row] = key
                entries[2 * place] = key + 1
                num_rows += 1
                mark = num_touched  # not yet valid
            if mark < num_touched and touched[mark] == row:
                where[i] = mark
            else:
                touched[num_touched] = row
                where[i] = num_touched
                entries[2 * place + 1] = row | (num_touched << 32)
                num_touched += 1
        if result < keys.size:
            break
    counts[0], counts[1] = num_rows, num_touched
    return result


@kernel
def _rehash(entries: Int64s, larger: Int64s, shift: np.uint64) -> None:
    mask = (larger.size >> 1) - 1
    for old in range(entries.size >> 1):
        stored = entries[2 * old]
        if stored != 0:
            place = np.int64(mix64(np.uint64(stored - 1)) >> shift)
            while larger[2 * place] != 0:
                place = (place + 1) & mask
            larger[2 * place] = stored
            larger[2 * place + 1] = entries[2 * old + 1]
