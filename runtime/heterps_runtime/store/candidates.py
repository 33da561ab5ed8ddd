"""Ids that steps have used, and that have no row yet.

A candidate takes 8 bytes for its key, 4 for the number of steps that have used it, 4 for the last of them (if
candidates are ever forgotten), 2 for its mark and 10 to 12.5 in the index.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.partition.access import Ages
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.kernel import Int64s
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.store.values import MemoryValues

__all__ = ["Candidates"]

_STEPS = "steps"  # the column of the steps that have used each


class Candidates(KeyedRows):
    """Candidates of some tables.

    Args:
        limits: (T, 3); [:, 0] is the number of ids of each table.
        tables: by number.
    """

    def __init__(self, limits: Int64s, tables: Mapping[int, TableSpec]) -> None:
        ages = Ages.of_candidates({number: spec.rules for number, spec in tables.items()})
        super().__init__(MemoryValues({_STEPS: (np.dtype(np.int32), 1)}), {_STEPS: 0}, limits, tables, ages)

    def count(self, keys: Int64s, needed: Int64s, step: int) -> NDArray[np.bool_]:
        """Count a step for keys (n,), distinct; those that have reached a number are candidates no more.

        Args:
            keys: used by the step.
            needed: (n,), the number of steps for each.
            step: number of the step.

        Returns:
            Which have reached it, as a mask (n,).
        """
        rows = self._claim(keys)
        self._use(rows, step)
        steps = self._values.columns[_STEPS]
        steps[rows, 0] += 1
        reached: NDArray[np.bool_] = steps[rows, 0] >= needed
        self.remove(rows[reached])
        return reached
