"""Where a store has the columns of its rows: all in memory, or partly on disk.

A store knows rows by their numbers, and works on them in parts: for each part of the rows that it asks for, it gets
their positions in the columns. In memory, the only part is all of them, and a position is a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.blocks import Blocks
from heterps_runtime.store.frames import Frames
from heterps_runtime.store.kernel import Int32s
from heterps_runtime.store.lookup import gather_rows
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.spill import SpillSpace

__all__ = ["MemoryValues", "SpilledValues", "Types", "Values", "values_of"]

Types = Mapping[str, tuple[np.dtype[Any], int]]
"""Name of each column -> (type, elements per row)."""
Columns = Mapping[str, NDArray[Any]]

_LEAST_SPILLED = 32  # bytes of a row: in memory, a frame takes 17 besides, and a row anywhere 24
_LEAST_FRAMES = 1024  # whatever memory is given
_COPIED_ROWS = 16_384  # at a time
_TOLERATED = 16  # part of its memory that a store may use beyond its share for now


class Values(Protocol):
    """Columns of rows, by row number."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Each column, (positions, n), by name; read them again for each part."""

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""

    def nbytes(self, num_rows: int) -> int:
        """Bytes of memory that so many rows take."""

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows.

        Raises:
            MemoryError: there is not enough memory.
        """

    def parts(self, rows: Int32s, *, change: bool) -> Iterator[tuple[slice, Int32s]]:
        """Parts of `rows` (n,), and the positions of each, which hold until the next part.

        Args:
            rows: numbers; -1: no row.
            change: whether the caller changes the rows.

        Raises:
            TransientError: the disk does not work.
            UserError: it is full.
        """

    def copy(self, rows: Int32s, out: Columns) -> None:
        """Copy rows (n,) to columns (n, ...), which does not count as a use of them.

        Raises:
            TransientError: the disk does not work.
        """

    def forget(self, rows: Int32s) -> None:
        """Forget the values of rows (n,), whose numbers may be used again."""


def values_of(types: Types, space: SpillSpace | None) -> Values:
    """Values for rows with these columns; on disk, too, if there is a space and it pays."""
    in_memory = MemoryValues(types)
    return in_memory if space is None or in_memory.row_nbytes < _LEAST_SPILLED else SpilledValues(types, space)


class MemoryValues:
    """Columns in memory; see `Values`.

    Args:
        types: of the columns.
    """

    def __init__(self, types: Types) -> None:
        self._slabs = {name: Slab(dtype, (n,)) for name, (dtype, n) in types.items()}

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """See `Values`."""
        return {name: slab.array for name, slab in self._slabs.items()}

    @property
    def row_nbytes(self) -> int:
        """See `Values`."""
        return sum(slab.row_nbytes for slab in self._slabs.values())

    def nbytes(self, num_rows: int) -> int:
        """See `Values`."""
        return num_rows * self.row_nbytes

    def reserve(self, num_rows: int) -> None:
        """See `Values`."""
        for slab in self._slabs.values():
            slab.reserve(num_rows)

    def release_after(self, num_rows: int) -> None:
        """Give back the memory behind the first rows."""
        for slab in self._slabs.values():
            slab.release_after(num_rows)

    def parts(self, rows: Int32s, *, change: bool) -> Iterator[tuple[slice, Int32s]]:
        """See `Values`."""
        del change
        yield slice(0, len(rows)), rows

    def copy(self, rows: Int32s, out: Columns) -> None:
        """See `Values`."""
        for name, slab in self._slabs.items():
            gather_rows(slab.array, rows, out[name])

    def forget(self, rows: Int32s) -> None:
        """See `Values`."""


class SpilledValues:
    """Columns in frames of memory, and in a file the rows for which there are no frames; see `Values`.

    Args:
        types: of the columns.
        space: memory and disk that it shares with other stores.
    """

    def __init__(self, types: Types, space: SpillSpace) -> None:
        self._values = MemoryValues(types)  # by frame
        self._scratch = MemoryValues(types)
        self._frames = Frames()
        self._file = space.new_file([array[0].nbytes for array in self._arrays])
        self._blocks = Blocks(self._file.slots_per_block)
        self._space = space
        self._num_rows = 0
        self._positions: Int32s = np.empty(0, np.int32)
        space.add_tenant(self)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """See `Values`."""
        return self._values.columns

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        return list(self._values.columns.values())

    @property
    def row_nbytes(self) -> int:
        """See `Values`."""
        return self._values.row_nbytes

    @property
    def wanted_nbytes(self) -> int:
        """See `Tenant`."""
        return self._num_rows * self._frame_nbytes

    @property
    def _frame_nbytes(self) -> int:
        return self.row_nbytes + self._frames.frame_nbytes

    def nbytes(self, num_rows: int) -> int:
        """See `Values`."""
        return self._frames.num_used * self._frame_nbytes + num_rows * self._frames.row_nbytes + self._blocks.nbytes

    def reserve(self, num_rows: int) -> None:
        """See `Values`."""
        self._num_rows = max(self._num_rows, num_rows)
        self._frames.reserve(num_rows)

    def parts(self, rows: Int32s, *, change: bool) -> Iterator[tuple[slice, Int32s]]:
        """See `Values`."""
        max_frames = max(_LEAST_FRAMES, self._space.share_of(self) // self._frame_nbytes)
        if self._frames.num_used > max_frames + max_frames // _TOLERATED:
            self._write(self._frames.shrink(max_frames))
            self._values.release_after(max_frames)
        if len(self._positions) < len(rows):
            self._positions = np.empty(len(rows) + len(rows) // 4, np.int32)
        positions = self._positions[: len(rows)]
        start = 0
        while start < len(rows):
            stop, missing = self._frames.need(rows, start, max_frames)
            lacking = self._frames.num_used + missing - max_frames
            if lacking > 0:
                self._write(self._frames.take_out(lacking))
            admitted = self._frames.admit(rows, start, stop, positions, change=change)
            self._values.reserve(self._frames.num_begun)
            self._file.read(admitted.slots, admitted.frames, self._arrays)
            self._space.num_read += len(admitted.slots)
            self._blocks.give_up(admitted.given_up)
            yield slice(start, stop), positions[start:stop]
            start = stop

    def copy(self, rows: Int32s, out: Columns) -> None:
        """See `Values`."""
        frames, slots = self._frames.find(rows)
        self._values.copy(frames, out)
        (missing,) = np.nonzero(slots >= 0)
        missing = missing[np.argsort(slots[missing])]  # rows of a block one after the other
        for first in range(0, len(missing), _COPIED_ROWS):
            part = missing[first : first + _COPIED_ROWS]
            self._scratch.reserve(len(part))
            copied = self._scratch.columns
            self._file.read(slots[part], np.arange(len(part), dtype=np.int32), list(copied.values()))
            for name, values in copied.items():
                out[name][part] = values[: len(part)]

    def forget(self, rows: Int32s) -> None:
        """See `Values`."""
        self._blocks.give_up(self._frames.forget(rows))

    def _write(self, frames: Int32s) -> None:
        """Write the rows that are taken out of frames."""
        if not len(frames):
            return
        row_of = self._frames.row_of
        slots = self._new_slots(len(frames))
        self._file.write(slots, frames, [row_of, *self._arrays])
        self._space.num_written += len(frames)
        self._frames.moved(row_of[frames], slots)
        self._clean()

    def _clean(self) -> None:
        """Move rows out of blocks that have few, so that these can be used again."""
        blocks = self._blocks.sparse()
        if not len(blocks):
            return
        rows, records = self._file.read_blocks(blocks)
        slots = self._blocks.slots_of(blocks)
        index = np.flatnonzero(self._frames.slots(rows) == slots).astype(np.int32)
        moved = self._new_slots(len(index))
        self._file.write(moved, index, [records])
        self._frames.moved(rows[index], moved)
        self._blocks.give_up(slots[index])

    def _new_slots(self, count: int) -> Int32s:
        slots = self._blocks.allocate(count)
        self._file.reserve(self._blocks.num_blocks)
        return slots
