"""The row store of a parameter server.

A store holds this shard's rows of all tables of one dimension. A call is a few compiled loops over the keys. Each loop
prefetches memory, because in a large store every row is a cache miss.

`apply` commits a step. It first checks all gradients and changes nothing if one of them is not finite. Then it makes
the keys unique, assigns a row to each, adds the gradients of each row in the order of the pushes, and updates each
touched row once.

A store is not thread-safe. Kernels release the interpreter lock, so that other threads (network, metrics) can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.store.changes import LOADED, MAX_SNAPSHOTS, Changes
from heterps_runtime.store.index import MAX_ROWS, HashIndex
from heterps_runtime.store.initial import ID_BITS, TableDraws, TableSpec, draw_rows
from heterps_runtime.store.kernel import AnyFloats, Int32s, Int64s, kernel, view
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.lookup import gather_rows, scatter_add_rows, scatter_rows
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.snapshot import RowChunk, RowSnapshot
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.values import Values, values_of

__all__ = ["RowStore", "count_unusable", "largest_usable"]

_NO_MASK = np.zeros(0, np.bool_)


class RowStore:
    """Embedding rows of one dimension and their optimizer state.

    Args:
        dim: elements per row.
        dtype: of rows, state and gradients; float32 or float64.
        optimizer: applied once per touched row and step.
        seed: of the initial values.
        tables: tables of this dimension, by number.
        spill: memory and disk for rows and state; None: all are in memory.

    Attributes:
        changes: which rows have changed since which snapshot.
    """

    def __init__(
        self,
        dim: int,
        dtype: DTypeLike,
        optimizer: SparseOptimizer,
        seed: int,
        tables: Mapping[int, TableSpec],
        spill: SpillSpace | None = None,
    ) -> None:
        if dim < 1:
            raise ValueError(f"dim: must be >= 1, is {dim}")
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise ValueError(f"dtype: must be float32 or float64, is {np.dtype(dtype)}")
        self.dim = dim
        self.dtype = np.dtype(dtype)
        self.optimizer = optimizer
        self.tables = dict(tables)
        self._draws = TableDraws.of(seed, tables)
        self._num_rows = 0
        self._index = HashIndex()
        self._keys = Slab(np.int64)
        layout = dim, self.dtype, optimizer.state_columns(dim)
        self._values: Values = values_of(*layout, spill)
        self.changes = Changes()
        self._snapshot: RowSnapshot | None = None  # in progress
        self._unique = UniqueKeys()
        # Scratch memory, kept between calls: (m,) and (m, dim) for the largest m so far.
        self._positions: Int32s = np.empty(0, np.int32)
        self._unknown: Int32s = np.empty(0, np.int32)
        self._sums: AnyFloats = np.empty((0, dim), self.dtype)

    def __len__(self) -> int:
        return self._num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory for rows, state, keys, index and a snapshot in progress, without reserved memory."""
        snapshot = self._snapshot  # the pulse's thread asks, too
        held = snapshot.num_held * self.row_nbytes if snapshot else 0
        per_row = self._keys.row_nbytes + self.changes.row_nbytes
        return self._num_rows * per_row + self._values.nbytes(self._num_rows) + self._index.nbytes + held

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row with its key and its state, as in a checkpoint."""
        return self._keys.row_nbytes + self._values.row_nbytes

    def pull(self, keys: NDArray[np.int64]) -> AnyFloats:
        """Rows (n, dim) of `keys` (n,). An untrained row has its initial values, and is not stored.

        Raises:
            ValueError: a key belongs to no table of this store.
        """
        given: Int64s = view(keys, np.int64)
        result = np.empty((len(given), self.dim), self.dtype)
        positions, unknown = self._scratch(len(given))
        num_unknown = self._index.find(given, self._keys.array, positions, unknown)
        for part, at in self._values.parts(positions, change=False):
            gather_rows(self._values.rows, at, result[part])
        if num_unknown:
            self._raise_for(given, draw_rows(given, unknown[:num_unknown], *self._draws, result))
        return result

    def apply(self, pushes: Sequence[tuple[NDArray[np.int64], AnyFloats]], scale: float, step: int) -> int:
        """Apply one step: add the gradients of each row in the order of the pushes, and update each touched row once.

        New rows are created with their initial values.

        Args:
            pushes: of (keys (n,), gradients (n, dim)); keys may repeat.
            scale: factor of the sums, 1 / global batch size.
            step: number of the step, 1 for the first (Adam's bias correction).

        Returns:
            The number of gradient elements that are NaN, infinite or too large to be added. Unless it is 0, nothing
            has changed.

        Raises:
            ValueError: a key belongs to no table of this store; no row's value has changed.
        """
        given = [(view(keys, np.int64), view(grads, self.dtype)) for keys, grads in pushes if len(keys)]
        for keys, grads in given:
            assert grads.shape == (len(keys), self.dim), "one gradient row per key"
        total = sum(len(keys) for keys, _ in given)
        limit = largest_usable(self.dtype, total)
        unusable = sum(count_unusable(grads.reshape(-1), limit) for _, grads in given)
        if unusable or not total:
            return unusable
        unique, where = self._unique(given[0][0] if len(given) == 1 else np.concatenate([keys for keys, _ in given]))
        touched = self._claim(unique)
        sums = given[0][1] if len(touched) == len(given[0][0]) == total else self._summed(given, where, len(touched))
        if self._snapshot is not None:
            self._snapshot.keep(touched)
        self.changes.touch(touched)
        for part, at in self._values.parts(touched, change=True):
            self.optimizer.update(self._values.rows, self._values.state, at, sums[part], scale, step)
        return 0

    def read_ahead(self, keys: NDArray[np.int64]) -> None:
        """Bring rows that are on disk into memory, because `pull` is about to need them."""
        given: Int64s = view(keys, np.int64)
        positions, unknown = self._scratch(len(given))
        self._index.find(given, self._keys.array, positions, unknown)
        for _ in self._values.parts(positions, change=False):
            pass

    def count_changed(self, since: int | None) -> int:
        """Number of rows that have changed after a snapshot; None: of all rows."""
        known = since is not None and since < self.changes.now  # snapshots are counted anew after `MAX_SNAPSHOTS`
        return self.changes.count_after(since, self._num_rows) if known and since is not None else self._num_rows

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
        total = self.count_changed(since)
        low = since + 1 if since is not None and since < self.changes.now else LOADED
        number = self.changes.advance()
        self._snapshot = RowSnapshot(self, (low, number), self._num_rows, total)
        return number, self._snapshot

    def end_snapshot(self) -> None:
        """Forget a snapshot that is done, or that is not needed any more."""
        self._snapshot = None

    def new_chunk(self, count: int) -> RowChunk:
        """Memory for a copy of `count` rows."""
        columns = self.optimizer.state_columns(self.dim)
        state = {name: np.empty((count, n), self.dtype) for name, n in columns.items()}
        return RowChunk(np.empty(count, np.int64), np.empty((count, self.dim), self.dtype), state)

    def copy(self, positions: Int32s, out: RowChunk) -> None:
        """Copy the rows at positions (n,) to `out`, n rows."""
        np.take(self._keys.array, positions, out=out.keys, mode="clip")  # "raise" would copy twice
        self._values.copy(positions, out.rows, out.state)

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows, before as many are loaded: growing step by step takes as long as loading."""
        self._reserve(num_rows)
        self._index.reserve(num_rows)

    def load(self, keys: NDArray[np.int64], rows: AnyFloats, state: Mapping[str, AnyFloats] | None = None) -> None:
        """Store rows (n, dim) and their state, replacing existing rows. Without `state`, new rows have initial state.

        Raises:
            ValueError: a shape, dtype or name of state does not fit this store, or a key repeats.
        """
        given: Int64s = view(keys, np.int64)
        columns = self.optimizer.state_columns(self.dim)
        expected: dict[str, tuple[int, AnyFloats | None]] = {"rows": (self.dim, rows)}
        if state is not None:
            expected |= {f"state {name!r}": (n, state.get(name)) for name, n in columns.items()}
        if state is not None and set(state) != set(columns):
            raise ValueError(f"state: {self.optimizer.name!r} has {sorted(columns)}, got {sorted(state)}")
        for name, (n, array) in expected.items():
            shape = (len(given), n)
            if array is None or array.shape != shape or array.dtype != self.dtype:
                found = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise ValueError(f"{name}: must be {self.dtype} {shape}, is {found}")
        if len(given) == 0:
            return
        first = self._num_rows
        positions = self._claim(given, draw=False)
        if self._num_rows - first < len(given) and len(self._unique(given)[0]) < len(given):
            raise ValueError("keys: a key occurs twice")
        for part, at in self._values.parts(positions, change=True):
            scatter_rows(view(rows[part], self.dtype), at, self._values.rows)
            for name, values in (state or {}).items():
                scatter_rows(view(values[part], self.dtype), at, self._values.state[name])

    def _claim(self, keys: Int64s, *, draw: bool = True) -> Int32s:
        """Return the row of each key, (n,): new rows for unknown keys, with their initial state.

        They get their initial values, too, unless `draw` is False.
        """
        rows, _ = self._scratch(len(keys))
        done = 0
        while True:
            done, num_rows = self._index.claim(keys, done, self._draws.limits, self._keys.array, self._num_rows, rows)
            self._initialise(num_rows, draw=draw)
            if done < 0:
                self._raise_for(keys, -1 - done)
            if done == len(keys):
                return rows
            self._reserve(self._num_rows + 1)

    def _initialise(self, num_rows: int, *, draw: bool) -> None:
        start, self._num_rows = self._num_rows, num_rows
        if num_rows == start:
            return
        self.changes.add(start, num_rows, self.changes.now if draw else LOADED)
        self._values.reserve(num_rows)
        initial_state = self.optimizer.initial_state()
        for part, at in self._values.parts(np.arange(start, num_rows, dtype=np.int32), change=True):
            if draw:
                drawn = np.empty((len(at), self.dim), self.dtype)
                draw_rows(self._keys.array[start:][part], np.arange(len(at), dtype=np.int32), *self._draws, drawn)
                scatter_rows(drawn, at, self._values.rows)
            for name, value in initial_state.items():
                self._values.state[name][at] = value

    def _reserve(self, num_rows: int) -> None:
        if num_rows > MAX_ROWS:
            raise MemoryError(f"a store holds at most {MAX_ROWS} rows: use more parameter servers")
        self.changes.reserve(num_rows)
        self._values.reserve(num_rows)
        self._keys.reserve(num_rows)  # last: `_claim` reads its capacity

    def _summed(self, given: list[tuple[Int64s, AnyFloats]], where: Int32s, num_touched: int) -> AnyFloats:
        if len(self._sums) < num_touched:
            self._sums = np.empty((num_touched + num_touched // 4, self.dim), self.dtype)
        sums = self._sums[:num_touched]
        sums[:] = 0
        begin = 0
        for keys, grads in given:
            scatter_add_rows(
                grads.reshape(-1), grads.size, max(1, len(keys)), where[begin : begin + len(keys)], _NO_MASK, sums
            )
            begin += len(keys)
        return sums

    def _scratch(self, size: int) -> tuple[Int32s, Int32s]:
        if len(self._positions) < size:
            self._positions = np.empty(size + size // 4, np.int32)
            self._unknown = np.empty(size + size // 4, np.int32)
        return self._positions[:size], self._unknown[:size]

    def _raise_for(self, keys: Int64s, bad: int) -> None:
        if bad < 0:
            return
        key = int(keys[bad])
        table, row_id = key >> ID_BITS, key & ((1 << ID_BITS) - 1)
        if table in self.tables:
            spec = self.tables[table]
            raise ValueError(f"keys: table {spec.name!r} has ids 0 .. {spec.num_embeddings - 1}, not {row_id}")
        raise ValueError(f"keys: {key} is of table {table}, this store has {sorted(self.tables)}")


def largest_usable(dtype: np.dtype[Any], num_terms: int) -> Any:
    """The largest magnitude for which `num_terms` values can be added without overflow, a scalar of `dtype`."""
    return dtype.type(np.finfo(dtype).max / max(num_terms, 1))


@kernel
def count_unusable(values: AnyFloats, limit: Any) -> int:
    """Count the `values` (n,) that are NaN or exceed `limit` in magnitude."""
    count = 0
    for i in range(values.size):
        count += not abs(values[i]) <= limit
    return count
