"""Which rows of a store are in memory, and where the others are on disk.

Memory has frames of one row. A row that is needed gets a frame. To make room, a hand goes around the frames: it takes
out the rows without uses, and takes a use away from the others as it passes (CLOCK with a count). A use is a call that
needed the row: a row that is needed once does not displace those that are needed often.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.kernel import Int32s, Int64s, kernel, prefetch
from heterps_runtime.store.memory import Slab

__all__ = ["Admitted", "Frames"]

Bytes = NDArray[np.uint8]

_MOST_USES = 15  # a row that was needed often leaves after so many rounds of the hand
_FREE = 255  # uses of a frame without a row
_AHEAD = 16  # rows whose entries are requested in advance


class Admitted(NamedTuple):
    """Rows that have got frames, and slots on disk that are not needed any more."""

    slots: Int32s  # (n,), where the rows are on disk
    frames: Int32s  # (n,), where they go
    given_up: Int32s  # (m,)


class Frames:
    """The places of rows: a frame in memory, or a slot on disk.

    Attributes:
        num_begun: frames that have or had a row.
    """

    def __init__(self) -> None:
        self._places = Slab(np.int32)  # of each row: its frame + 1, or -1 - its slot, or 0 for a row without values
        self._row_of = Slab(np.int32)  # of each frame
        self._slot_of = Slab(np.int32)  # of the row in the frame, as long as the slot has its values, or -1
        self._uses = Slab(np.uint8)
        self._calls = Slab(np.int64)  # the last call that needed the frame
        self._of_frames = self._row_of, self._slot_of, self._uses, self._calls
        self._call = 0
        self._hand: Int64s = np.zeros(1, np.int64)
        self._free: Int32s = np.empty(0, np.int32)
        self.num_begun = 0

    @property
    def num_used(self) -> int:
        """Frames that have a row."""
        return self.num_begun - len(self._free)

    @property
    def row_of(self) -> Int32s:
        """Row number of each frame; read it again after `reserve`."""
        numbers: Int32s = self._row_of.array
        return numbers

    @property
    def row_nbytes(self) -> int:
        """Bytes of memory for each row, wherever it is."""
        return self._places.row_nbytes

    @property
    def frame_nbytes(self) -> int:
        """Bytes of memory for each frame, without its row."""
        return sum(slab.row_nbytes for slab in self._of_frames)

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows."""
        self._places.reserve(num_rows)

    def need(self, rows: Int32s, start: int, max_frames: int) -> tuple[int, int]:
        """Begin a call: note that rows[start:] are needed, as many as `max_frames` frames can have.

        Args:
            rows: (n,); -1: no row.
            start: the first one that is needed.
            max_frames: there are.

        Returns:
            The row after the last that is needed, and the number of those that have no frame.
        """
        self._call += 1
        places, calls, uses = self._places.array, self._calls.array, self._uses.array
        missing = np.zeros(1, np.int64)
        stop = _need(rows, start, max_frames, places, calls, uses, self._call, missing)
        return int(stop), int(missing[0])

    def take_out(self, count: int) -> Int32s:
        """Take `count` rows that this call does not need out of their frames.

        Returns:
            Frames (m,) whose rows have to be written to slots, and to be `moved` there, before `admit`.
        """
        frames = np.empty(count, np.int32)
        _choose(self.num_begun, self._hand, self._uses.array, self._calls.array, self._call, frames)
        return self._release(frames)

    def shrink(self, num_frames: int) -> Int32s:
        """Use only the first frames from now on; see `take_out`."""
        others = np.arange(num_frames, self.num_begun, dtype=np.int32)
        changed = self._release(others[self._uses.array[others] != _FREE])
        self._free = self._free[self._free < num_frames]
        self.num_begun = min(num_frames, self.num_begun)
        return changed

    def forget(self, rows: Int32s) -> Int32s:
        """Forget rows (n,), which have values; returns the slots (m,) that had them."""
        frames, slots = np.empty((2, len(rows)), np.int32)
        arrays = self._places.array, self._slot_of.array, self._uses.array
        counts = np.zeros(2, np.int64)
        _forget(rows, *arrays, frames, slots, counts)
        num_frames, num_slots = counts.tolist()
        self._free = np.concatenate([self._free, frames[:num_frames]])
        return slots[:num_slots]

    def _release(self, frames: Int32s) -> Int32s:
        changed = np.empty(len(frames), np.int32)
        arrays = self._places.array, self._row_of.array, self._slot_of.array, self._uses.array
        num_changed = _release(frames, *arrays, changed)
        self._free = np.concatenate([self._free, frames])
        return changed[:num_changed]

    def moved(self, rows: Int32s, slots: Int32s) -> None:
        """Note that rows (n,) are in slots (n,) now, or in frames and also in these slots."""
        _move(rows, slots, self._places.array, self._slot_of.array, self._uses.array)

    def admit(self, rows: Int32s, start: int, stop: int, positions: Int32s, *, change: bool) -> Admitted:
        """Give the rows that `need` has found frames.

        Args:
            rows: (n,).
            start: of the call.
            stop: of the call.
            positions: (n,), output: the frames of rows[start:stop]; -1: no row.
            change: whether the caller changes the rows.
        """
        count = stop - start
        for slab in self._of_frames:
            slab.reserve(self.num_begun + count)
        places, calls = self._places.array, self._calls.array
        of_frames = self._row_of.array, self._slot_of.array, self._uses.array
        slots, frames, given_up = np.empty((3, count), np.int32)
        counts = np.array([self.num_begun, len(self._free), 0, 0], np.int64)
        _admit(
            rows, start, stop, change, self._call, places, *of_frames, calls, self._free, positions,
            slots, frames, given_up, counts,
        )  # fmt: skip
        self.num_begun, num_free, num_read, num_given_up = counts.tolist()
        self._free = self._free[:num_free]
        return Admitted(slots[:num_read], frames[:num_read], given_up[:num_given_up])

    def find(self, rows: Int32s) -> tuple[Int32s, Int32s]:
        """Frames of rows (n,), or -1, and the slots of those without a frame, or -1. This is not a use of them."""
        places = self._places.array[rows]
        return np.maximum(places, 0) - 1, np.maximum(-places, 0) - 1

    def slots(self, rows: Int32s) -> Int32s:
        """The slots that have the values of rows (n,), or -1."""
        frames, slots = self.find(rows)
        kept: Int32s = np.where(frames < 0, slots, self._slot_of.array[np.maximum(frames, 0)])
        return kept


@kernel
def _need(
    rows: Int32s, start: int, max_frames: int, places: Int32s, calls: Int64s, uses: Bytes, call: int, missing: Int64s
) -> int:
    needed = 0
    for i in range(start, rows.size):
        if i + _AHEAD < rows.size:
            prefetch(places, np.int64(max(rows[i + _AHEAD], 0)))
        if rows[i] < 0:
            continue
        place = places[np.uint64(rows[i])]
        frame = np.uint64(place) - np.uint64(1)
        if place > 0 and calls[frame] == call:
            continue
        if needed == max_frames:
            return i
        needed += 1
        if place <= 0:
            missing[0] += 1
        else:
            calls[frame] = call
            if uses[frame] < _MOST_USES:
                uses[frame] += 1
    return rows.size


@kernel
def _choose(num_frames: int, hand: Int64s, uses: Bytes, calls: Int64s, call: int, frames: Int32s) -> None:
    """Choose rows that the call does not need; there are enough of them."""
    count = 0
    while count < frames.size:
        frame = np.uint64(hand[0]) if hand[0] < num_frames else np.uint64(0)
        hand[0] = frame + np.uint64(1)
        if calls[frame] == call or uses[frame] == _FREE:
            continue
        if uses[frame] > 0:
            uses[frame] -= 1
        else:
            frames[count] = frame
            calls[frame] = call  # chosen
            count += 1


@kernel
def _release(frames: Int32s, places: Int32s, row_of: Int32s, slot_of: Int32s, uses: Bytes, changed: Int32s) -> int:
    """Free frames; those whose rows are not in slots go to `changed`."""
    count = 0
    for i in range(frames.size):
        frame = np.uint64(frames[i])
        uses[frame] = _FREE
        if slot_of[frame] >= 0:
            places[np.uint64(row_of[frame])] = -1 - slot_of[frame]
        else:
            changed[count] = frame
            count += 1
    return count


@kernel
def _forget(
    rows: Int32s, places: Int32s, slot_of: Int32s, uses: Bytes, frames: Int32s, slots: Int32s, counts: Int64s
) -> None:
    """See `Frames.forget`; counts (2,), output: frames that are free now, and slots that are not needed any more."""
    num_frames, num_slots = 0, 0
    for i in range(rows.size):
        row = np.uint64(rows[i])
        slot = -1 - places[row]
        if places[row] > 0:
            frame = np.uint64(places[row]) - np.uint64(1)
            slot = slot_of[frame]
            uses[frame] = _FREE
            frames[num_frames] = frame
            num_frames += 1
        if slot >= 0 and places[row] != 0:
            slots[num_slots] = slot
            num_slots += 1
        places[row] = 0
    counts[0], counts[1] = num_frames, num_slots


@kernel
def _move(rows: Int32s, slots: Int32s, places: Int32s, slot_of: Int32s, uses: Bytes) -> None:
    for i in range(rows.size):
        row = np.uint64(rows[i])
        frame = np.uint64(places[row]) - np.uint64(1)
        if places[row] > 0 and uses[frame] != _FREE:
            slot_of[frame] = slots[i]
        else:
            places[row] = -1 - slots[i]


@kernel
def _admit(
    rows: Int32s,
    start: int,
    stop: int,
    change: bool,
    call: int,
    places: Int32s,
    row_of: Int32s,
    slot_of: Int32s,
    uses: Bytes,
    calls: Int64s,
    free: Int32s,
    positions: Int32s,
    slots: Int32s,
    frames: Int32s,
    given_up: Int32s,
    counts: Int64s,
) -> None:
    """See `Frames.admit`; counts (4,): frames begun and free frames, updated; outputs: rows to read, slots given up."""
    num_begun, num_free, num_read, num_given_up = counts[0], counts[1], 0, 0
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(places, np.int64(max(rows[i + _AHEAD], 0)))
        if rows[i] < 0:
            positions[i] = -1
            continue
        row = np.uint64(rows[i])
        if places[row] > 0:
            frame = np.uint64(places[row]) - np.uint64(1)
        else:
            if num_free > 0:
                num_free -= 1
                frame = np.uint64(free[np.uint64(num_free)])
            else:
                frame = np.uint64(num_begun)
                num_begun += 1
            slot_of[frame] = -1
            if places[row] < 0:
                slot_of[frame] = -1 - places[row]
                slots[num_read], frames[num_read] = slot_of[frame], frame
                num_read += 1
            row_of[frame], uses[frame], calls[frame] = row, 0, call
            places[row] = np.int64(frame) + 1
        if change and slot_of[frame] >= 0:
            given_up[num_given_up] = slot_of[frame]
            num_given_up += 1
            slot_of[frame] = -1
        positions[i] = frame
    counts[0], counts[1], counts[2], counts[3] = num_begun, num_free, num_read, num_given_up
