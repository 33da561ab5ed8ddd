from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_runtime.store.initial import EmbeddingInit, TableSpec, initial_rows
from heterps_runtime.store.kernel import mix64
from heterps_runtime.store.keys import NUM_SLOTS, partition
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.rows import RowStore
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.store_reference import EXAMPLES, ReferenceStore, all_rows, sparse_optimizer

TABLES = {
    0: TableSpec("users.weight", 2**48),
    3: TableSpec("items.weight", 50, EmbeddingInit("uniform"), padding_idx=7),
}
DIM = 5


def row_store(name: str = "rowwise-adagrad", dtype: type = np.float64, dim: int = DIM) -> RowStore:
    return RowStore(dim, dtype, sparse_optimizer(name), 11, TABLES)


def random_keys(rng: np.random.Generator, size: int, num_ids: int = 40) -> NDArray[Any]:
    return np.where(
        rng.random(size) < 0.5,
        make_keys(0, rng.integers(0, num_ids, size) * 2**33),
        make_keys(3, rng.integers(0, 40, size)),
    )


def sorted_items(store: RowStore) -> list[NDArray[Any]]:
    keys, rows, state = all_rows(store)
    order = np.argsort(keys)
    return [keys[order], rows[order], *(array[order] for array in state.values())]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.integers(0, 2**32),
    st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=6),
)
def test_any_sequence_of_steps_gives_what_a_dict_of_rows_gives(name: str, seed: int, steps: list[list[int]]) -> None:
    rng = np.random.default_rng(seed)
    store, reference = row_store(name), ReferenceStore(DIM, sparse_optimizer(name), 11, TABLES)
    for t, sizes in enumerate(steps, start=1):
        asked = random_keys(rng, 20)
        np.testing.assert_allclose(store.pull(asked), reference.pull(asked), rtol=1e-9, atol=1e-12)
        assert len(store) == len(reference.rows)
        pushes = [(random_keys(rng, size), rng.normal(size=(size, DIM))) for size in sizes]
        assert store.apply(pushes, 0.25, t) == 0
        reference.apply(pushes, 0.25, t)
    assert len(store) == len(reference.rows)
    keys, rows, state = all_rows(store)
    assert keys.tolist() == list(reference.rows)  # in the order in which they came
    np.testing.assert_allclose(rows, reference.pull(keys), rtol=1e-9, atol=1e-12)
    for i, array in enumerate(state.values()):
        expected = np.array([reference.state[k][i] for k in keys.tolist()]).reshape(array.shape)
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12)


def test_a_row_that_was_never_trained_is_computed_and_not_stored() -> None:
    store = row_store(dtype=np.float32)
    ids = np.array([5, 2**39, 0])
    np.testing.assert_array_equal(store.pull(make_keys(0, ids)), initial_rows(11, "users.weight", ids, DIM))
    assert not store.pull(make_keys(3, [7])).any()  # the padding row
    assert len(store) == 0


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_zero_gradient_leaves_a_new_row_at_its_initial_value(name: str) -> None:
    plain = {"epsilon": "1e-8"} if name.startswith("ada") else {"l1": "0"} if name == "ftrl" else {}
    store = RowStore(
        DIM, np.float64, SparseOptimizer.from_manifest({"name": name, "learningRate": "1", **plain}), 0, TABLES
    )
    keys = make_keys(0, [1, 2])
    before = store.pull(keys)
    assert store.apply([(keys, np.zeros((2, DIM)))], 1.0, 1) == 0
    assert len(store) == 2
    np.testing.assert_array_equal(store.pull(keys), before)


def test_growth_keeps_all_rows_and_their_state() -> None:
    rng = np.random.default_rng(0)
    store, num_rows = row_store("sgd", np.float32, 2), 60_000
    keys = make_keys(0, rng.permutation(num_rows))
    for part in np.array_split(keys, 23):
        store.apply([(part, np.ones((len(part), 2), np.float32))], 1.0, 1)
    assert len(store) == num_rows
    expected = initial_rows(11, "users.weight", keys, 2) - np.float32(0.1)
    np.testing.assert_allclose(store.pull(keys), expected, rtol=1e-6, atol=1e-7)
    assert store.nbytes >= num_rows * (2 * 4 + 8 + 2 + 8 / 0.8)


def test_keys_that_collide_are_told_apart() -> None:
    # All of them start at the same place of a small index, and at its end: probing wraps around.
    wanted = (1 << 10) - 1
    candidates = make_keys(0, np.arange(200_000))
    colliding = candidates[[int(mix64(np.uint64(k))) >> 54 == wanted for k in candidates.tolist()]][:100]
    assert len(colliding) == 100
    store = row_store("sgd")
    grads = np.arange(100 * DIM, dtype=np.float64).reshape(100, DIM)
    before = store.pull(colliding)
    store.apply([(colliding[:60], grads[:60])], 1.0, 1)
    store.apply([(colliding[60:], grads[60:])], 1.0, 1)
    np.testing.assert_allclose(store.pull(colliding), before - 0.1 * grads)


def test_the_result_depends_on_the_order_of_pushes_only_not_on_what_was_there_before() -> None:
    rng = np.random.default_rng(5)
    keys = [random_keys(rng, 200) for _ in range(3)]
    pushes = [
        (k, (rng.normal(size=(200, DIM)) * 10.0 ** rng.integers(-6, 6, (200, 1))).astype(np.float32)) for k in keys
    ]
    first, second = row_store(dtype=np.float32), row_store(dtype=np.float32)
    first.apply(pushes, 0.1, 1)
    # Other rows came earlier, so rows lie elsewhere; and the pushes arrive joined into one.
    second.apply([(make_keys(0, np.arange(900)), np.zeros((900, DIM), np.float32))], 1.0, 1)
    second.apply([(np.concatenate(keys), np.concatenate([g for _, g in pushes]))], 0.1, 1)
    asked = np.unique(np.concatenate(keys))
    np.testing.assert_array_equal(first.pull(asked), second.pull(asked))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_a_poisoned_step_is_counted_and_changes_nothing(poison: float) -> None:
    rng = np.random.default_rng(1)
    store = row_store("adam", np.float32)
    store.apply([(make_keys(0, [1, 2]), np.ones((2, DIM), np.float32))], 1.0, 1)
    before = sorted_items(store)
    good = (make_keys(0, [1, 9]), rng.normal(size=(2, DIM)).astype(np.float32))
    bad = (make_keys(0, [2, 1]), np.ones((2, DIM), np.float32))
    bad[1][1, 3] = bad[1][0, 0] = poison  # 3e38 is finite, but the sum of two would not be
    assert store.apply([good, bad], 1.0, 2) == 2
    for old, new in zip(before, sorted_items(store), strict=True):
        np.testing.assert_array_equal(old, new)
    assert store.apply([good], 1.0, 2) == 0


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (50 | 3 << 48, r"keys: table 'items.weight' has ids 0 .. 49, not 50"),
        (1 << 48, r"keys: \d+ is of table 1, this store has \[0, 3\]"),
        (9 << 48, r"of table 9"),
        (-1, "keys: -1 is of table -1"),
    ],
)
def test_a_key_of_no_table_is_refused(key: int, message: str) -> None:
    store = row_store()
    keys = np.array([4, key], np.int64)
    with pytest.raises(ValueError, match=message):
        store.pull(keys)
    with pytest.raises(ValueError, match=message):
        store.apply([(keys, np.ones((2, DIM)))], 1.0, 1)
    np.testing.assert_array_equal(store.pull(keys[:1]), row_store().pull(keys[:1]))
    assert store.apply([(keys[:1], np.ones((1, DIM)))], 1.0, 1) == 0  # and goes on working


def test_nothing_pushed_is_a_step_without_effect() -> None:
    store = row_store()
    assert store.apply([], 1.0, 1) == store.apply([(np.empty(0, np.int64), np.empty((0, DIM)))], 1.0, 1) == 0
    assert store.pull(np.empty(0, np.int64)).shape == (0, DIM)
    assert len(store) == len(all_rows(store).keys) == 0


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("num_shards", [1, 3, 8])
def test_rows_move_to_any_number_of_stores_and_train_on_as_before(name: str, num_shards: int) -> None:
    rng = np.random.default_rng(num_shards)
    whole = row_store(name)
    steps = [[(random_keys(rng, 150, 500), rng.normal(size=(150, DIM))) for _ in range(2)] for _ in range(4)]
    for t in (1, 2):
        whole.apply(steps[t - 1], 0.5, t)
    slot_to_shard = rng.integers(0, num_shards, NUM_SLOTS).astype(np.int32)
    shards = [row_store(name) for _ in range(num_shards)]
    saved = all_rows(whole)
    for part in np.array_split(np.arange(len(whole)), 7):
        keys, rows, state = saved.keys[part], saved.rows[part], {n: a[part] for n, a in saved.state.items()}
        order, counts = partition(keys, slot_to_shard, num_shards)
        for shard, mine in zip(shards, np.split(order, np.cumsum(counts)[:-1]), strict=True):
            shard.load(keys[mine], rows[mine], {n: a[mine] for n, a in state.items()})
    for t in (3, 4):
        whole.apply(steps[t - 1], 0.5, t)
        routed: list[list[Any]] = [[] for _ in shards]
        for keys, grads in steps[t - 1]:
            order, counts = partition(keys, slot_to_shard, num_shards)
            for s, mine in enumerate(np.split(order, np.cumsum(counts)[:-1])):
                routed[s].append((keys[mine], grads[mine]))
        for shard, pushes in zip(shards, routed, strict=True):
            shard.apply(pushes, 0.5, t)
    assert sum(map(len, shards)) == len(whole)
    merged = [np.concatenate(arrays) for arrays in zip(*(sorted_items(s) for s in shards), strict=True)]
    by_key = np.argsort(merged[0])
    for array, expected in zip(merged, sorted_items(whole), strict=True):
        np.testing.assert_array_equal(array[by_key], expected)


def test_loading_replaces_rows_and_a_snapshot_does_not_follow_training() -> None:
    store = row_store("adagrad")
    keys = make_keys(0, [4, 5, 6])
    store.apply([(keys, np.ones((3, DIM)))], 1.0, 1)
    saved = all_rows(store)
    copy = [saved.rows.copy(), saved.state["sum"].copy()]
    store.apply([(keys, np.ones((3, DIM)))], 1.0, 2)
    np.testing.assert_array_equal(saved.rows, copy[0])
    np.testing.assert_array_equal(saved.state["sum"], copy[1])
    store.load(*saved)
    assert len(store) == 3
    np.testing.assert_array_equal(store.pull(keys), saved.rows)
    np.testing.assert_array_equal(all_rows(store).state["sum"], saved.state["sum"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.zeros((2, DIM + 1))}, r"rows: must be float64 \(2, 5\), is float64 \(2, 6\)"),
        ({"rows": np.zeros((2, DIM), np.float32)}, r"rows: must be float64 \(2, 5\), is float32"),
        ({"state": {"sum": np.zeros((2, DIM))}}, r"state 'sum': must be float64 \(2, 1\)"),
        ({"state": {}}, r"state: must be \['sum'\], is \[\]"),
        ({"keys": make_keys(0, [1, 1])}, "keys: a key occurs twice"),
    ],
)
def test_rows_that_do_not_fit_are_not_loaded(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "keys": make_keys(0, [1, 2]),
        "rows": np.zeros((2, DIM)),
        "state": {"sum": np.zeros((2, 1))},
    } | change
    with pytest.raises(ValueError, match=message):
        row_store().load(**given)


def test_frames_from_the_network_need_no_copy_and_are_not_written_to() -> None:
    store = row_store("sgd", np.float32)
    keys, grads = make_keys(0, [3, 1, 2]), np.ones((3, DIM), np.float32)
    frozen = np.frombuffer(keys.tobytes(), np.int64), np.frombuffer(grads.tobytes(), np.float32).reshape(3, DIM)
    before = store.pull(frozen[0])
    store.apply([frozen, frozen], 0.5, 1)
    np.testing.assert_array_equal(frozen[1], grads)
    np.testing.assert_allclose(store.pull(frozen[0]), before - 0.1, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("dim", "dtype", "field"), [(0, np.float32, "dim"), (2, np.float16, "dtype")])
def test_a_store_of_impossible_rows_is_refused(dim: int, dtype: Any, field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: must be"):
        row_store(dtype=dtype, dim=dim)
