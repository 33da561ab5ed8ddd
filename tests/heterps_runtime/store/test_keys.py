from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_runtime.store.keys import NUM_SLOTS, UniqueKeys, fill_keys, group_by_shard, partition, shard_of
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys


def test_a_key_is_table_and_id_side_by_side() -> None:
    keys = np.empty(4, np.int64)
    fill_keys(3, 2**48, np.array([0, 1, 5, 2**48 - 1]), keys)
    assert keys.tolist() == [3 << 48, (3 << 48) + 1, (3 << 48) + 5, (4 << 48) - 1]
    fill_keys(2**15 - 1, 2**48, np.array([2**48 - 1] * 4), keys)
    assert set(keys.tolist()) == {2**63 - 1}


@given(st.integers(1, 2**48), st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 20), max_size=50))
def test_ids_are_reduced_as_by_pythons_modulo(num_rows: int, ids: list[int]) -> None:
    keys = np.empty(len(ids), np.int64)
    fill_keys(1, num_rows, np.array(ids, np.int64), keys)
    assert keys.tolist() == [(1 << 48) + i % num_rows for i in ids]


@given(st.lists(st.integers(0, 2**48), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 2**32))
def test_keys_are_grouped_by_shard_and_positions_follow(values: list[int], num_shards: int, seed: int) -> None:
    slot_to_shard = np.random.default_rng(seed).integers(0, num_shards, NUM_SLOTS).astype(np.int32)
    unique, inverse = UniqueKeys()(np.array(values, np.int64))
    keys, starts = group_by_shard(unique, inverse, slot_to_shard, num_shards)
    assert keys[inverse].tolist() == values
    assert starts.tolist()[0] == 0
    assert starts.tolist()[-1] == len(keys)
    for shard in range(num_shards):
        mine = keys[starts[shard] : starts[shard + 1]]
        assert set(shard_of(mine, slot_to_shard).tolist()) <= {shard}


def slots_of(keys: NDArray[Any]) -> NDArray[np.int32]:
    return shard_of(keys, np.arange(NUM_SLOTS, dtype=np.int32))


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 20), max_size=300))
def test_unique_keys_come_in_order_of_first_occurrence(values: list[int]) -> None:
    unique, inverse = UniqueKeys()(np.array(values, np.int64))
    assert unique.tolist() == list(dict.fromkeys(values))
    assert inverse.dtype == np.int32
    assert unique[inverse].tolist() == values


def test_kept_scratch_memory_changes_no_result() -> None:
    rng = np.random.default_rng(0)
    deduplicate = UniqueKeys()
    for size in (5, 40_000, 3, 7_000, 0, 100_000):  # grows twice, and is used half empty afterwards
        keys = rng.integers(0, 30_000, size)
        unique, inverse = deduplicate(keys)
        assert len(unique) == len(set(keys.tolist()))
        np.testing.assert_array_equal(unique[inverse], keys)


def test_keys_may_be_strided_or_read_only_or_unaligned() -> None:
    keys = np.arange(20, dtype=np.int64) // 2
    frozen = np.frombuffer(keys.tobytes(), np.int64)
    shifted = np.frombuffer(b"x" + keys.tobytes(), np.int64, offset=1)
    variants: list[Any] = [frozen, shifted, np.repeat(keys, 2)[::2], keys.astype(np.int32)]
    for variant in variants:
        unique, inverse = UniqueKeys()(variant)
        assert unique.tolist() == list(range(10))
        np.testing.assert_array_equal(inverse, keys)


@settings(max_examples=50)
@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 2**32))
def test_partition_groups_keys_by_shard_and_keeps_their_order(num_keys: int, num_shards: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = make_keys(2, rng.integers(0, 2**48, num_keys))
    slot_to_shard = rng.integers(0, num_shards, NUM_SLOTS).astype(np.int32)
    order, counts = parts = partition(keys, slot_to_shard, num_shards)
    shards = shard_of(keys, slot_to_shard)
    np.testing.assert_array_equal(shards, slot_to_shard[slots_of(keys)])
    np.testing.assert_array_equal(order, np.argsort(shards, kind="stable"))
    np.testing.assert_array_equal(counts, np.bincount(shards, minlength=num_shards))
    assert parts.starts.tolist() == [0, *np.cumsum(counts).tolist()]


def test_the_slot_of_a_key_never_changes() -> None:
    # Checkpoints and shard maps refer to slots: a different hash would orphan every stored row.
    keys = np.concatenate([make_keys(0, [0, 1, 2, 12345]), make_keys(7, [0, 1, 2**48 - 1])])
    assert slots_of(keys).tolist() == [0, 485, 138, 337, 610, 427, 320]


@pytest.mark.parametrize("stride", [1, 1024, 2**20, 3**9])
def test_slots_are_filled_evenly_by_any_pattern_of_ids(stride: int) -> None:
    per_slot = np.bincount(slots_of(make_keys(1, np.arange(200_000) * stride)), minlength=NUM_SLOTS)
    expected = 200_000 / NUM_SLOTS
    chi_squared = ((per_slot - expected) ** 2 / expected).sum()
    assert abs(chi_squared - NUM_SLOTS) < 6 * np.sqrt(2 * NUM_SLOTS)
