"""Ids that get a row after some steps and lose it when no step uses them, beside dicts with the same rules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_runtime.partition.access import NEVER, NO_RULES, Ages, TableRules
from heterps_runtime.store import snapshot
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.store.keys import NUM_SLOTS, partition
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.snapshot import RowChunk
from tests.heterps_runtime.helpers.access_reference import AccessReference, turn_of
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.store_reference import all_rows, finished, joined, sparse_optimizer

DIM, SEED, IDS = 3, 5, 60
RULES = {
    0: NO_RULES,
    1: TableRules(unused_steps=6, candidate_unused_steps=6),
    2: TableRules(min_steps=3),
    3: TableRules(min_steps=2, unused_steps=20, candidate_unused_steps=8),
    6: TableRules(min_steps=3, candidate_unused_steps=12),
}
TABLES = {n: TableSpec(f"table-{n}", 1 << 48, rules=rules) for n, rules in RULES.items()}


def new_store(tables: dict[int, TableSpec] = TABLES) -> RowStore:
    return RowStore(DIM, np.float64, sparse_optimizer("adagrad"), SEED, tables)


def new_reference(tables: dict[int, TableSpec] = TABLES) -> AccessReference:
    return AccessReference(DIM, sparse_optimizer("adagrad"), SEED, tables)


def pushes_of(rng: np.random.Generator, tables: dict[int, TableSpec] = TABLES) -> list[tuple[NDArray[Any], Any]]:
    """Gradients of a step: some ids in most of the steps, many in few."""
    pushes = []
    for _ in range(rng.integers(0, 3)):
        size = int(rng.integers(0, 12))
        ids = np.minimum(rng.zipf(1.4, size), IDS)
        keys = (rng.choice(sorted(tables), size) << 48) | ids.astype(np.int64)
        pushes.append((keys, rng.normal(size=(size, DIM))))
    return pushes


def contents(chunk: RowChunk) -> dict[int, list[list[float]]]:
    return {key: [array[i].tolist() for array in chunk.columns.values()] for i, key in enumerate(chunk.keys.tolist())}


def assert_same(reference: AccessReference, rows: RowChunk, candidates: RowChunk) -> None:
    """A copy of a store has what a reference has."""
    assert sorted(rows.keys.tolist()) == sorted(reference.rows)
    keys = rows.keys
    np.testing.assert_allclose(rows.rows, reference.pull(keys), rtol=1e-12, atol=1e-12)
    sums = np.array([reference.state[key][0] for key in keys.tolist()]).reshape(-1, DIM)
    np.testing.assert_allclose(rows.state["sum"], sums, rtol=1e-12, atol=1e-12)
    assert rows.state["last_step"].reshape(-1).tolist() == [reference.last[key] for key in keys.tolist()]
    found = dict(
        zip(
            candidates.keys.tolist(),
            np.hstack([candidates.state["steps"], candidates.state["last_step"]]).tolist(),
            strict=True,
        )
    )
    assert found == reference.candidates


def all_candidates(store: RowStore) -> RowChunk:
    assert store.candidates is not None
    return all_rows(store.candidates)


@pytest.mark.parametrize("seed", range(4))
def test_any_steps_on_any_stores_give_what_dicts_with_the_same_rules_give(seed: int) -> None:
    rng, reference, stores = np.random.default_rng(seed), new_reference(), [new_store()]
    slots = np.zeros(NUM_SLOTS, np.int32)
    for step in range(1, 161):
        pushes = pushes_of(rng)
        asked = np.array([key << 48 | i for key in TABLES for i in range(0, IDS + 1, 7)])
        reference.apply(pushes, 0.5, step)
        routed: list[list[Any]] = [[] for _ in stores]
        for keys, grads in pushes:
            order, counts = partition(keys, slots, len(stores))
            for s, mine in enumerate(np.split(order, np.cumsum(counts)[:-1])):
                routed[s].append((keys[mine], grads[mine]))
        for store, given in zip(stores, routed, strict=True):
            store.apply(given, 0.5, step)
            store.evict(step)
        if len(stores) == 1:
            np.testing.assert_allclose(stores[0].pull(asked), reference.pull(asked), rtol=1e-12, atol=1e-12)
            assert len(stores[0]) == len(reference.rows)
        if step % 20 == 0:
            parts = [joined([all_rows(s) for s in stores], stores[0])]
            assert stores[0].candidates is not None
            parts += [joined([all_candidates(s) for s in stores], stores[0].candidates)]
            assert_same(reference, *parts)
            count = int(rng.integers(1, 4))
            fresh = [new_store() for _ in range(count)]
            slots = rng.integers(0, count, NUM_SLOTS).astype(np.int32)
            for kind, chunk in enumerate(parts):
                order, counts = partition(chunk.keys, slots, count)
                for shard, mine in zip(fresh, np.split(order, np.cumsum(counts)[:-1]), strict=True):
                    target: KeyedRows | None = shard.candidates if kind else shard
                    assert target is not None
                    target.load(chunk.keys[mine], chunk.rows[mine], {n: a[mine] for n, a in chunk.state.items()})
            stores = fresh
    assert min(reference.admitted, reference.evicted, reference.forgotten) > 20  # each rule has taken effect


def test_a_copy_has_the_rows_of_its_commit_while_rows_go_and_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the copies of what has changed since an earlier one."""
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 8)
    monkeypatch.setattr("heterps_runtime.store.keyed.MAX_SNAPSHOTS", 15)  # their count begins anew twice
    rng, reference, store = np.random.default_rng(9), new_reference(), new_store()
    assert store.candidates is not None
    parts: list[KeyedRows] = [store, store.candidates]
    known: list[dict[int, Any]] = [{}, {}]  # what the copies so far say, newest last
    since: list[int | None] = [None, None]
    removed_meanwhile = 0
    step = 0
    for _ in range(40):
        begun = [part.begin_snapshot(number) for part, number in zip(parts, since, strict=True)]
        then, at = copy.deepcopy(reference), step
        pieces: list[list[RowChunk]] = [[], []]
        for _ in range(int(rng.integers(1, 8))):
            step += 1
            pushes = pushes_of(rng)
            store.apply(pushes, 0.5, step)
            store.evict(step)
            before = reference.admitted + reference.evicted + reference.forgotten
            reference.apply(pushes, 0.5, step)
            if not begun[0][1].done or not begun[1][1].done:
                removed_meanwhile += reference.admitted + reference.evicted + reference.forgotten - before
            for k, (_, one) in enumerate(begun):
                if not one.done and (piece := one.advance()) is not None:
                    pieces[k].append(piece)
        for k, (number, one) in enumerate(begun):
            pieces[k] += finished(one)
            parts[k].end_snapshot()
            since[k] = number
            chunk = joined(pieces[k], parts[k])
            assert len(chunk.keys) == one.total
            known[k] |= contents(chunk)
        # As a reader of a checkpoint does: what has gone since is left out, and candidates that have a row.
        rows, candidates = (
            {key: values for key, values in one.items() if not gone(key, int(values[-1][0]), at, k)}
            for k, one in enumerate(known)
        )
        assert sorted(rows) == sorted(then.rows)
        for key, (row, *_) in rows.items():
            np.testing.assert_allclose(row, then.rows[key], rtol=1e-12, atol=1e-12)
        assert {k: [int(a[0]) for a in v] for k, v in candidates.items() if k not in rows} == then.candidates
    assert removed_meanwhile > 30


def gone(key: int, last: int, step: int, kind: int) -> bool:
    rules = TABLES[key >> 48].rules
    ages = (Ages.of_rows, Ages.of_candidates)[kind](RULES)
    found = bool(ages.gone(np.array([key]), np.array([last]), step)[0])
    limit = (rules.unused_steps, rules.candidate_unused_steps)[kind]
    turns = range(last + 1, step + 1)
    assert found == any(s - last >= limit and s % rules.period == turn_of(key, rules.period) for s in turns)
    return found


@pytest.mark.parametrize("without", ["min_steps", "unused_steps", "candidate_unused_steps"])
def test_each_rule_changes_the_result(without: str) -> None:
    """The control of the tests above: they would see it if a rule had no effect."""
    rng, step = np.random.default_rng(1), 0
    plain = {"min_steps": 1, "unused_steps": NEVER, "candidate_unused_steps": NEVER}
    rules = {"min_steps": 2, "unused_steps": 40, "candidate_unused_steps": 4}
    stores = []
    for changes in ({}, {without: plain[without]}):
        table = {0: TableSpec("table", 1 << 48, rules=TableRules(**(rules | changes)))}
        stores.append((new_store(table), table))
    for step in range(1, 121):
        pushes = pushes_of(rng, {0: stores[0][1][0]})
        for store, _ in stores:
            store.apply(pushes, 0.5, step)
            store.evict(step)
    one, other = (contents(all_rows(store)) for store, _ in stores)
    assert one != other


def test_an_evicted_id_has_its_initial_value_and_its_place_is_used_again() -> None:
    tables = {0: TableSpec("table", 1 << 48, rules=TableRules(unused_steps=3, candidate_unused_steps=3))}
    store = new_store(tables)
    keys = make_keys(0, range(1000))
    initial = store.pull(keys)
    store.apply([(keys, np.ones((1000, DIM)))], 1.0, 1)
    store.evict(1)
    held = store.nbytes
    for step in (2, 3):
        assert store.evict(step).tolist() == []
        assert not np.array_equal(store.pull(keys), initial)
    assert sorted(store.evict(4).tolist()) == keys.tolist()
    assert store.take_moved() == {"table": (0, 1000)}
    assert store.take_moved() == {}
    assert len(store) == 0
    np.testing.assert_array_equal(store.pull(keys), initial)
    others = make_keys(0, range(5000, 6000))
    first = store.pull(others)
    store.apply([(others, np.zeros((1000, DIM)))], 1.0, 5)
    np.testing.assert_array_equal(store.pull(others), first)
    np.testing.assert_array_equal(all_rows(store).state["sum"], np.full((1000, DIM), 0.1))  # of no row before
    assert store.nbytes - store._free.nbytes == held


def test_a_refused_key_counts_for_no_candidate() -> None:
    tables = {0: TableSpec("table", 50, rules=TableRules(min_steps=2))}
    for bad in (50, 1 << 48, -1):
        store = new_store(tables)
        for _ in range(3):
            with pytest.raises(ValueError, match=r"keys: (table 'table' has ids 0 \.\. 49, not 50|.* is of table)"):
                store.apply([(np.array([7, bad]), np.ones((2, DIM)))], 1.0, 1)
        assert len(store) == len(all_candidates(store).keys) == 0


def test_lookups_count_for_nothing() -> None:
    tables = {0: TableSpec("table", 50, rules=TableRules(min_steps=2, unused_steps=4, candidate_unused_steps=4))}
    store, key = new_store(tables), make_keys(0, [7])
    grads = np.ones((1, DIM))
    store.apply([(key, grads)], 1.0, 1)
    for _ in range(3):
        store.pull(key)
    assert len(store) == 0
    store.apply([(key, grads)], 1.0, 2)
    assert len(store) == 1
    for step in range(3, 7):
        store.pull(key)
        assert len(store) == 1
        store.evict(step)
    assert len(store) == 0


@pytest.mark.parametrize(
    ("rules", "period"),
    [
        (NO_RULES, 256),
        (TableRules(unused_steps=1), 1),
        (TableRules(unused_steps=7), 1),
        (TableRules(unused_steps=100), 25),
        (TableRules(unused_steps=100, candidate_unused_steps=40), 10),
        (TableRules(unused_steps=10**6), 256),
    ],
)
def test_a_row_stays_at_most_a_quarter_longer_than_it_must(rules: TableRules, period: int) -> None:
    assert rules.period == period
