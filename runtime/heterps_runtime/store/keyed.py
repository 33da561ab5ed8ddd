"""Rows of several columns that are found by their keys: they are added, evicted, and copied as of one commit.

A row that is removed leaves its place to the next new one. If ids of some table go when no step uses them any more
(`partition.access`), each row has the number of the last step that used it.

A store is not thread-safe; only `len` and `nbytes` may be asked for by any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.partition.access import Ages
from heterps_runtime.store.ageing import by_period, find_due, stamp
from heterps_runtime.store.changes import AHEAD, LOADED, MAX_SNAPSHOTS, Changes, find_marked
from heterps_runtime.store.index import MAX_ROWS, HashIndex
from heterps_runtime.store.initial import ID_BITS, TableSpec
from heterps_runtime.store.kernel import Int32s, Int64s, view
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.lookup import gather_rows, scatter_rows
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.notes import ALL, Notes
from heterps_runtime.store.snapshot import RowChunk, RowSnapshot, rows_of_piece
from heterps_runtime.store.team import ALONE, Team
from heterps_runtime.store.values import Values

__all__ = ["LAST_STEP", "ROWS", "KeyFilter", "KeyedRows"]

ROWS = "rows"  # the column of the rows' elements; all others are their state
LAST_STEP = "last_step"  # the column of the last steps
_NO_KEY = -1
_LOOKED_AT = 1 << 16  # rows, at a time: removing as many takes a few milliseconds
_MARKS_READ = 1 << 22  # rows, at a time, of which few have changed: as long

KeyFilter: TypeAlias = Callable[[Int64s], NDArray[np.bool_]]  # keys (n,) -> a mask (n,)


class KeyedRows:
    """Rows of some tables.

    Args:
        values: columns; all but `ROWS` are state.
        initial: value of each state column in a new row.
        limits: (T, 3); [:, 0] is the number of ids of each table.
        tables: by number.
        ages: when ids of these tables go.
        draw: returns the initial elements (n, dim) of keys (n,); None: there is no column of elements.
        team: threads that look up keys.

    Attributes:
        changes: which rows have changed since which snapshot.
        notes: of what changes and is removed while others copy.
        tables: by number.
    """

    def __init__(
        self,
        values: Values,
        initial: Mapping[str, float],
        limits: Int64s,
        tables: Mapping[int, TableSpec],
        ages: Ages,
        draw: Callable[[Int64s], NDArray[Any]] | None = None,
        team: Team = ALONE,
    ) -> None:
        self.changes = Changes()
        self.notes = Notes(self.changes)
        self.tables = dict(tables)
        self._ages = by_period(ages)
        self._values = values
        self._initial = dict(initial)
        self._draw = draw
        self._team = team
        self._last_steps = Slab(np.int32, (1,)) if self._ages else None  # in memory: those of a turn are all over it
        self._limits = limits
        self._num_rows = 0  # with those that were removed
        self._index = HashIndex()
        self._keys = Slab(np.int64)
        self._free: Int32s = np.empty(0, np.int32)  # of these, the first `_num_free` were removed
        self._num_free = 0
        self._num_ahead = 0  # copied ahead
        self._snapshot: RowSnapshot | None = None  # in progress
        self._unique = UniqueKeys()
        # Scratch memory, kept between calls: (m,) for the largest m so far.
        self._positions: Int32s = np.empty(0, np.int32)
        self._unknown: Int32s = np.empty(0, np.int32)

    def __len__(self) -> int:
        return self._num_rows - self._num_free - self._num_ahead

    @property
    def nbytes(self) -> int:
        """Bytes of memory for rows, state, keys, index and a snapshot in progress, without reserved memory.

        A row that was removed keeps its memory, for the next new one.
        """
        snapshot = self._snapshot  # the pulse's thread asks, too
        held = snapshot.num_held * self.row_nbytes if snapshot else 0
        per_row = self.row_nbytes - self._values.row_nbytes + self.changes.row_nbytes
        values = self._values.nbytes(self._num_rows)
        return self._num_rows * per_row + values + self._index.nbytes + self._free.nbytes + held

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row with its key and its state, as in a checkpoint."""
        last_step = self._last_steps.row_nbytes if self._last_steps else 0
        return self._keys.row_nbytes + self._values.row_nbytes + last_step

    @property
    def column_types(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """Name of each column in a file -> (type, elements per row)."""
        return {
            name if name == ROWS else f"state/{name}": (array.dtype, array.shape[1])
            for name, array in self._columns.items()
        }

    @property
    def _columns(self) -> dict[str, NDArray[Any]]:
        """Columns, of which only types and widths may be used."""
        return self._values.columns | ({LAST_STEP: self._last_steps.array} if self._last_steps else {})

    def count_changed(self, since: int | None) -> int:
        """Number of rows that have changed after a snapshot; None: of all rows."""
        known = since is not None and since < self.changes.now  # snapshots are counted anew after `MAX_SNAPSHOTS`
        return self.changes.count_after(since, self._num_rows) if known and since is not None else len(self)

    def begin_snapshot(self, since: int | None = None) -> tuple[int, RowSnapshot]:
        """Begin a copy of the rows as they are now. None must be in progress.

        Args:
            since: the number of an earlier snapshot, or `LOADED`: only rows that have changed after it are copied;
                None: all rows.

        Returns:
            The snapshot's number, and the copy, to be advanced until it is done, and ended.
        """
        assert self._snapshot is None, "one at a time"
        if self.changes.now > MAX_SNAPSHOTS:
            self.changes.start_again(self._num_rows)
            self.notes.end()
        total = self.count_changed(since)
        low = since + 1 if since is not None and since < self.changes.now else LOADED
        number = self.changes.advance()
        self._snapshot = RowSnapshot(self, (low, number), self._num_rows, total)
        return number, self._snapshot

    def end_snapshot(self) -> None:
        """Forget a snapshot that is done, or that is not needed any more."""
        self._snapshot = None

    def copy_from(self, start: int, wanted: KeyFilter | None = None, since: int = ALL) -> tuple[RowChunk, int]:
        """Copy some rows; `notes` say what changes meanwhile.

        Args:
            start: place of the first row that may be copied; 0 at first.
            wanted: keys (n,) -> mask (n,) of those to copy; None: all.
            since: a note: only rows that have changed after it; `ALL`: also others.

        Returns:
            At most as many rows as a piece of a snapshot has, found within a few milliseconds, and the `start` of the
            next ones; -1: there are no more.

        Raises:
            ValueError: `start` is negative.
        """
        if start < 0:
            raise ValueError(f"start: must not be negative, is {start}")
        start = min(start, self._num_rows)
        found, end = np.empty(rows_of_piece(self.row_nbytes), np.int32), np.full(1, start, np.int64)
        low, stop = (LOADED, self._num_rows) if since == ALL else (since + 1, min(start + _MARKS_READ, self._num_rows))
        count = find_marked(self.changes.marks, start, stop, low, self.changes.now, found, end)
        rows = found[:count]
        if wanted is not None:
            rows = rows[wanted(self._keys.array[rows])]
        chunk = self.new_chunk(len(rows))
        self.copy(rows, chunk)
        following = int(end[0])
        return chunk, following if following < self._num_rows else -1

    def new_chunk(self, count: int) -> RowChunk:
        """Memory for a copy of `count` rows."""
        arrays = {name: np.empty((count, array.shape[1]), array.dtype) for name, array in self._columns.items()}
        rows = arrays.pop(ROWS, np.empty((count, 0)))
        return RowChunk(np.empty(count, np.int64), rows, arrays)

    def copy(self, positions: Int32s, out: RowChunk) -> None:
        """Copy the rows at positions (n,) to `out`, n rows."""
        np.take(self._keys.array, positions, out=out.keys, mode="clip")  # "raise" would copy twice
        self._values.copy(positions, {ROWS: out.rows, **out.state})
        if self._last_steps:
            gather_rows(self._last_steps.array, positions, out.state[LAST_STEP])

    def reserve(self, count: int) -> None:
        """Make room for so many rows more, before they are loaded: growing step by step takes as long as loading."""
        num_rows = self._num_rows - self._num_free + count
        self._reserve(num_rows)
        self._index.reserve(num_rows)

    def load(
        self,
        keys: NDArray[np.int64],
        rows: NDArray[Any] | None,
        state: Mapping[str, NDArray[Any]] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Store rows (n, dim) and their state, replacing existing rows. Without `state`, new rows have initial state.

        Args:
            keys: of the rows, (n,).
            rows: their elements, (n, dim); None: there is no such column.
            state: their state by name, (n, k) each.
            ahead: they are copied ahead. Until `accept`, they count for nothing: they are neither copied nor saved, and
                are not evicted.

        Raises:
            ValueError: a shape, dtype or name of state does not fit this store, or a key repeats.
        """
        given: Int64s = view(keys, np.int64)
        columns = self._columns
        names = columns.keys() - {ROWS}
        expected: dict[str, NDArray[Any] | None] = {ROWS: rows} if ROWS in columns else {}
        if state is not None:
            if set(state) != names:
                raise ValueError(f"state: must be {sorted(names)}, is {sorted(state)}")
            expected |= state
        arrays: dict[str, NDArray[Any]] = {}
        for name, array in expected.items():
            shape, dtype = (len(given), columns[name].shape[1]), columns[name].dtype
            if array is None or array.shape != shape or array.dtype != dtype:
                found = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise ValueError(f"{name if name == ROWS else f'state {name!r}'}: must be {dtype} {shape}, is {found}")
            arrays[name] = view(array, dtype)
        if len(given) == 0:
            return
        first, before = self._num_rows, self._num_rows - self._num_free
        numbers = self._claim(given, AHEAD if ahead else LOADED)
        if ahead:
            self._num_ahead += self._num_rows - self._num_free - before
        if self._num_rows - first < len(given) and len(self._unique(given)[0]) < len(given):
            raise ValueError("keys: a key occurs twice")
        if self._last_steps and LAST_STEP in arrays:
            scatter_rows(arrays.pop(LAST_STEP), numbers, self._last_steps.array)
        for part, at in self._values.parts(numbers, change=True):
            for name, array in arrays.items():
                self._scatter(array[part], at, self._values.columns[name])

    def find(self, keys: Int64s) -> tuple[Int32s, Int32s]:
        """Look up keys (n,): the row of each, or -1, (n,); and the positions (u,) of those that have none.

        Both arrays are valid until the next call.
        """
        rows, unknown = self._scratch(len(keys))

        def find(start: int, stop: int) -> Int32s:
            part = slice(start, stop)
            count = self._index.find(keys[part], self._keys.array, rows[part], unknown[part])
            found = unknown[start : start + count]
            if start and count:
                found += np.int32(start)
            return found

        parts = self._team.share_rows(len(keys), find)
        return rows, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def evict(self, step: int) -> Int64s:
        """Remove the rows whose turn it is after a step and that no step has used for long enough.

        Args:
            step: number of the step, 1 for the first.

        Returns:
            Their keys, (n,).
        """
        evicted = [np.empty(0, np.int64)]
        for period, limits in self._ages.items():
            rows = self._index.rows_of_part(step % period, period)
            due = np.empty(len(rows), np.int32)
            assert self._last_steps is not None
            last_steps = self._last_steps.array.reshape(-1)
            due = due[: find_due(rows, self._keys.array, last_steps, limits, step, due)]
            if self._num_ahead:
                due = due[self.changes.marks[due] != AHEAD]
            evicted.append(self._keys.array[due])
            self.remove(due)
        return np.concatenate(evicted)

    def remove(self, rows: Int32s) -> None:
        """Remove rows (n,), which are distinct."""
        if not len(rows):
            return
        if self._snapshot is not None:
            self._snapshot.keep(rows)
        keys = self._keys.array[rows]
        self.notes.removed(keys)
        self._index.remove(keys, rows)
        self._keys.array[rows] = _NO_KEY
        if self._num_ahead:
            self._num_ahead -= int(np.count_nonzero(self.changes.marks[rows] == AHEAD))
        self.changes.remove(rows)
        self._values.forget(rows)
        stop = self._num_free + len(rows)
        if stop > len(self._free):
            self._free = np.concatenate([self._free[: self._num_free], np.empty(2 * stop - self._num_free, np.int32)])
        self._free[self._num_free : stop] = rows
        self._num_free = stop

    def accept(self) -> None:
        """Let rows that were copied ahead be the store's."""
        if self._num_ahead:
            self.changes.add(self.changes.find_ahead(self._num_rows), LOADED)
            self._num_ahead = 0

    def drop_ahead(self) -> None:
        """Remove rows that were copied ahead."""
        if self._num_ahead:
            self.remove(self.changes.find_ahead(self._num_rows))

    def discard(self, keys: Int64s) -> None:
        """Remove the rows of keys (n,), as far as there are any; keys may repeat."""
        rows, _ = self.find(keys)
        self.remove(np.unique(rows[rows >= 0]))

    def remove_keys(self, gone: KeyFilter) -> None:
        """Remove the rows of which `gone` says so.

        Args:
            gone: keys (n,) -> mask (n,) of those to remove.
        """
        start = 0
        while start >= 0:
            start = self.remove_some(gone, start)

    def remove_some(self, gone: KeyFilter, start: int) -> int:
        """Do a part of `remove_keys`, in a few milliseconds.

        Args:
            gone: keys (n,) -> mask (n,) of those to remove.
            start: place of the first row to look at; 0 at first.

        Returns:
            The `start` of the next part; -1: all rows have been looked at.
        """
        stop = min(start + _LOOKED_AT, self._num_rows)
        rows = np.flatnonzero(self._keys.array[start:stop] != _NO_KEY).astype(np.int32) + np.int32(start)
        if len(rows):
            self.remove(rows[gone(self._keys.array[rows])])
        return stop if stop < self._num_rows else -1

    def _claim(self, keys: Int64s, mark: int | None = None) -> Int32s:
        """Return the row of each key, (n,), valid until the next call: new rows for unknown keys, with initial state.

        Args:
            keys: to look up.
            mark: of new rows, which are loaded; None: they change now, and have initial values.

        Raises:
            ValueError: a key belongs to no table of this store.
        """
        if self._team.size == 1 or mark is not None:  # what is loaded is new, or nearly all of it
            rows, _ = self._scratch(len(keys))
            self._claim_in_order(keys, rows, mark)
            return rows
        rows, unknown = self.find(keys)  # several threads find rows; one gives new ones
        if len(unknown) or self._index.moves:
            new = np.empty(len(unknown), np.int32)
            self._claim_in_order(keys[unknown], new)
            rows[unknown] = new
        return rows

    def _claim_in_order(self, keys: Int64s, rows: Int32s, mark: int | None = None) -> None:
        """As `_claim`, in one thread; sets `rows` (n,)."""
        done = 0
        while True:
            stop, num_free = self._num_rows, self._num_free
            done, self._num_rows, self._num_free = self._index.claim(
                keys, done, self._limits, self._keys.array, stop, rows, self._free[:num_free]
            )
            for new in (np.arange(stop, self._num_rows, dtype=np.int32), self._free[self._num_free : num_free]):
                if len(new):
                    self.changes.add(new, self.changes.now if mark is None else mark)
                    self._begin(new, loaded=mark is not None)
            if done < 0:
                self._refuse(int(keys[-1 - done]))
            if done == len(keys):
                return
            self._reserve(self._num_rows + 1)

    def _begin(self, rows: Int32s, *, loaded: bool) -> None:
        """Give new rows (n,) their initial state; and their initial values, unless they are `loaded`."""
        if self._last_steps:
            self._last_steps.array[rows] = 0
        for part, at in self._values.parts(rows, change=True):
            columns = self._values.columns
            for name, value in self._initial.items():
                columns[name][at] = value
            if self._draw and not loaded:
                self._scatter(self._draw(self._keys.array[rows[part]]), at, columns[ROWS])

    def _scatter(self, values: NDArray[Any], positions: Int32s, rows: NDArray[Any]) -> None:
        self._team.share_rows(
            len(positions), lambda start, stop: scatter_rows(values[start:stop], positions[start:stop], rows)
        )

    def _use(self, rows: Int32s, step: int) -> None:
        """Note that a step is about to change rows (n,)."""
        if self._snapshot is not None:
            self._snapshot.keep(rows)
        self.changes.touch(rows, self._team)
        if self._last_steps:
            stamp(self._last_steps.array.reshape(-1), rows, step)

    def _reserve(self, num_rows: int) -> None:
        if num_rows > MAX_ROWS:
            raise MemoryError(f"a store holds at most {MAX_ROWS} rows: use more parameter servers")
        self.changes.reserve(num_rows)
        self._values.reserve(num_rows)
        if self._last_steps:
            self._last_steps.reserve(num_rows)
        self._keys.reserve(num_rows)  # last: `_claim` reads its capacity

    def _scratch(self, size: int) -> tuple[Int32s, Int32s]:
        if len(self._positions) < size:
            self._positions = np.empty(size + size // 4, np.int32)
            self._unknown = np.empty(size + size // 4, np.int32)
        return self._positions[:size], self._unknown[:size]

    def _refuse(self, key: int) -> None:
        """Raise the error about a key that belongs to no table."""
        table, row_id = key >> ID_BITS, key & ((1 << ID_BITS) - 1)
        if table in self.tables:
            spec = self.tables[table]
            raise ValueError(f"keys: table {spec.name!r} has ids 0 .. {spec.num_embeddings - 1}, not {row_id}")
        raise ValueError(f"keys: {key} is of table {table}, this store has {sorted(self.tables)}")
