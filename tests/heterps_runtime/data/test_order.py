"""The order of rows: each once per epoch, whatever the cut, a function of seed and step alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.data.order import BLOCK_ROWS, BatchOrder
from tests.heterps_runtime.helpers.data_files import properties

sizes = st.integers(1, 1000)
seeds = st.integers(-(2**63), 2**63 - 1)


def whole_step(order: BatchOrder, step: int) -> list[int]:
    result: list[int] = order.rows(step, 0, order.batches.size(step)).tolist()
    return result


@properties
@given(sizes, st.integers(1, 300), seeds, st.integers(0, 3))
def test_every_row_comes_exactly_once_per_epoch(num_rows: int, batch: int, seed: int, epoch: int) -> None:
    order = BatchOrder(num_rows, batch, seed)
    steps = range(epoch * order.batches.per_epoch, (epoch + 1) * order.batches.per_epoch)
    rows = [row for step in steps for row in whole_step(order, step)]
    assert sorted(rows) == list(range(num_rows))
    assert {order.batches.epoch(step) for step in steps} == {epoch}


@properties
@given(sizes, st.integers(1, 300))
def test_only_an_epochs_last_batch_is_smaller(num_rows: int, batch: int) -> None:
    order = BatchOrder(num_rows, batch, 0)
    batch_sizes = [order.batches.size(step) for step in range(order.batches.per_epoch)]
    assert sum(batch_sizes) == num_rows
    assert all(size == batch for size in batch_sizes[:-1])
    assert 1 <= batch_sizes[-1] <= batch
    assert order.batches.size(order.batches.per_epoch) == batch_sizes[0]


@properties
@given(sizes, st.integers(1, 300), seeds, st.data())
def test_any_cut_of_a_batch_gives_the_same_rows(num_rows: int, batch: int, seed: int, data: st.DataObject) -> None:
    order = BatchOrder(num_rows, batch, seed)
    step = data.draw(st.integers(0, 3 * order.batches.per_epoch))
    size = order.batches.size(step)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=5))})
    pieces = [row for a, b in itertools.pairwise(cuts) for row in order.rows(step, a, b).tolist()]
    assert pieces == whole_step(order, step)
    assert order.rows(step, size, size).tolist() == []


@properties
@given(sizes, seeds, st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_steps_may_be_asked_for_in_any_order(num_rows: int, seed: int, steps: list[int]) -> None:
    used = BatchOrder(num_rows, 70, seed)
    assert [whole_step(used, s) for s in steps] == [whole_step(BatchOrder(num_rows, 70, seed), s) for s in steps]


def test_the_order_never_changes_between_versions() -> None:
    # A job that resumes after an upgrade must go on with the rows that it has not seen.
    order = BatchOrder(200, 100, 17)
    assert order.rows(0, 0, 8).tolist() == [6, 59, 39, 34, 37, 33, 5, 32]
    assert order.rows(3, 92, 100).tolist() == [194, 192, 197, 195, 199, 193, 196, 198]


def test_epochs_and_seeds_differ() -> None:
    order = BatchOrder(10_000, 10_000, 1)
    assert whole_step(order, 0) != whole_step(order, 1)
    assert whole_step(order, 0) != whole_step(BatchOrder(10_000, 10_000, 2), 0)


def test_a_batch_reads_few_blocks_from_all_over_the_data() -> None:
    order = BatchOrder(1_000_000, 4096, 5)
    blocks = np.unique(order.rows(7, 0, 4096) // BLOCK_ROWS)
    assert len(blocks) == 4096 // BLOCK_ROWS
    assert blocks.max() - blocks.min() > 0.8 * 1_000_000 / BLOCK_ROWS


def test_both_levels_are_shuffled_evenly() -> None:
    # The mean place of each quarter of the data in the order is the middle, within 5 standard deviations.
    num_rows = 64 * 4000
    order = BatchOrder(num_rows, num_rows, 3)
    rows = order.rows(0, 0, num_rows)
    place = np.empty(num_rows)
    place[rows] = np.arange(num_rows) / num_rows
    for quarter in np.split(place, 4):
        assert abs(quarter.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 1000)
    inside = rows % BLOCK_ROWS
    first = np.bincount(inside[::BLOCK_ROWS], minlength=BLOCK_ROWS)  # which row of its block comes first, 4000 times
    assert first.min() > 25  # 62.5 expected
    assert first.max() < 110


@pytest.mark.parametrize(("rows", "batch", "field"), [(0, 4, "num_rows"), (4, 0, "global_batch_size")])
def test_sizes_below_one_are_refused(rows: int, batch: int, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be >= 1, is 0"):
        BatchOrder(rows, batch, 0)
