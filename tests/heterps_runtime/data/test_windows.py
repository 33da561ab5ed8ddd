"""The order of a streamed split: each row once per epoch, whatever the cut, and few blocks for a part of the batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.data.windows import WindowedOrder
from tests.heterps_runtime.helpers.data_files import properties

block_lists = st.lists(st.integers(1, 40), min_size=1, max_size=25)
batches = st.integers(1, 200)
windows = st.integers(1, 1500)
seeds = st.none() | st.integers(-(2**63), 2**63 - 1)


def make(blocks: list[int], batch: int, seed: int | None, window: int) -> WindowedOrder:
    return WindowedOrder(np.array(blocks, dtype=np.int64), batch, seed, window)


def whole_step(order: WindowedOrder, step: int) -> list[int]:
    return [int(row) for row in order.rows(step, 0, order.batches.size(step))]


@properties
@given(block_lists, batches, seeds, windows, st.integers(0, 2))
def test_every_row_comes_exactly_once_per_epoch(
    blocks: list[int], batch: int, seed: int | None, window: int, epoch: int
) -> None:
    order = make(blocks, batch, seed, window)
    steps = range(epoch * order.batches.per_epoch, (epoch + 1) * order.batches.per_epoch)
    assert sorted(row for step in steps for row in whole_step(order, step)) == list(range(sum(blocks)))


@properties
@given(block_lists, batches, seeds, windows, st.data())
def test_any_cut_of_a_batch_gives_the_same_rows_of_the_blocks_that_it_names(
    blocks: list[int], batch: int, seed: int | None, window: int, data: st.DataObject
) -> None:
    order = make(blocks, batch, seed, window)
    step = data.draw(st.integers(0, 3 * order.batches.per_epoch))
    size = order.batches.size(step)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=5))})
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    pieces: list[int] = []
    for a, b in itertools.pairwise(cuts):
        rows = order.rows(step, a, b)
        assert set(block_of[rows]) <= set(order.blocks(step, a, b).tolist())
        pieces += rows.tolist()
    assert pieces == whole_step(order, step)
    assert order.rows(step, size, size).tolist() == order.blocks(step, size, size).tolist() == []


@properties
@given(block_lists, batches, seeds, windows, st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_steps_may_be_asked_for_in_any_order(
    blocks: list[int], batch: int, seed: int | None, window: int, steps: list[int]
) -> None:
    used = make(blocks, batch, seed, window)
    for step in steps:
        assert whole_step(used, step) == whole_step(make(blocks, batch, seed, window), step)


GOLDEN = [[8, 9, 0, 2], [10, 11, 4, 3], [1, 16, 17, 6], [18, 15, 12, 7], [19, 14, 13, 5], [9, 8, 6, 5], [10, 11, 7, 15]]


def test_the_order_of_a_job_does_not_change_between_versions() -> None:
    order = make([5, 3, 4, 6, 2], 4, 17, 9)
    assert [whole_step(order, step) for step in range(7)] == GOLDEN


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_worker_reads_its_share_of_the_blocks_and_one_more_per_window(workers: int) -> None:
    blocks, batch = 1000, 960
    order = make([100] * blocks, batch, 5, 25_000)
    windows = [step for step in range(order.batches.per_epoch) if order.window(step).start == step]
    assert len(windows) == 4
    for worker in range(workers):
        own = (worker * batch // workers, (worker + 1) * batch // workers)
        read = sum(len(order.blocks(step, *own)) for step in windows)
        assert read <= blocks / workers + 2 * len(windows)


def test_a_batch_has_rows_of_all_blocks_of_its_window_in_proportion() -> None:
    order = make([100] * 200, 200, 5, 5000)  # windows of 25 steps and 50 blocks
    for step in (0, 13, 24, 25, 99):
        counts = np.bincount(order.rows(step, 0, 200) // 100, minlength=200)
        assert set(counts[counts > 0]) == {4}
        assert (counts > 0).sum() == 50


def test_each_window_has_blocks_of_all_parts_of_the_data() -> None:
    """Data in the order of time: 8 windows of 25 blocks, so of each 8 consecutive blocks a window has one."""
    order = make([100] * 200, 100, 5, 2500)
    windows = [order.blocks(step, 0, 100) for step in range(0, 200, 25)]
    assert all(order.window(step) == range(step, step + 25) for step in range(0, 200, 25))
    for window in windows:
        assert sorted(window // 8) == list(range(25))
    assert len({tuple(window % 8) for window in windows}) == 8  # which one is a matter of chance
    assert windows[0].tolist() != sorted(windows[0].tolist())


def test_epochs_and_seeds_have_other_orders() -> None:
    orders = {seed: make([10] * 20, 50, seed, 100) for seed in (1, 2, None)}
    first = {seed: whole_step(order, 0) for seed, order in orders.items()}
    assert len({tuple(rows) for rows in first.values()}) == 3
    assert whole_step(orders[1], 4) != first[1]
    assert whole_step(orders[None], 4) == first[None]  # an evaluation reads the same batches each time


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="global_batch_size: must be >= 1, is 0"):
        make([3], 0, 1, 10)
