"""Rows that do not fit into memory: the same rows, whatever the memory, in bounded memory and on bounded disk."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.partition.access import NO_RULES, TableRules
from heterps_runtime.store import values
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.kernel import Int64s
from heterps_runtime.store.optimizers import SPARSE_OPTIMIZERS, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.snapshot import RowChunk
from heterps_runtime.store.spill import PAGE, SpillSpace, slots_per_block
from heterps_runtime.store.values import SpilledValues
from tests.heterps_runtime.helpers.store_reference import all_rows

NUM_IDS = 4000
STATE_BYTES = 4  # of a row: that of row-wise Adagrad


@pytest.fixture(autouse=True)
def _few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_LEAST_FRAMES", 8)


def store(
    space: SpillSpace | None,
    dim: int = 16,
    name: str = "rowwise-adagrad",
    dtype: str = "float32",
    rules: TableRules = NO_RULES,
) -> RowStore:
    optimizer = SparseOptimizer.from_manifest({"name": name, "learningRate": "0.05"})
    return RowStore(dim, dtype, optimizer, 7, {0: TableSpec("t", NUM_IDS, rules=rules)}, space)


def spilled(store: RowStore) -> SpilledValues:
    assert isinstance(store._values, SpilledValues)
    return store._values


def space_for(folder: Path, rows: int, like: RowStore) -> SpillSpace:
    """Memory for so many rows."""
    return SpillSpace(folder, rows * (like._values.row_nbytes + 17))


def same(one: RowChunk, other: RowChunk) -> None:
    order, other_order = np.argsort(one.keys), np.argsort(other.keys)
    assert np.array_equal(one.keys[order], other.keys[other_order])
    assert np.array_equal(one.rows[order], other.rows[other_order])
    assert one.state.keys() == other.state.keys()
    assert all(np.array_equal(one.state[n][order], other.state[n][other_order]) for n in one.state)


def zipf(rng: np.random.Generator, count: int) -> Int64s:
    weights = 1 / np.arange(1, NUM_IDS + 1) ** 1.05
    return rng.choice(NUM_IDS, count, p=weights / weights.sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARSE_OPTIMIZERS)
@pytest.mark.parametrize(("dim", "dtype", "rows"), [(16, "float32", 300), (33, "float64", 9), (1500, "float32", 40)])
def test_rows_on_disk_are_the_rows_in_memory(name: str, dim: int, dtype: str, rows: int, tmp_path: Path) -> None:
    """Steps, pulls, loads, and snapshots in progress; most calls need more rows than memory has room for."""
    rng = np.random.default_rng(dim)
    one = store(None, dim, name, dtype)
    other = store(space_for(tmp_path, rows, one), dim, name, dtype)
    copies: tuple[list[RowChunk], list[RowChunk]] = ([], [])
    snapshots = None
    for step in range(1, 25):
        keys = rng.integers(0, NUM_IDS, 200)
        pushes = [(part, rng.normal(size=(len(part), dim)).astype(dtype)) for part in np.split(keys, [60])]
        for each in (one, other):
            each.apply(pushes, 0.1, step)
        asked = rng.integers(0, NUM_IDS, 500)
        assert np.array_equal(one.pull(asked), other.pull(asked))
        if step == 8:
            given = rng.choice(NUM_IDS, 300, replace=False)
            loaded = rng.normal(size=(300, dim)).astype(dtype)
            state = {n: rng.random((300, k)).astype(dtype) for n, k in one.optimizer.state_columns(dim).items()}
            for each in (one, other):
                each.load(given, loaded, state)
        if step in (10, 17):
            snapshots = [each.begin_snapshot(1 if step == 17 else None)[1] for each in (one, other)]
        for snapshot, pieces in zip(snapshots or [], copies, strict=False):
            if not snapshot.done and (piece := snapshot.advance()) is not None:
                pieces.append(piece)
        if snapshots and all(snapshot.done for snapshot in snapshots):
            for each in (one, other):
                each.end_snapshot()
            snapshots = None
    assert len(copies[0]) == len(copies[1]) >= 2
    for first, second in zip(*copies, strict=True):
        same(first, second)
    same(all_rows(one), all_rows(other))
    assert spilled(other)._frames.num_used <= rows
    assert other.nbytes < rows * spilled(other)._frame_nbytes + len(other) * 80
    assert spilled(other)._space.num_read > 0


def test_rows_come_and_go_on_disk_as_in_memory(tmp_path: Path) -> None:
    """Ids get rows at their second step and lose them; numbers of rows that went are used again."""
    rules = TableRules(min_steps=2, unused_steps=12, candidate_unused_steps=12)
    rng = np.random.default_rng(2)
    one = store(None, rules=rules)
    other = store(space := space_for(tmp_path, 60, one), rules=rules)
    evicted = 0
    for step in range(1, 80):
        keys = zipf(rng, 400)
        gradients = rng.normal(size=(400, 16)).astype(np.float32)
        for each in (one, other):
            each.apply([(keys, gradients)], 0.1, step)
        gone, also_gone = one.evict(step), other.evict(step)
        assert set(gone.tolist()) == set(also_gone.tolist())
        evicted += len(gone)
        asked = zipf(rng, 400)
        assert np.array_equal(one.pull(asked), other.pull(asked))
    same(all_rows(one), all_rows(other))
    assert evicted > 1000
    assert space.num_read > 1000
    slots = spilled(other)._blocks._num_used
    assert slots <= len(other)


def test_rows_that_are_used_often_stay_in_memory(tmp_path: Path) -> None:
    """A tenth of the rows in memory: hardly more reads than if the most frequent tenth always was."""
    rng = np.random.default_rng(0)
    other = store(space := space_for(tmp_path, NUM_IDS // 10, store(None)))
    other.apply([(rng.permutation(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)
    asked = needed = 0
    for step in range(2, 400):
        keys = np.unique(zipf(rng, 100))
        before = space.num_read
        other.apply([(keys, np.zeros((len(keys), 16), np.float32))], 1.0, step)
        if step >= 200:
            asked += space.num_read - before
            needed += int(np.count_nonzero(keys >= NUM_IDS // 10))
    assert needed > 1000
    assert asked < 1.35 * needed


def test_a_pull_that_was_read_ahead_reads_nothing(tmp_path: Path) -> None:
    other = store(space := space_for(tmp_path, 300, store(None)))
    other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)
    keys = np.arange(100, 300)
    before = space.num_read
    other.read_ahead(keys)
    read = space.num_read - before
    assert read == len(keys)
    other.pull(keys)
    assert space.num_read - before == read


def test_a_snapshot_displaces_no_rows(tmp_path: Path) -> None:
    other = store(space := space_for(tmp_path, 300, store(None)))
    other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)
    keys = np.arange(100, 300)
    other.pull(keys)
    all_rows(other)
    before = space.num_read
    other.pull(keys)
    assert space.num_read == before


def test_what_was_only_read_is_not_written_again(tmp_path: Path) -> None:
    other = store(space := space_for(tmp_path, 300, store(None)))
    other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)
    other.pull(np.arange(2000, 2300))
    before = space.num_written
    for start in range(0, NUM_IDS, 200):
        other.pull(np.arange(start, start + 200))
    assert space.num_written == before


def test_disk_is_used_again(tmp_path: Path) -> None:
    """Each row is written to a new place many times; the file has room for one and a half of each, and some blocks."""
    rng = np.random.default_rng(1)
    other = store(space := space_for(tmp_path, 100, store(None)), dim=256)
    for step in range(1, 400):
        keys = rng.choice(NUM_IDS, 300, replace=False)
        other.apply([(keys, np.ones((300, 256), np.float32))], 1.0, step)
    blocks, size = spilled(other)._blocks, slots_per_block(4 + 256 * 4 + STATE_BYTES, 2)
    assert space.num_written > 20 * NUM_IDS
    assert blocks.num_blocks * size < 1.6 * NUM_IDS + 300 * size


def test_stores_share_memory_by_what_they_want(tmp_path: Path) -> None:
    space = space_for(tmp_path, 1000, store(None))
    one, other = store(space), store(space)
    one.apply([(np.arange(NUM_IDS), np.ones((NUM_IDS, 16), np.float32))], 1.0, 1)
    assert spilled(one)._frames.num_used == 1000
    other.apply([(np.arange(NUM_IDS), np.ones((NUM_IDS, 16), np.float32))], 1.0, 1)
    reference = one.pull(np.arange(10))  # gives memory back
    assert spilled(one)._frames.num_used == spilled(other)._frames.num_used == 500
    assert spilled(one)._frames.num_begun == 500, "frames behind these have no memory"
    same(all_rows(one), all_rows(other))
    assert np.array_equal(reference, other.pull(np.arange(10)))


def test_files_have_no_names_and_go_with_their_store(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    folder = tmp_path / "new" / "folder"
    other = store(space := space_for(folder, 100, store(None)))
    other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)
    assert space.nbytes > 0
    assert not os.listdir(folder)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del other
    gc.collect()
    assert space.nbytes == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_narrow_rows_stay_in_memory(tmp_path: Path) -> None:
    assert not isinstance(store(SpillSpace(tmp_path, 1000), dim=1)._values, SpilledValues)


@pytest.mark.parametrize(
    ("row", "arrays", "rows"), [(72, 2, 56), (1032, 2, 7), (2052, 2, 7), (9000, 1, 1), (70_000, 4, 1), (36, 4, 113)]
)
def test_blocks_fill_their_pages(row: int, arrays: int, rows: int) -> None:
    assert slots_per_block(row, arrays) == rows


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"spec\.parameterServer\.spill\.directory: .*/file cannot be written"):
        store(SpillSpace(tmp_path / "file", 1000))


def test_a_limit_that_is_used_up_is_named(tmp_path: Path) -> None:
    other = store(SpillSpace(tmp_path, 100_000, 10 * PAGE))
    with pytest.raises(UserError, match=r"spill\.maxBytes: the rows of this server need more than 0\.10 MB of memory"):
        other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    other = store(SpillSpace(tmp_path, 100_000))
    with pytest.raises(UserError, match="No space left on device: free disk there, name another one in"):
        other.apply([(np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32))], 1.0, 1)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        pytest.param(os.O_RDONLY, "Bad file descriptor", id="writing fails"),
        pytest.param(os.O_WRONLY, "Bad file descriptor", id="reading fails"),
        pytest.param(os.O_RDWR, "0 of 4096 bytes were moved", id="the file is cut off"),
    ],
)
def test_a_disk_that_fails_is_a_failure_outside(mode: int, reason: str, tmp_path: Path) -> None:
    other = store(space_for(tmp_path, 300, store(None)))
    keys, gradients = np.arange(NUM_IDS), np.zeros((NUM_IDS, 16), np.float32)
    other.apply([(keys, gradients)], 1.0, 1)
    device = os.open("/dev/null", mode)
    os.dup2(device, spilled(other)._file._descriptor)
    os.close(device)
    with pytest.raises(TransientError, match=f"spec.parameterServer.spill: {tmp_path}: {reason}"):
        other.apply([(keys, gradients)], 1.0, 2)
