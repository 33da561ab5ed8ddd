"""Copying rows as they were at one commit while training goes on.

The rows are copied in pieces, by the thread that owns the store, between its other work. A row that a step is about to
change before its turn has come is copied first. So a snapshot takes no time to begin, a piece takes a few milliseconds,
and the memory for it is that of a few pieces and of the rows that change meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.changes import Changes, find_before, find_marked
from heterps_runtime.store.kernel import AnyFloats, Int32s, Int64s

__all__ = ["RowChunk", "RowSnapshot", "rows_of_piece"]

_PIECE_BYTES = 8 << 20  # copied in about 5 ms
_MOST_PIECE_ROWS = 65_536
_SCANNED_ROWS = 4 << 20  # at a time: their marks are read in about 3 ms


def rows_of_piece(row_nbytes: int) -> int:
    """Rows that are copied at a time, a multiple of 8, so that arrays of whole pieces stay aligned."""
    return max(8, min(_PIECE_BYTES // row_nbytes, _MOST_PIECE_ROWS) // 8 * 8)


class RowChunk(NamedTuple):
    """A copy of rows: row i of each array belongs to keys[i]."""

    keys: Int64s  # (n,)
    rows: AnyFloats  # (n, dim); (n, 0) of candidates
    state: dict[str, NDArray[Any]]  # optimizer state, (n, dim) or (n, 1) each; last steps, (n, 1)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in a file, without the keys."""
        rows = {"rows": self.rows} if self.rows.shape[1] else {}
        return rows | {f"state/{name}": values for name, values in self.state.items()}

    def part(self, start: int, stop: int) -> RowChunk:
        """Views of some of the rows."""
        state = {name: values[start:stop] for name, values in self.state.items()}
        return RowChunk(self.keys[start:stop], self.rows[start:stop], state)


class Rows(Protocol):
    """The rows of a store."""

    changes: Changes

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row with its key and its state."""

    def new_chunk(self, count: int) -> RowChunk:
        """Memory for a copy of `count` rows."""

    def copy(self, positions: Int32s, out: RowChunk) -> None:
        """Copy the rows at positions (n,) to `out`, n rows."""


class RowSnapshot:
    """A copy in progress of the rows of a store that have changed between two commits.

    Args:
        store: the rows.
        marks: the least and the greatest mark of the rows to copy.
        num_rows: rows that the store has.
        total: rows to copy.

    Attributes:
        total: rows to copy.
        piece_rows: rows of a piece; the last one may have fewer.
        num_held: rows whose copies are held.
    """

    def __init__(self, store: Rows, marks: tuple[int, int], num_rows: int, total: int) -> None:
        self.total = total
        self.piece_rows = rows_of_piece(store.row_nbytes)
        self._store = store
        self._low, self._high = marks
        self._next, self._stop = 0, num_rows  # rows that are not looked at yet
        self._ahead: deque[RowChunk] = deque()  # copied before their turn
        self._begun = 0  # rows in `_piece` and in all pieces before
        self._piece: RowChunk | None = None
        self._filled = 0
        self.num_held = 0
        self._found: Int32s = np.empty(self.piece_rows, np.int32)
        self._end: Int64s = np.zeros(1, np.int64)

    @property
    def done(self) -> bool:
        """Whether all pieces have been returned."""
        return self._begun == self.total and self._piece is None

    def keep(self, touched: Int32s) -> None:
        """Copy what the snapshot still needs of rows (n,) that are about to change, before they are marked."""
        if self._next == self._stop:
            return
        found = np.empty(len(touched), np.int32)
        count = find_before(self._store.changes.marks, touched, self._next, self._stop, self._low, self._high, found)
        if count:
            chunk = self._store.new_chunk(count)
            self._store.copy(found[:count], chunk)
            self._ahead.append(chunk)
            self.num_held += count

    def advance(self) -> RowChunk | None:
        """Copy some rows; returns the next piece if it is complete. Not to be called any more once `done`."""
        if self._piece is None:
            size = min(self.piece_rows, self.total - self._begun)
            self._piece, self._filled = self._store.new_chunk(size), 0
            self._begun += size
            self.num_held += size
        piece, size = self._piece, len(self._piece.keys)
        while self._ahead and self._filled < size:
            self._take_ahead(piece.part(self._filled, size))
        if self._filled < size:
            stop = min(self._stop, self._next + _SCANNED_ROWS)
            room = self._found[: size - self._filled]
            marks = self._store.changes.marks
            count = find_marked(marks, self._next, stop, self._low, self._high, room, self._end)
            self._next = int(self._end[0])
            self._store.copy(room[:count], piece.part(self._filled, self._filled + count))
            self._filled += count
            assert self._filled == size or self._next < self._stop, "each row was counted"
        if self._filled < size:
            return None
        self._piece = None
        self.num_held -= size
        return piece

    def _take_ahead(self, room: RowChunk) -> None:
        chunk = self._ahead.popleft()
        count = min(len(chunk.keys), len(room.keys))
        room.keys[:count], room.rows[:count] = chunk.keys[:count], chunk.rows[:count]
        for name, values in room.state.items():
            values[:count] = chunk.state[name][:count]
        if count < len(chunk.keys):
            self._ahead.appendleft(chunk.part(count, len(chunk.keys)))
        self._filled += count
        self.num_held -= count
