"""The hash index of a row store, beside a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_runtime.partition.splitmix import mix64
from heterps_runtime.store import index
from heterps_runtime.store.index import HashIndex

NO_LIMITS = np.tile(np.array([[1 << 48, 0, -1]]), (1 << 15, 1))  # of all keys
HALVES = np.uint64(0xFFFFFFFF)


class World:
    """An index with its keys, and a dict of what it should contain."""

    def __init__(self, capacity: int) -> None:
        self.index = HashIndex()
        self.row_keys = np.zeros(capacity, np.int64)
        self.expected: dict[int, int] = {}
        self.seen_moving = False

    def claim(self, keys: NDArray[np.int64]) -> None:
        rows = np.empty(len(keys), np.int32)
        done, count, _ = self.index.claim(keys, 0, NO_LIMITS, self.row_keys, len(self.expected), rows)
        assert done == len(keys)
        for key in keys.tolist():
            self.expected.setdefault(key, len(self.expected))
        assert count == len(self.expected)
        assert rows.tolist() == [self.expected[key] for key in keys.tolist()]
        self.seen_moving |= self.index.moves

    def check(self, strangers: NDArray[np.int64]) -> None:
        """All keys are found, and no others."""
        keys = np.concatenate([np.fromiter(self.expected, np.int64), strangers])
        rows, unknown = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
        count = self.index.find(keys, self.row_keys, rows, unknown)
        assert rows.tolist() == [self.expected.get(key, -1) for key in keys.tolist()]
        assert unknown[:count].tolist() == [i for i, row in enumerate(rows) if row < 0]


def keys_with_halves(halves: NDArray[np.uint64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return different keys whose hashes have these high halves (n,), by the inverse of the hash."""
    found = np.full(len(halves), -1, np.int64)
    while (missing := found < 0).any():
        low = rng.integers(0, 1 << 32, missing.sum(), dtype=np.uint64)
        found[missing] = inverse_of_mix64(halves[missing] << np.uint64(32) | low).view(np.int64)
    assert len(np.unique(found)) == len(found)
    return found


def inverse_of_mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Undo the steps of SplitMix64's finaliser in reverse order."""

    def unshift(w: NDArray[np.uint64], shift: int) -> NDArray[np.uint64]:
        result = w
        for _ in range(64 // shift):
            result = w ^ (result >> np.uint64(shift))
        return result

    def undone(w: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
        return w * np.uint64(pow(factor, -1, 1 << 64))

    words = undone(unshift(words, 31), 0x94D049BB133111EB)
    words = undone(unshift(words, 27), 0xBF58476D1CE4E5B9)
    return unshift(words, 30)


def test_keys_are_found_at_every_size_and_while_entries_move() -> None:
    rng, world = np.random.default_rng(0), World(60_000)
    while len(world.expected) < 40_000:
        fresh = rng.integers(0, 1 << 62, 300)
        world.claim(
            np.concatenate(
                [fresh, rng.choice(np.fromiter(world.expected, np.int64), 50)] if world.expected else [fresh]
            )
        )
        if len(world.expected) % 7 == 0 or world.index.moves:
            world.check(rng.integers(0, 1 << 62, 500))
    world.check(rng.integers(0, 1 << 62, 5_000))
    assert world.seen_moving


def test_the_inverse_of_the_hash_is_right() -> None:
    keys = np.random.default_rng(1).integers(0, 1 << 62, 100)
    hashes = mix64(keys.view(np.uint64))
    np.testing.assert_array_equal(inverse_of_mix64(hashes).view(np.int64), keys)


def test_different_keys_with_the_same_half_of_a_hash_are_told_apart() -> None:
    rng, world = np.random.default_rng(2), World(20_000)
    halves = np.repeat(rng.integers(0, 1 << 32, 400, dtype=np.uint64), 5)
    for part in np.split(rng.permutation(keys_with_halves(halves, rng)), 40):
        world.claim(part)
        world.check(keys_with_halves(halves[::5], rng))


@pytest.mark.parametrize("num_at_the_end", [3_000, 5_000, 12_000])
def test_more_keys_than_fit_behind_the_last_place_need_a_longer_table(num_at_the_end: int) -> None:
    rng, world = np.random.default_rng(3), World(20_000)
    crowd = keys_with_halves(np.full(num_at_the_end, HALVES), rng)
    for part in np.array_split(crowd, 7):
        world.claim(np.concatenate([part, rng.integers(0, 1 << 62, 200)]))
    world.check(rng.integers(0, 1 << 62, 500))


def test_the_index_asks_for_room_and_goes_on_where_it_stopped() -> None:
    index, keys, rows = HashIndex(), np.arange(10), np.empty(10, np.int32)
    small, large = np.zeros(4, np.int64), np.zeros(20, np.int64)
    assert index.claim(keys, 0, NO_LIMITS, small, 0, rows) == (4, 4, 0)
    large[:4] = small
    assert index.claim(keys, 4, NO_LIMITS, large, 4, rows) == (10, 10, 0)
    assert rows.tolist() == list(range(10))
    np.testing.assert_array_equal(large[:10], keys)


def test_a_key_of_no_table_is_reported_with_the_rows_before_it() -> None:
    index, row_keys, rows = HashIndex(), np.zeros(10, np.int64), np.empty(3, np.int32)
    limits = np.array([[100, 0, -1]])
    assert index.claim(np.array([5, 6, 100]), 0, limits, row_keys, 0, rows) == (-3, 2, 0)
    assert index.claim(np.array([5, 6, 7]), 0, limits, row_keys, 2, rows) == (3, 3, 0)
    assert rows.tolist() == [0, 1, 2]


def test_growth_moves_a_bounded_number_of_entries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    index, row_keys = HashIndex(), np.zeros(1 << 20, np.int64)
    move_on = index._move_on

    def noted(num_places: int) -> None:
        before = index._sizes.tolist()
        move_on(num_places)
        if before[1]:
            moved.append((index._sizes[2] if index.moves else before[1]) - before[2])

    monkeypatch.setattr(index, "_move_on", noted)
    monkeypatch.setattr(index, "_rebuild", lambda places: pytest.fail("all entries moved at once"))
    rng, num_rows = np.random.default_rng(4), 0
    while num_rows < 900_000:
        keys = rng.integers(0, 1 << 62, 5_000 if num_rows > 100_000 else 100)
        _, num_rows, _ = index.claim(keys, 0, NO_LIMITS, row_keys, num_rows, np.empty(len(keys), np.int32))
    assert max(moved) < 16 * 5_000 + 4_096 + 2_000  # and on to an empty entry


def test_reserved_room_takes_rows_without_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(60_000)
    world.claim(np.arange(300))
    world.index.reserve(50_000)
    monkeypatch.setattr(world.index, "_grow", lambda: pytest.fail("the table grew"))
    world.claim(np.arange(50_000))
    world.check(np.arange(50_000, 51_000))


def test_memory_per_row_is_at_most_that_of_a_table_just_grown() -> None:
    index, row_keys, rng, num_rows = HashIndex(), np.zeros(1 << 20, np.int64), np.random.default_rng(5), 0
    while num_rows < 900_000:
        keys = rng.integers(0, 1 << 62, 3_000)
        _, num_rows, _ = index.claim(keys, 0, NO_LIMITS, row_keys, num_rows, np.empty(len(keys), np.int32))
        if num_rows > 50_000 and not index.moves:
            assert 9.9 < index.nbytes / num_rows < 12.6


class Removing(World):
    """The same with rows that are given up and used again."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.num_rows, self.free = 0, np.empty(0, np.int32)

    def claim(self, keys: NDArray[np.int64]) -> None:
        rows = np.empty(len(keys), np.int32)
        done, self.num_rows, num_free = self.index.claim(
            keys, 0, NO_LIMITS, self.row_keys, self.num_rows, rows, self.free
        )
        assert done == len(keys)
        self.free = self.free[:num_free]
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            assert self.expected.setdefault(key, row) == row
        assert self.row_keys[rows].tolist() == keys.tolist()
        assert len(set(self.expected.values())) == len(self.expected) == self.num_rows - num_free
        self.seen_moving |= self.index.moves

    def remove(self, keys: NDArray[np.int64]) -> None:
        rows = np.array([self.expected.pop(key) for key in keys.tolist()], np.int32)
        self.index.remove(keys, rows)
        self.row_keys[rows] = -1
        self.free = np.concatenate([self.free, rows])

    def check_parts(self, parts: int) -> None:
        """Each row is found in the part of its key."""
        keys, rows = (np.fromiter(values, np.int64) for values in (self.expected, self.expected.values()))
        parts_of = (mix64(keys.view(np.uint64)) >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
        for part in range(parts):
            found = self.index.rows_of_part(part, parts)
            assert np.sort(found).tolist() == np.sort(rows[parts_of == part]).tolist()


@pytest.mark.parametrize("collisions", [1, 1 << 10, 1 << 32])
def test_removed_keys_are_gone_and_all_others_are_found_at_every_size_and_while_entries_move(collisions: int) -> None:
    """`collisions`: halves of hashes that keys have, from one that all share to all that there are."""
    rng, world = np.random.default_rng(collisions), Removing(30_000)
    largest, added = (600, 300) if collisions == 1 else (12_000, 1500)
    strangers = rng.integers(0, 1 << 62, 500)
    removed_while_moving = False
    for turn in range(160):
        share = 0.1 if turn % 40 < 20 else 0.6  # it grows, then it shrinks
        if len(world.expected) < largest:
            halves = rng.integers(0, collisions, added).astype(np.uint64) * np.uint64((1 << 32) // collisions)
            world.claim(keys_with_halves(halves, rng))
        there = np.fromiter(world.expected, np.int64)
        gone = rng.permutation(there)[: int(share * len(there))]
        removed_while_moving |= world.index.moves
        world.remove(gone)
        if turn % 8 == 0:
            world.check(np.concatenate([strangers, gone]))
            world.check_parts(int(rng.integers(1, 9)))
    world.remove(np.fromiter(world.expected, np.int64))
    world.check(strangers)
    assert world.index.rows_of_part(0, 1).size == 0
    assert removed_while_moving or collisions == 1


def test_entries_whose_move_failed_are_in_the_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some moves end with the end of the new table, after entries have been copied to it."""
    monkeypatch.setattr(index, "_MOVED_AT_LEAST", 8)
    monkeypatch.setattr(index, "_MOVED_PER_ROW", 0)
    move, calls = index._move, 0

    def failing(source: Any, old_buckets: int, limit: int, start: int, stop: int, target: Any, buckets: int) -> Any:
        nonlocal calls
        reached = move(source, old_buckets, limit, start, stop, target, buckets)
        calls += stop - start == 8
        return -1 if stop - start == 8 and calls % 7 == 0 else reached

    monkeypatch.setattr(index, "_move", failing)
    rng, world = np.random.default_rng(3), Removing(12_000)
    for _ in range(60):
        world.claim(rng.integers(0, 1 << 62, 100))
        world.check_parts(3)
        world.remove(rng.permutation(np.fromiter(world.expected, np.int64))[:20])
        world.check(rng.integers(0, 1 << 62, 100))
        world.check_parts(3)
    assert calls > 14
