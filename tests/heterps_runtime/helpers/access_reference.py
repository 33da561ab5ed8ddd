"""The rules of `partition.access` as one would write them in an afternoon, over dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.partition.splitmix import mix64
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.optimizers import SparseOptimizer
from tests.heterps_runtime.helpers.store_reference import ReferenceStore


def turn_of(key: int, period: int) -> int:
    """The steps, modulo the period, at which it is a key's turn."""
    half = int(mix64(np.array([key], np.uint64))[0]) >> 32
    return half * period >> 32


class AccessReference(ReferenceStore):
    """Rows, and ids that have none yet: key -> [steps that used it, the last of them]."""

    def __init__(self, dim: int, optimizer: SparseOptimizer, seed: int, tables: dict[int, TableSpec]) -> None:
        super().__init__(dim, optimizer, seed, tables)
        self.last: dict[int, int] = {}
        self.candidates: dict[int, list[int]] = {}
        self.admitted = self.evicted = self.forgotten = 0

    def apply(self, pushes: list[tuple[NDArray[Any], NDArray[Any]]], scale: float, step: int) -> None:
        used = {key for keys, _ in pushes for key in keys.tolist()}
        dropped = {key for key in used if not self._has_row(key, step)}
        kept = [np.array([key not in dropped for key in keys.tolist()], bool) for keys, _ in pushes]
        super().apply([(keys[k], grads[k]) for (keys, grads), k in zip(pushes, kept, strict=True)], scale, step)
        self.last |= dict.fromkeys(used - dropped, step)
        self._evict(step)

    def _has_row(self, key: int, step: int) -> bool:
        rules = self.tables[key >> 48].rules
        if key in self.rows or rules.min_steps == 1:
            return True
        steps = self.candidates.get(key, [0, 0])[0] + 1
        self.candidates[key] = [steps, step]
        if steps < rules.min_steps:
            return False
        del self.candidates[key]
        self.admitted += 1
        return True

    def _evict(self, step: int) -> None:
        for key in list(self.rows):
            rules = self.tables[key >> 48].rules
            if step % rules.period == turn_of(key, rules.period) and step - self.last[key] >= rules.unused_steps:
                del self.rows[key], self.state[key], self.last[key]
                self.evicted += 1
        for key, (_, last) in list(self.candidates.items()):
            rules = self.tables[key >> 48].rules
            if step % rules.period == turn_of(key, rules.period) and step - last >= rules.candidate_unused_steps:
                del self.candidates[key]
                self.forgotten += 1
