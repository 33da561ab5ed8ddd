"""Writing beside training, failing without harm, and restoring into any number of shards."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.checkpoint import (
    Barrier,
    CheckpointWriter,
    DamagedError,
    FileEntry,
    Origin,
    StateFile,
    Storage,
    StorageError,
    find_latest,
    iterate_rows,
    read_dense,
    row_arrays,
)
from heterps_runtime.checkpoint.restore import iterate_keys
from heterps_runtime.storage import Chunk
from tests.heterps_runtime.helpers.checkpoint_samples import (
    Array,
    all_rows,
    collect,
    dense_state,
    make_manifest,
    on_shard,
    random_groups,
    write_checkpoint,
)

ORIGIN = Origin(20, 1)


class FullStorage(Storage):
    """A storage that runs full after some bytes."""

    def __init__(self, folder: Path, capacity: int) -> None:
        opened = Storage.open(folder)
        super().__init__(opened._filesystem, opened.address, opened.address)
        self.left = capacity

    def write_atomic(self, name: str, chunks: Chunk | Iterable[Chunk]) -> None:
        def limited() -> Iterable[Chunk]:
            for chunk in (chunks,) if isinstance(chunks, bytes | bytearray | memoryview) else chunks:
                self.left -= len(chunk)
                if self.left < 0:
                    raise StorageError("write", self.path(name), "the disk is full", 28)
                yield chunk

        super().write_atomic(name, limited())


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path)


@pytest.mark.parametrize("old_shards", [1, 2, 5])
@pytest.mark.parametrize("new_shards", [1, 2, 3, 7])
def test_rows_and_their_state_move_to_another_number_of_shards(
    storage: Storage, old_shards: int, new_shards: int
) -> None:
    manifest = write_checkpoint(storage, 20, old_shards)
    restored = collect(storage, manifest, new_shards)
    together = {key: value for shard in restored for key, value in shard.items()}
    assert sum(map(len, restored)) == len(together) == 3 * 90
    assert together == all_rows(random_groups(20))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    num_rows=st.integers(0, 120),
    old_shards=st.integers(1, 6),
    new_shards=st.integers(1, 6),
    block_rows=st.integers(1, 200),
)
def test_every_row_is_restored_by_exactly_one_shard(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    num_rows: int,
    old_shards: int,
    new_shards: int,
    block_rows: int,
) -> None:
    storage = Storage.open(tmp_path_factory.mktemp("partition"))
    groups = random_groups(seed, num_rows)
    manifest = write_checkpoint(storage, 1, old_shards, groups=groups)
    restored = collect(storage, manifest, new_shards, block_rows)
    for shard, rows in enumerate(restored):
        assert on_shard(np.array([*rows], dtype=np.int64), shard, new_shards).all()
    together = {key: value for shard in restored for key, value in shard.items()}
    assert sum(map(len, restored)) == len(together)
    assert together == all_rows(groups)


def test_keys_can_be_listed_without_the_rows(storage: Storage) -> None:
    manifest = write_checkpoint(storage, 20, shards=3)
    found = np.concatenate(list(iterate_keys(storage, manifest)))
    expected = np.concatenate([keys for keys, _, _ in random_groups(20).values()])
    assert sorted(found.tolist()) == sorted(expected.tolist())


def test_rows_can_be_read_without_the_optimizers_state(storage: Storage) -> None:
    manifest = write_checkpoint(storage, 20)
    assert all(block.state == {} for block in iterate_rows(storage, manifest, with_state=False))


def test_dense_parameters_come_with_their_state_and_may_be_changed(storage: Storage) -> None:
    manifest = write_checkpoint(storage, 20)
    expected = dense_state(20)
    everything = read_dense(storage, manifest)
    assert set(everything) == set(expected)
    for name, value in everything.items():
        np.testing.assert_array_equal(value, expected[name])
        value += 1
    assert set(read_dense(storage, manifest, ["top.weight"])) == {"top.weight", "top.weight::exp_avg"}
    assert read_dense(storage, manifest, role="buffers")["norm.num_batches_tracked"] == 20
    with pytest.raises(DamagedError, match="has no dense state of gone"):
        read_dense(storage, manifest, ["top.bias", "gone"])


def test_a_snapshot_is_written_in_the_background_and_then_released(storage: Storage, tmp_path: Path) -> None:
    reached, proceed = threading.Event(), threading.Event()

    class Slow(Storage):
        def write_atomic(self, name: str, chunks: Chunk | Iterable[Chunk]) -> None:
            reached.set()
            assert proceed.wait(30)
            super().write_atomic(name, chunks)

    writer = CheckpointWriter(Slow(storage._filesystem, storage.address, storage.address))
    groups = random_groups(1)
    alive = weakref.ref(groups[4][1])
    future = writer.write("step-000000001", [StateFile("rows-0.safetensors", row_arrays(groups), ORIGIN, "rows")])
    del groups
    assert reached.wait(30)
    assert writer.busy
    assert alive() is not None
    proceed.set()
    [entry] = future.result(timeout=30)
    writer.close()
    assert not writer.busy
    assert alive() is None
    assert (tmp_path / "step-000000001" / entry.name).stat().st_size == entry.bytes


def test_a_write_that_fails_removes_its_files_and_releases_the_snapshot(tmp_path: Path) -> None:
    good = write_checkpoint(Storage.open(tmp_path), 10)
    storage = FullStorage(tmp_path, capacity=30_000)
    writer = CheckpointWriter(storage)
    values: Array = np.zeros(5_000)
    alive = weakref.ref(values)
    files = [
        StateFile("dense-0.safetensors", {"dense/a": np.zeros(1_000)}, ORIGIN, "dense"),
        StateFile("rows-0.safetensors", {"group-1/keys": values}, ORIGIN, "rows"),
    ]
    future = writer.write("step-000000020", files)
    del values, files
    error = future.exception(timeout=30)
    assert isinstance(error, StorageError)
    assert error.errno == errno.ENOSPC
    assert "rows-0.safetensors: the disk is full" in str(error)
    writer.close()
    assert alive() is None
    assert storage.files("step-000000020") == []
    assert find_latest(storage)[0] == good


def test_training_can_checkpoint_again_once_there_is_space(tmp_path: Path) -> None:
    storage = FullStorage(tmp_path, capacity=100)
    writer = CheckpointWriter(storage)
    file = StateFile("dense-0.safetensors", {"dense/a": np.zeros(1_000)}, ORIGIN, "dense")
    assert isinstance(writer.write("step-000000010", [file]).exception(timeout=30), StorageError)
    storage.left = 1 << 20
    [entry] = writer.write("step-000000020", [file]).result(timeout=30)
    writer.close()
    assert entry.role == "dense"


def entry(name: str) -> FileEntry:
    return FileEntry(name, 10, "crc32:00000000", "rows")


def test_a_barrier_is_complete_when_all_have_reported() -> None:
    barrier = Barrier(ORIGIN, "step-000000020", ["ps-0", "ps-1"])
    assert barrier.report("ps-1", 20, [entry("b")])
    assert barrier.report("ps-1", 20, [entry("b")])
    assert not barrier.complete
    assert barrier.report("ps-0", 20, [entry("a"), entry("a2")])
    assert barrier.complete
    assert [e.name for e in barrier.entries] == ["a", "a2", "b"]


def test_a_barrier_ignores_reports_of_other_steps_and_strangers() -> None:
    barrier = Barrier(ORIGIN, "step-000000020", ["ps-0"])
    assert not barrier.report("ps-0", 19, [entry("a")])
    assert not barrier.report("ps-9", 20, [entry("a")])
    assert not barrier.complete


def test_a_dense_parameter_in_two_files_is_refused(storage: Storage) -> None:
    manifest = write_checkpoint(storage, 20, shards=1)
    dense = manifest.files_of("dense")
    twice = make_manifest(20, manifest.folder, (*manifest.files, *dense))
    with pytest.raises(DamagedError, match="is in more than one dense file"):
        read_dense(storage, twice)
