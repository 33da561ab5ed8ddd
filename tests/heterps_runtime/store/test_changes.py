"""Rows that have changed are found wherever they lie: marks are compared in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_runtime.store.changes import AHEAD, find_marked

ROWS = 400


def _found(marks: NDArray[np.uint16], start: int, stop: int, low: int, high: int, room: int) -> list[int]:
    """The rows, found with room for some at a time."""
    rows: list[int] = []
    while start < stop:
        found, end = np.empty(room, np.int32), np.empty(1, np.int64)
        count = find_marked(marks, start, stop, low, high, found, end)
        assert start < end[0] <= stop, "it goes on behind what it has looked at"
        rows += found[:count].tolist()
        start = int(end[0])
    return rows


@pytest.mark.parametrize("room", [1, 7, 64, 1000])
@pytest.mark.parametrize("share", [0.0, 0.005, 0.3, 1.0])
def test_all_rows_with_marks_in_the_range_are_found_in_order(share: float, room: int) -> None:
    rng = np.random.default_rng(int(100 * share) + room)
    marks = rng.choice(np.array([0, 2, 7, 8, AHEAD], np.uint16), ROWS)
    marks[rng.random(ROWS) < share] = rng.integers(3, 7)
    for start, stop in [(0, ROWS), (0, 63), (0, 64), (1, 65), (37, 38), (5, 5), (130, ROWS - 1)]:
        expected = [row for row in range(start, stop) if 3 <= marks[row] <= 6]
        assert _found(marks, start, stop, 3, 6, room) == expected
        assert _found(marks, start, stop, 0, 8, room) == [r for r in range(start, stop) if marks[r] != AHEAD]


def test_one_row_of_a_block_is_found_in_each_place() -> None:
    for row in range(ROWS):
        marks = np.ones(ROWS, np.uint16)
        marks[row] = 5
        assert _found(marks, 0, ROWS, 5, 5, 8) == [row]
