"""The row store of a parameter server.

A store holds this shard's rows of all tables of one dimension. A call is a few compiled loops over the keys. Each loop
prefetches memory, because in a large store every row is a cache miss.

`apply` commits a step. It first checks all gradients and changes nothing if one of them is not finite. Then it makes
the keys unique, assigns a row to each, adds the gradients of each row in the order of the pushes, and updates each
touched row once. An id that has no row yet by its table's rules (`partition.access`) is counted instead.

A store is not thread-safe. Kernels release the interpreter lock, so that other threads (network, metrics) can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.partition.access import Ages
from heterps_runtime.store.candidates import Candidates
from heterps_runtime.store.initial import ID_BITS, TableDraws, TableSpec, draw_rows, first_foreign
from heterps_runtime.store.kernel import AnyFloats, Int32s, Int64s, kernel, view
from heterps_runtime.store.keyed import ROWS, KeyedRows
from heterps_runtime.store.lookup import gather_rows
from heterps_runtime.store.merging import Merger
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.team import ALONE, Team
from heterps_runtime.store.values import values_of

__all__ = ["RowStore", "count_all_unusable", "largest_usable"]


class RowStore(KeyedRows):
    """Embedding rows of one dimension and their optimizer state.

    Args:
        dim: elements per row.
        dtype: of rows, state and gradients; float32 or float64.
        optimizer: applied once per touched row and step.
        seed: of the initial values.
        tables: tables of this dimension, by number.
        spill: memory and disk for rows and state; None: all are in memory.
        team: threads that compute. The rows do not depend on their number.

    Attributes:
        candidates: ids that have no row yet; None if the first step that uses an id gives it one, in all tables.
    """

    def __init__(
        self,
        dim: int,
        dtype: DTypeLike,
        optimizer: SparseOptimizer,
        seed: int,
        tables: Mapping[int, TableSpec],
        spill: SpillSpace | None = None,
        team: Team = ALONE,
    ) -> None:
        if dim < 1:
            raise ValueError(f"dim: must be >= 1, is {dim}")
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise ValueError(f"dtype: must be float32 or float64, is {np.dtype(dtype)}")
        self.dim = dim
        self.dtype = np.dtype(dtype)
        self.optimizer = optimizer
        self._draws = TableDraws.of(seed, tables)
        columns = {ROWS: dim, **optimizer.state_columns(dim)}
        rules = {number: spec.rules for number, spec in tables.items()}
        super().__init__(
            values_of({name: (self.dtype, n) for name, n in columns.items()}, spill),
            optimizer.initial_state(),
            self._draws.limits,
            tables,
            Ages.of_rows(rules),
            self._initial_rows,
            team,
        )
        size = len(self._draws.limits)
        self._min_steps = np.array([rules[n].min_steps if n in rules else 1 for n in range(size)], np.int64)
        self.candidates = Candidates(self._draws.limits, tables) if (self._min_steps > 1).any() else None
        self._moved = np.zeros((size, 2), np.int64)  # rows that came from candidates, and that were evicted
        self._merger = Merger(dim, self.dtype, team)

    @property
    def nbytes(self) -> int:
        """As of `KeyedRows`, with the candidates."""
        return super().nbytes + (self.candidates.nbytes if self.candidates else 0)

    def check_keys(self, keys: NDArray[np.int64]) -> None:
        """Check that all `keys` (n,) are of this store's tables.

        Raises:
            ValueError: a key belongs to no table of this store.
        """
        given: Int64s = view(keys, np.int64)
        bad = first_foreign(given, self._draws.limits)
        if bad >= 0:
            self._refuse(int(given[bad]))

    def pull(self, keys: NDArray[np.int64]) -> AnyFloats:
        """Rows (n, dim) of `keys` (n,). An untrained row has its initial values, and is not stored.

        Raises:
            ValueError: a key belongs to no table of this store.
        """
        given: Int64s = view(keys, np.int64)
        result = np.empty((len(given), self.dim), self.dtype)
        positions, unknown = self.find(given)
        for part, at in self._values.parts(positions, change=False):
            self._gather(at, result[part])
        if len(unknown):
            drawn = self._team.share_rows(
                len(unknown), lambda start, stop: draw_rows(given, unknown[start:stop], *self._draws, result)
            )
            for bad in drawn:
                if bad >= 0:
                    self._refuse(int(given[bad]))
        return result

    def apply(self, pushes: Sequence[tuple[NDArray[np.int64], AnyFloats]], scale: float, step: int) -> int:
        """Apply one step: add the gradients of each row in the order of the pushes, and update each touched row once.

        New rows are created with their initial values. The gradients of candidates are dropped.

        Args:
            pushes: of (keys (n,), gradients (n, dim)); keys may repeat.
            scale: factor of the sums, 1 / global batch size.
            step: number of the step, 1 for the first (Adam's bias correction, last steps).

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
        unusable = sum(count_all_unusable(grads, limit, self._team) for _, grads in given)
        if unusable or not total:
            return unusable
        unique, sums = self._merger.merge(given)
        if self.candidates is not None:
            has_row = self._admit(self.candidates, unique, step)
            if not has_row.all():
                unique, sums = unique[has_row], sums[has_row]
        touched = self._claim(unique)
        self._use(touched, step)
        for part, at in self._values.parts(touched, change=True):
            state = self._values.columns
            self._update(state.pop(ROWS), state, at, sums[part], scale, step)
        return 0

    def read_ahead(self, keys: NDArray[np.int64]) -> None:
        """Bring rows that are on disk into memory, because `pull` is about to need them."""
        rows, _ = self.find(view(keys, np.int64))
        for _ in self._values.parts(rows, change=False):
            pass

    def evict(self, step: int) -> Int64s:
        """As of `KeyedRows`; candidates are forgotten in the same way."""
        if self.candidates is not None:
            self.candidates.evict(step)
        keys = super().evict(step)
        self._moved[:, 1] += np.bincount(keys >> ID_BITS, minlength=len(self._moved))
        return keys

    def take_moved(self) -> dict[str, tuple[int, int]]:
        """Rows that candidates got, and rows that were evicted, since the last call, by the names of tables."""
        moved = {self.tables[n].name: (int(a), int(b)) for n, (a, b) in enumerate(self._moved) if a or b}
        self._moved[:] = 0
        return moved

    def forget_admitted(self) -> None:
        """Remove candidates that are none: they were loaded from older files than rows, or with other rules."""
        if self.candidates is not None:
            self.candidates.remove_keys(
                lambda keys: (self.find(keys)[0] >= 0) | (self._min_steps[keys >> ID_BITS] <= 1)
            )

    def _admit(self, candidates: Candidates, keys: Int64s, step: int) -> NDArray[np.bool_]:
        """Count keys (n,), distinct, that have no row yet; returns which have one now, as a mask (n,).

        Raises:
            ValueError: a key belongs to no table of this store; nothing has been counted.
        """
        _, unknown = self.find(keys)
        has_row = np.ones(len(keys), np.bool_)
        new = keys[unknown]
        self.check_keys(new)
        tables = new >> ID_BITS
        needed = self._min_steps[tables]
        counted = needed > 1
        reached = candidates.count(new[counted], needed[counted], step)
        has_row[unknown[counted]] = reached
        self._moved[:, 0] += np.bincount(tables[counted][reached], minlength=len(self._moved))
        return has_row

    def _initial_rows(self, keys: Int64s) -> AnyFloats:
        rows = np.empty((len(keys), self.dim), self.dtype)
        places = np.arange(len(keys), dtype=np.int32)
        self._team.share_rows(len(keys), lambda start, stop: draw_rows(keys, places[start:stop], *self._draws, rows))
        return rows

    def _gather(self, positions: Int32s, out: AnyFloats) -> None:
        rows = self._values.columns[ROWS]
        self._team.share_rows(
            len(positions), lambda start, stop: gather_rows(rows, positions[start:stop], out[start:stop])
        )

    def _update(
        self, rows: AnyFloats, state: dict[str, AnyFloats], at: Int32s, sums: AnyFloats, scale: float, step: int
    ) -> None:
        self._team.share_rows(
            len(at),
            lambda start, stop: self.optimizer.update(rows, state, at[start:stop], sums[start:stop], scale, step),
        )


def largest_usable(dtype: np.dtype[Any], num_terms: int) -> Any:
    """The largest magnitude for which `num_terms` values can be added without overflow, a scalar of `dtype`."""
    return dtype.type(np.finfo(dtype).max / max(num_terms, 1))


def count_all_unusable(values: AnyFloats, limit: Any, team: Team) -> int:
    """As `count_unusable`, for values of any shape, by a team."""
    flat = values.reshape(-1)
    return sum(team.share_elements(flat.size, lambda start, stop: count_unusable(flat[start:stop], limit)))


@kernel
def count_unusable(values: AnyFloats, limit: Any) -> int:
    """Count the `values` (n,) that are NaN or exceed `limit` in magnitude."""
    count = 0
    for i in range(values.size):
        count += not abs(values[i]) <= limit
    return count
