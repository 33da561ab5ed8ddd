"""Several threads make the rows that one thread makes, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.partition.access import TableRules
from heterps_runtime.store import team
from heterps_runtime.store.dense import DenseStore
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.kernel import mix64
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.team import ALONE, Team
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.store_reference import EXAMPLES, all_rows, sparse_optimizer

DIM, IDS = 9, 5000
THREE = Team(3)
RULES = TableRules(min_steps=2, unused_steps=2, candidate_unused_steps=3)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Any number of rows is divided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "_LEAST_ROWS", 1)
        patch.setattr(team, "_LEAST_ELEMENTS", 1)
        yield


def _store(name: str, members: Team, rules: TableRules, spill: Path | None) -> RowStore:
    space = SpillSpace(spill, 1) if spill else None
    return RowStore(DIM, np.float32, sparse_optimizer(name), 5, {0: TableSpec("t", IDS, rules=rules)}, space, members)


def _same(one: RowStore, other: RowStore) -> None:
    mine, theirs = all_rows(one), all_rows(other)
    my_order, their_order = np.argsort(mine.keys), np.argsort(theirs.keys)
    np.testing.assert_array_equal(mine.keys[my_order], theirs.keys[their_order])
    np.testing.assert_array_equal(mine.rows[my_order], theirs.rows[their_order])
    for column, values in mine.state.items():
        np.testing.assert_array_equal(values[my_order], theirs.state[column][their_order])


def _train(stores: list[RowStore], seed: int, sizes: list[list[int]]) -> None:
    draw = np.random.default_rng(seed)
    for step, of_step in enumerate(sizes, start=1):
        asked = make_keys(0, draw.integers(0, IDS, 300))
        found = [store.pull(asked) for store in stores]
        np.testing.assert_array_equal(found[0], found[1])
        pushes = [
            (make_keys(0, draw.integers(0, IDS, size)), draw.normal(size=(size, DIM)).astype(np.float32))
            for size in of_step
        ]
        assert [store.apply(pushes, 0.25, step) for store in stores] == [0, 0]
        for store in stores:
            store.evict(step)
    _same(*stores)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([TableRules(), RULES]),
    st.integers(0, 2**32),
    st.lists(st.lists(st.integers(0, 900), max_size=3), max_size=6),
)
def test_the_rows_do_not_depend_on_the_number_of_threads(
    name: str, rules: TableRules, seed: int, sizes: list[list[int]]
) -> None:
    _train([_store(name, members, rules, None) for members in (ALONE, THREE)], seed, sizes)


def test_nor_do_those_on_disk(tmp_path: Path) -> None:
    stores = [_store("adam", members, RULES, tmp_path / str(members.size)) for members in (ALONE, THREE)]
    _train(stores, 3, [[4000, 4000]] * 4)


def test_nor_if_all_keys_are_those_of_one_thread() -> None:
    ids = np.array([i for i in range(IDS) if int(mix64(np.uint64(i))) >> 32 < 1 << 30])
    assert len(ids) > 1000
    stores = [_store("adagrad", members, TableRules(), None) for members in (ALONE, THREE)]
    gradients = np.random.default_rng(4).normal(size=(len(ids), DIM)).astype(np.float32)
    for step in (1, 2):
        pushes = [(make_keys(0, ids), gradients), (make_keys(0, ids[::-1]), gradients)]
        assert [store.apply(pushes, 0.5, step) for store in stores] == [0, 0]
        _same(*stores)


def test_loaded_rows_are_the_same_while_the_index_grows() -> None:
    stores = [_store("adagrad", members, TableRules(), None) for members in (ALONE, THREE)]
    draw = np.random.default_rng(1)
    for ids in np.array_split(draw.permutation(IDS), 7):
        rows = draw.normal(size=(len(ids), DIM)).astype(np.float32)
        for store in stores:
            store.load(make_keys(0, ids), rows)
        _same(*stores)
    with pytest.raises(ValueError, match="a key occurs twice"):
        _store("sgd", THREE, TableRules(), None).load(make_keys(0, [1, 2, 1]), np.zeros((3, DIM), np.float32))


@pytest.mark.parametrize(
    "manifest", [{"name": "sgd", "momentum": "0.9"}, {"name": "adagrad"}, {"name": "adam", "weightDecay": "0.1"}]
)
def test_dense_parameters_do_not_depend_on_it_either(manifest: dict[str, str]) -> None:
    optimizer = DenseOptimizer.from_manifest({"learningRate": "0.1", **manifest})
    stores = [DenseStore(optimizer, members) for members in (ALONE, THREE)]
    draw = np.random.default_rng(2)
    shapes = {"weight": (37, 11), "bias": (5,), "empty": (0,)}
    for name, shape in shapes.items():
        first = draw.normal(size=shape)
        for store in stores:
            store.add(name, first)
    for step in range(1, 4):
        pushes = [{name: draw.normal(size=shape) for name, shape in shapes.items()} for _ in range(step)]
        assert [store.apply(pushes, 0.1, step) for store in stores] == [0, 0]
    pushes[0]["weight"][36, 10] = np.nan
    assert stores[1].apply(pushes, 0.1, 4) == 1
    one, other = (store.snapshot() for store in stores)
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])


def test_what_one_thread_refuses_is_refused_and_changes_nothing() -> None:
    store = _store("sgd", THREE, TableRules(), None)
    keys = make_keys(0, np.arange(100))
    gradients = np.ones((100, DIM), np.float32)
    gradients[71, 3] = np.nan
    gradients[2, 0] = np.inf
    assert store.apply([(keys, gradients)], 1.0, 1) == 2
    foreign = make_keys(0, np.r_[np.arange(60), IDS])
    with pytest.raises(ValueError, match=r"table 't' has ids 0 \.\. 4999, not 5000"):
        store.pull(foreign)
    with pytest.raises(ValueError, match="not 5000"):
        store.apply([(foreign, np.ones((61, DIM), np.float32))], 1.0, 1)
    np.testing.assert_array_equal(store.pull(keys), _store("sgd", ALONE, TableRules(), None).pull(keys))


def test_parts_run_at_the_same_time_and_their_results_are_in_order() -> None:
    together = threading.Barrier(3)

    def work(start: int, stop: int) -> tuple[int, int]:
        together.wait(60)  # for all three
        return start, stop

    assert THREE.share_rows(10, work) == [(0, 3), (3, 6), (6, 10)]


@pytest.mark.parametrize("wrong", [0, 3])
def test_an_error_of_a_part_is_that_of_the_call_when_all_parts_are_over(wrong: int) -> None:
    over, begun = [], threading.Barrier(3)

    def work(start: int, stop: int) -> None:
        begun.wait(60)
        if start == wrong:
            raise ValueError(f"from {start}")
        over.append(start)

    with pytest.raises(ValueError, match=f"from {wrong}"):
        THREE.share_rows(10, work)
    assert len(over) == 2


def test_few_items_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_LEAST_ROWS", 4096)
    assert THREE.share_rows(8191, lambda start, stop: (start, stop)) == [(0, 8191)]
    assert len(THREE.share_rows(8192, lambda start, stop: (start, stop))) == 2
