"""Where a store has its rows and their optimizer state: all in memory, or partly on disk.

A store knows rows by their numbers, and works on them in parts: for each part of the rows that it asks for, it gets
their positions in `rows` and `state`. In memory, the only part is all of them, and a position is a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from heterps_runtime.store.blocks import Blocks
from heterps_runtime.store.frames import Frames
from heterps_runtime.store.kernel import AnyFloats, Int32s
from heterps_runtime.store.lookup import gather_rows
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.spill import SpillSpace

__all__ = ["MemoryValues", "SpilledValues", "Values", "values_of"]

_LEAST_SPILLED = 32  # bytes of a row: in memory, a frame takes 17 besides, and a row anywhere 24
_LEAST_FRAMES = 1024  # whatever memory is given
_COPIED_ROWS = 16_384  # at a time
_TOLERATED = 16  # part of its memory that a store may use beyond its share for now


class Values(Protocol):
    """Rows and state by row number."""

    @property
    def rows(self) -> AnyFloats:
        """Rows (positions, dim); read it again for each part."""

    @property
    def state(self) -> dict[str, AnyFloats]:
        """State (positions, n) by name; read it again for each part."""

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row and its state."""

    def nbytes(self, num_rows: int) -> int:
        """Bytes of memory that so many rows take."""

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows.

        Raises:
            MemoryError: there is not enough memory.
            TransientError: the disk does not work.
            UserError: there is not enough disk.
        """

    def parts(self, rows: Int32s, *, change: bool) -> Iterator[tuple[slice, Int32s]]:
        """Parts of `rows` (n,), and the positions of each, which hold until the next part.

        Args:
            rows: numbers; -1: no row.
            change: whether the caller changes the rows.

        Raises:
            TransientError: the disk does not work.
        """

    def copy(self, rows: Int32s, out: AnyFloats, state: Mapping[str, AnyFloats]) -> None:
        """Copy rows (n,) and their state, which does not count as a use of them.

        Raises:
            TransientError: the disk does not work.
        """


def values_of(dim: int, dtype: DTypeLike, columns: Mapping[str, int], space: SpillSpace | None) -> Values:
    """Values for rows of so many elements; on disk, too, if there is a space and it pays."""
    in_memory = MemoryValues(dim, dtype, columns)
    if space is None or in_memory.row_nbytes < _LEAST_SPILLED:
        return in_memory
    return SpilledValues(dim, dtype, columns, space)


class MemoryValues:
    """Rows and state in memory; see `Values`.

    Args:
        dim: elements per row.
        dtype: of rows and state.
        columns: elements per row of each state array, by name.
    """

    def __init__(self, dim: int, dtype: DTypeLike, columns: Mapping[str, int]) -> None:
        self._rows = Slab(dtype, (dim,))
        self._state = {name: Slab(dtype, (n,)) for name, n in columns.items()}

    @property
    def rows(self) -> AnyFloats:
        """See `Values`."""
        return self._rows.array

    @property
    def state(self) -> dict[str, AnyFloats]:
        """See `Values`."""
        return {name: slab.array for name, slab in self._state.items()}

    @property
    def arrays(self) -> list[AnyFloats]:
        """Rows and state."""
        return [self.rows, *self.state.values()]

    @property
    def row_nbytes(self) -> int:
        """See `Values`."""
        return sum(slab.row_nbytes for slab in (self._rows, *self._state.values()))

    def nbytes(self, num_rows: int) -> int:
        """See `Values`."""
        return num_rows * self.row_nbytes

    def reserve(self, num_rows: int) -> None:
        """See `Values`."""
        for slab in (self._rows, *self._state.values()):
            slab.reserve(num_rows)

    def release_after(self, num_rows: int) -> None:
        """Give back the memory behind the first rows."""
        for slab in (self._rows, *self._state.values()):
            slab.release_after(num_rows)

    def parts(self, rows: Int32s, *, change: bool) -> Iterator[tuple[slice, Int32s]]:
        """See `Values`."""
        del change
        yield slice(0, len(rows)), rows

    def copy(self, rows: Int32s, out: AnyFloats, state: Mapping[str, AnyFloats]) -> None:
        """See `Values`."""
        gather_rows(self._rows.array, rows, out)
        for name, slab in self._state.items():
            gather_rows(slab.array, rows, state[name])


class SpilledValues:
    """Rows and state in frames of memory, and in a file what does not fit; see `Values`.

    Args:
        dim: elements per row.
        dtype: of rows and state.
        columns: elements per row of each state array, by name.
        space: memory and disk that it shares with other stores.
    """

    def __init__(self, dim: int, dtype: DTypeLike, columns: Mapping[str, int], space: SpillSpace) -> None:
        self._values = MemoryValues(dim, dtype, columns)  # by frame
        self._scratch = MemoryValues(dim, dtype, columns)
        self._frames = Frames()
        self._file = space.new_file([array[0].nbytes for array in self._values.arrays])
        self._blocks = Blocks(self._file.slots_per_block)
        self._space = space
        self._num_rows = 0
        self._positions: Int32s = np.empty(0, np.int32)
        space.add_tenant(self)

    @property
    def rows(self) -> AnyFloats:
        """See `Values`."""
        return self._values.rows

    @property
    def state(self) -> dict[str, AnyFloats]:
        """See `Values`."""
        return self._values.state

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
            self._file.read(admitted.slots, admitted.frames, self._values.arrays)
            self._space.num_read += len(admitted.slots)
            self._blocks.give_up(admitted.given_up)
            yield slice(start, stop), positions[start:stop]
            start = stop

    def copy(self, rows: Int32s, out: AnyFloats, state: Mapping[str, AnyFloats]) -> None:
        """See `Values`."""
        frames, slots = self._frames.find(rows)
        self._values.copy(frames, out, state)
        (missing,) = np.nonzero(slots >= 0)
        missing = missing[np.argsort(slots[missing])]  # rows of a block one after the other
        for first in range(0, len(missing), _COPIED_ROWS):
            part = missing[first : first + _COPIED_ROWS]
            self._scratch.reserve(len(part))
            index = np.arange(len(part), dtype=np.int32)
            self._file.read(slots[part], index, self._scratch.arrays)
            out[part] = self._scratch.rows[: len(part)]
            for name, values in self._scratch.state.items():
                state[name][part] = values[: len(part)]

    def _write(self, frames: Int32s) -> None:
        """Write the rows that are taken out of frames."""
        if not len(frames):
            return
        row_of = self._frames.row_of
        slots = self._new_slots(len(frames))
        self._file.write(slots, frames, [row_of, *self._values.arrays])
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
