"""Rows that go because no step uses them any more (`partition.access` has the rule)."""

from __future__ import annotations

import numpy as np

from heterps_runtime.partition.access import NEVER, Ages
from heterps_runtime.store.initial import ID_BITS
from heterps_runtime.store.kernel import Int32s, Int64s, kernel, prefetch

__all__ = ["by_period", "find_due", "stamp"]

_AHEAD = 16  # rows whose memory is requested in advance


def by_period(ages: Ages) -> dict[int, Int64s]:
    """Period -> (T,), the steps after which ids of the tables with this period go, and `NEVER` for all others."""
    periods = np.unique(ages.periods[ages.limits < NEVER])
    return {int(p): np.where(ages.periods == p, ages.limits, NEVER) for p in periods}


@kernel
def stamp(last_steps: Int32s, rows: Int32s, step: int) -> None:
    """Set the last step of `rows` (n,)."""
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(last_steps, np.int64(rows[i + _AHEAD]))
        last_steps[np.uint64(rows[i])] = step


@kernel
def find_due(rows: Int32s, row_keys: Int64s, last_steps: Int32s, limits: Int64s, step: int, due: Int32s) -> int:
    """Find which of `rows` (n,) have not been used for long enough; returns their number.

    Args:
        rows: row numbers.
        row_keys: key of each row of the store.
        last_steps: the last step that used each.
        limits: (T,), by table.
        step: number of the step.
        due: (n,), output: row numbers.
    """
    count = 0
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(row_keys, np.int64(rows[i + _AHEAD]))
            prefetch(last_steps, np.int64(rows[i + _AHEAD]))
        row = np.uint64(rows[i])
        due[np.uint64(count)] = rows[i]
        count += last_steps[row] + limits[np.uint64(row_keys[row] >> ID_BITS)] <= step
    return count
