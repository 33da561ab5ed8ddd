"""Snapshots of a store: its rows as they were at one commit, whatever happens while they are copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.store import snapshot
from heterps_runtime.store.changes import LOADED, MAX_SNAPSHOTS, Changes
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.snapshot import RowChunk
from tests.heterps_runtime.helpers.store_reference import all_rows, finished, joined, sparse_optimizer

DIM = 3
Values = dict[int, list[list[float]]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 16)
    monkeypatch.setattr(snapshot, "_SCANNED_ROWS", 20)


def new_store(optimizer: str = "adam") -> RowStore:
    return RowStore(DIM, np.float64, sparse_optimizer(optimizer), 1, {0: TableSpec("table", 1 << 20)})


def train(store: RowStore, ids: Any, step: int) -> None:
    keys = np.asarray(ids, np.int64)
    gradients = np.random.default_rng(step).normal(size=(len(keys), DIM))
    assert store.apply([(keys, gradients)], 1.0, step) == 0


def values(chunk: RowChunk) -> Values:
    """Row and state by key; each key once."""
    found = {
        key: [chunk.rows[i].tolist(), *(array[i].tolist() for array in chunk.state.values())]
        for i, key in enumerate(chunk.keys.tolist())
    }
    assert len(found) == len(chunk.keys)
    return found


steps = st.lists(st.lists(st.integers(0, 150), max_size=60), max_size=5)


@settings(max_examples=60, deadline=None)
@given(before=steps, between=steps, during=steps, whole=st.booleans(), per_step=st.integers(0, 3))
def test_a_snapshot_has_the_rows_of_its_commit_however_it_is_interleaved_with_steps(
    before: list[list[int]], between: list[list[int]], during: list[list[int]], whole: bool, per_step: int
) -> None:
    store, step = new_store(), 0
    for ids in before:
        train(store, ids, step := step + 1)
    first, _ = store.begin_snapshot()
    store.end_snapshot()
    for ids in between:
        train(store, ids, step := step + 1)
    expected = values(all_rows(store))  # is a snapshot, too, so the next one is the second after the first
    _, copy = store.begin_snapshot(None if whole else first)
    pieces: list[RowChunk] = []
    for ids in during:
        train(store, ids, step := step + 1)
        for _ in range(per_step):
            if not copy.done:
                pieces += filter(None, [copy.advance()])
    pieces += finished(copy)
    store.end_snapshot()
    found = values(joined(pieces, store))
    assert found == (expected if whole else {key: expected[key] for ids in between for key in ids})
    assert [len(piece.keys) for piece in pieces[:-1]] == [16] * (len(pieces) - 1)


def test_rows_that_change_while_they_are_copied_belong_to_the_next_snapshot() -> None:
    store = new_store()
    train(store, range(100), 1)
    first, copy = store.begin_snapshot()
    copy.advance()  # rows 0 to 15
    train(store, [3, 50], 2)  # one that is copied, and one that is not
    finished(copy)
    store.end_snapshot()
    assert store.count_changed(first) == 2
    _, copy = store.begin_snapshot(first)
    [piece] = finished(copy)
    assert sorted(piece.keys.tolist()) == [3, 50]


def test_a_snapshot_that_was_given_up_counts_for_nothing() -> None:
    store = new_store()
    train(store, range(30), 1)
    first, copy = store.begin_snapshot()
    finished(copy)
    store.end_snapshot()
    train(store, [1, 2], 2)
    store.begin_snapshot(first)[1].advance()
    store.end_snapshot()
    train(store, [2, 40], 3)
    _, copy = store.begin_snapshot(first)
    assert sorted(joined(finished(copy), store).keys.tolist()) == [1, 2, 40]


def test_rows_of_a_checkpoint_count_as_unchanged() -> None:
    trained, store = new_store(), new_store()
    train(trained, range(40), 1)
    store.load(*all_rows(trained))
    assert store.count_changed(LOADED) == 0
    train(store, [7, 90], 2)
    _, copy = store.begin_snapshot(LOADED)
    assert sorted(joined(finished(copy), store).keys.tolist()) == [7, 90]


def test_copies_are_held_only_for_as_long_as_they_are_needed() -> None:
    store = new_store()
    train(store, range(200), 1)
    without = store.nbytes
    _, copy = store.begin_snapshot()
    assert store.nbytes == without
    train(store, range(200), 2)  # before the first piece: all rows are copied ahead
    assert store.nbytes == without + 200 * store.row_nbytes
    finished(copy)
    store.end_snapshot()
    assert store.nbytes == without


def test_snapshots_are_counted_anew_before_their_numbers_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.store.keyed.MAX_SNAPSHOTS", 3)
    store = new_store()
    train(store, range(20), 1)
    numbers: list[int] = []
    for step in range(2, 9):
        number, copy = store.begin_snapshot(numbers[-1] if numbers else None)
        numbers.append(number)
        found = joined(finished(copy), store).keys.tolist()
        store.end_snapshot()
        assert sorted(found) == (list(range(20)) if number == 1 else [step - 1])
        train(store, [step], step)
    assert numbers == [1, 2, 3, 1, 2, 3, 1]


def test_a_number_of_before_the_count_began_anew_stands_for_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.store.keyed.MAX_SNAPSHOTS", 3)
    store = new_store()
    train(store, range(20), 1)
    for _ in range(4):
        number = store.begin_snapshot()[0]
        store.end_snapshot()
    assert number == 1
    assert store.count_changed(3) == 20
    assert store.begin_snapshot(3)[1].total == 20


@pytest.mark.parametrize("dim", [1, 1000, 3_000_000])
def test_a_piece_takes_no_more_than_8_mb_and_at_least_8_rows(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    store = RowStore(dim, np.float32, sparse_optimizer("sgd"), 1, {0: TableSpec("table", 10)})
    piece = store.begin_snapshot()[1].piece_rows
    assert piece % 8 == 0
    assert piece == 8 or piece * store.row_nbytes <= 8 << 20


def test_the_numbers_of_snapshots_fit_the_type_of_marks() -> None:
    assert np.iinfo(Changes().marks.dtype).max > MAX_SNAPSHOTS
