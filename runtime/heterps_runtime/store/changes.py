"""Which rows of a store have changed since a snapshot.

Snapshots are numbered from 1. The mark of a row is the number of the first snapshot that has the row's present value:
`now`, that of the next one, if the row was changed since the last. So beginning a snapshot takes no time, however many
rows there are, and the rows that changed between snapshots b and s are those with marks from b + 1 to s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.kernel import Int32s, Int64s, kernel, prefetch
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.team import Team

__all__ = ["AHEAD", "LOADED", "MAX_SNAPSHOTS", "Changes", "find_before", "find_marked"]

Marks = NDArray[np.uint16]

LOADED = 0  # mark of rows that a checkpoint gave
_GONE = (1 << 16) - 1  # mark of rows that were removed; marks are uint16
AHEAD = _GONE - 1  # mark of rows that were copied ahead of a change: they are not the store's yet
MAX_SNAPSHOTS = AHEAD - 2  # then `now` is the greatest mark but one
_PREFETCHED = 32  # rows whose marks are requested in advance
_BLOCK = 64  # rows whose marks are compared together: where few have changed, most blocks have none


class Changes:
    """Marks of the rows of a store.

    Attributes:
        now: mark of the rows that change from now on, the number of the next snapshot.
    """

    def __init__(self) -> None:
        self.now = LOADED + 1
        self._marks = Slab(np.uint16)
        self._num_new = 0  # rows with the mark `now`

    @property
    def marks(self) -> Marks:
        """Mark of each row; read it again after `reserve`."""
        return self._marks.array

    @property
    def row_nbytes(self) -> int:
        """Bytes per row."""
        return self._marks.row_nbytes

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows."""
        self._marks.reserve(num_rows)

    def add(self, rows: slice | Int32s, mark: int) -> None:
        """Give new rows a mark, `now`, `LOADED` or `AHEAD`."""
        marks = self._marks.array
        marks[rows] = mark
        if mark == self.now:
            self._num_new += len(marks[rows])

    def remove(self, rows: Int32s) -> None:
        """Note that rows (n,) are removed."""
        marks = self._marks.array
        self._num_new -= int(np.count_nonzero(marks[rows] == self.now))
        marks[rows] = _GONE

    def touch(self, rows: Int32s, team: Team) -> None:
        """Note that rows (n,), which are distinct, are being changed."""
        marks = self._marks.array
        self._num_new += sum(team.share_rows(len(rows), lambda start, stop: _touch(marks, rows[start:stop], self.now)))

    def count_after(self, snapshot: int, num_rows: int) -> int:
        """Number of rows that have changed after a snapshot, of the first `num_rows` and without those removed.

        That is known for the last snapshot. For earlier ones, which are needed if the last one failed, marks are read:
        a few milliseconds for 20 million rows.
        """
        if snapshot == self.now - 1:
            return self._num_new
        marks = self._marks.array[:num_rows]
        return int(np.count_nonzero(marks > snapshot) - np.count_nonzero(marks >= AHEAD))

    def advance(self) -> int:
        """Begin a snapshot; returns its number, at most `MAX_SNAPSHOTS`."""
        assert self.now <= MAX_SNAPSHOTS, "the caller starts again in time"
        self.now += 1
        self._num_new = 0
        return self.now - 1

    def find_ahead(self, num_rows: int) -> Int32s:
        """The rows (n,) with the mark `AHEAD`, of the first `num_rows`."""
        found: Int32s = np.flatnonzero(self._marks.array[:num_rows] == AHEAD).astype(np.int32)
        return found

    def start_again(self, num_rows: int) -> None:
        """Forget which rows changed when, which takes time in proportion to their number."""
        marks = self._marks.array[:num_rows]
        marks[marks < AHEAD] = LOADED
        self._num_new = 0
        self.now = LOADED + 1


@kernel
def _touch(marks: Marks, rows: Int32s, now: int) -> int:
    """Mark rows; returns how many had another mark."""
    count = 0
    for i in range(rows.size):
        if i + _PREFETCHED < rows.size:
            prefetch(marks, np.int64(rows[i + _PREFETCHED]))
        row = np.uint64(rows[i])
        count += marks[row] != now
        marks[row] = now
    return count


@kernel
def find_marked(marks: Marks, start: int, stop: int, low: int, high: int, found: Int32s, end: Int64s) -> int:
    """Find the rows from `start` to `stop` with marks from `low` to `high`, as many as `found` has room for.

    Args:
        marks: of all rows.
        start: the first row.
        stop: the row after the last.
        low: the least mark.
        high: the greatest mark.
        found: output, row numbers.
        end: (1,), output: the row at which to go on.

    Returns:
        The number of rows found.
    """
    count = 0
    row = start
    while row < stop and count < found.size:
        following = min(row + _BLOCK, stop)
        if following - row == _BLOCK:
            hit = 0
            for i in range(np.uint64(row), np.uint64(following)):
                hit |= (low <= marks[i]) & (marks[i] <= high)
            if not hit:
                row = following
                continue
        while row < following and count < found.size:
            found[count] = row
            count += low <= marks[row] <= high
            row += 1
    end[0] = row
    return count


@kernel
def find_before(marks: Marks, rows: Int32s, start: int, stop: int, low: int, high: int, found: Int32s) -> int:
    """Find which of `rows` (n,) lie from `start` to `stop` and have marks from `low` to `high`; returns their number.

    Args:
        marks: of all rows.
        rows: row numbers.
        start: the first row.
        stop: the row after the last.
        low: the least mark.
        high: the greatest mark.
        found: (n,), output: row numbers.
    """
    count = 0
    for i in range(rows.size):
        row = rows[i]
        found[count] = row
        count += start <= row < stop and low <= marks[row] <= high
    return count
