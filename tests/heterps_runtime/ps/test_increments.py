"""Checkpoints of a server that have only what changed since the one before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    CheckpointWriter,
    FileEntry,
    Origin,
    Ownership,
    Storage,
    StorageError,
    TableRecord,
    check_checkpoint,
    commit,
    find_latest,
    new_folder,
    take_over,
)
from heterps_runtime.checkpoint.survey import Health, count_rows, survey
from heterps_runtime.config import RunConfig
from heterps_runtime.errors import TransientError
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps import increments
from heterps_runtime.ps.increments import Saved, builds_on
from heterps_runtime.ps.shard import Gradients, Shard
from heterps_runtime.store import snapshot
from heterps_runtime.wire.messages import DensePiece
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.jobs import configuration
from tests.heterps_runtime.helpers.store_reference import all_rows

PATIENCE_SECONDS = 60
TABLES = [Table(0, "small", 1 << 20, 3, None), Table(1, "large", 1 << 20, 8, None)]
Rows = dict[int, list[list[float]]]


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 64)


class Server:
    """A server that trains and writes checkpoints, as a job with one server does.

    Attributes:
        newest: the newest valid checkpoint, as the coordinator knows it.
        lineage: as in a generation.
    """

    def __init__(self, folder: Path, servers: int = 1, index: int = 0) -> None:
        self.config = RunConfig.from_json(configuration(folder / "work"))
        self.storage = Storage.open(folder / "checkpoints")
        self.owner: Ownership = take_over(self.storage, "job", 0.0)
        self.writer = CheckpointWriter(self.storage)
        self.woken = threading.Event()
        self.shard = Shard(self.config, index)
        self.newest: CheckpointManifest | None = None
        self.lineage = 1
        self.servers = servers
        self.restore(None)

    def restore(self, manifest: CheckpointManifest | None) -> None:
        self.shard.begin_generation(self.servers)
        self.shard.reset(self.storage, manifest)
        self.shard.define(TABLES, {"weight": DensePiece(0, (4,), np.zeros(4))}, {})
        self.newest = manifest

    def train(self, small: Any, large: Any = ()) -> None:
        step = self.shard.committed
        chunks = []
        for dim, table, ids in ((3, 0, small), (8, 1, large)):
            keys = make_keys(table, np.asarray(ids, np.int64))
            chunks.append((dim, keys, np.random.default_rng(step).normal(size=(len(keys), dim))))
        self.shard.push(step, "worker-0-0", Gradients(tuple(chunks), {"weight": np.ones(4)}, {}))
        self.shard.commit_dense(step, 1)
        self.shard.commit_rows(step, 1)

    def write(self, *, valid: bool = True, during: Any = lambda: None) -> CheckpointManifest:
        """Write a checkpoint; it becomes valid, or the coordinator never hears of it."""
        folder, origin = new_folder(self.shard.committed, self.owner.term), Origin(self.shard.committed, self.lineage)
        newest = self.newest.folder if self.newest else None
        part = self.shard.snapshot(self.lineage, folder, newest, self.woken.set)
        during()
        written = self.writer.write(folder, part.files)
        written.add_done_callback(lambda _: self.woken.set())
        while not written.done():
            if not self.shard.copy_rows():
                assert self.woken.wait(PATIENCE_SECONDS)
                self.woken.clear()
        part.over(written.result())
        records = tuple(TableRecord(t.index, t.name, t.num_embeddings, t.dim, {}, "float64") for t in TABLES)
        manifest = CheckpointManifest(
            step=origin.step, epoch=0, seed=0, global_batch_size=1, num_rows=1, samples=1, fingerprint={}, plan={},
            tables=records, files=(*part.earlier, *written.result()), term=self.owner.term, lineage=origin.lineage,
            folder=folder,
        )  # fmt: skip
        if valid:
            commit(self.storage, manifest, 2, self.owner)
            self.newest = manifest
        return manifest

    def rows(self) -> Rows:
        return rows_of(self.shard)


def rows_of(shard: Shard) -> Rows:
    found: Rows = {}
    for store in shard.stores.values():
        chunk = all_rows(store)
        for i, key in enumerate(chunk.keys.tolist()):
            found[key] = [chunk.rows[i].tolist(), *(state[i].tolist() for state in chunk.state.values())]
    return found


def restored(server: Server, manifest: CheckpointManifest, servers: int = 1) -> Rows:
    """The rows that some servers restore."""
    found: Rows = {}
    for index in range(servers):
        shard = Shard(server.config, index)
        shard.begin_generation(servers)
        shard.reset(server.storage, manifest)
        shard.define(TABLES, {}, {})
        mine = rows_of(shard)
        assert not mine.keys() & found.keys()
        found |= mine
    return found


def row_files(manifest: CheckpointManifest) -> list[str]:
    """The steps of the checkpoints that wrote the rows, oldest first."""
    return [str((entry.origin or manifest.origin).step) for entry in manifest.files_of("rows")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.train(range(1000), range(500))
    yield server
    server.writer.close()


def test_a_checkpoint_has_the_changed_rows_and_refers_to_those_before(server: Server) -> None:
    first = server.write()
    server.train(range(990, 1010))
    second = server.write()
    server.train([5], [600, 601])
    expected = server.rows()
    third = server.write()
    assert [row_files(m) for m in (first, second, third)] == [["1"], ["1", "2"], ["1", "2", "3"]]
    assert [entry.added for entry in third.files_of("rows")] == [1500, 10, 2]
    assert count_rows(server.storage, third) == len(expected) == 1512
    for servers in (1, 3):
        assert restored(server, third, servers) == expected
    assert sum(entry.bytes for entry in third.files_of("rows")[1:]) < 0.1 * third.files_of("rows")[0].bytes


def test_steps_during_the_write_do_not_get_into_the_checkpoint(server: Server) -> None:
    server.write()
    server.train(range(100, 300), range(100))
    expected = server.rows()
    manifest = server.write(during=lambda: server.train(range(1200), range(700)))
    assert row_files(manifest) == ["1", "2"]
    assert restored(server, manifest) == expected
    later = server.rows()
    assert restored(server, server.write()) == later


def test_a_checkpoint_that_never_became_valid_is_not_built_on(server: Server) -> None:
    server.write()
    server.train([1, 2])
    server.write(valid=False)
    server.train([3])
    expected = server.rows()
    manifest = server.write()
    assert row_files(manifest) == ["1", "3"]
    assert manifest.files_of("rows")[1].added == 0
    assert restored(server, manifest) == expected


def test_nothing_that_changed_takes_no_file_of_rows(server: Server) -> None:
    server.write()
    server.train([], [])
    expected = server.rows()
    manifest = server.write()
    assert row_files(manifest) == ["1"]
    assert {entry.role for entry in manifest.files if not entry.folder} == {"dense"}
    assert restored(server, manifest) == expected


def test_a_server_that_restored_a_checkpoint_builds_on_it(server: Server) -> None:
    server.write()
    server.train([1, 2])
    second = server.write()
    server.train(range(50))  # lost
    server.restore(second)
    server.lineage += 1
    server.train([3], [4])
    expected = server.rows()
    third = server.write()
    assert row_files(third) == ["1", "2", "3"]
    assert restored(server, third) == expected
    check_checkpoint(server.storage, third.folder)


@pytest.mark.parametrize("servers", [2, 3])
def test_another_number_of_servers_writes_all_rows_again(server: Server, servers: int) -> None:
    server.write()
    server.train([1, 2])
    second = server.write()
    server.servers = servers
    server.restore(second)
    server.train([1])
    assert row_files(server.write()) == ["3"]


def test_a_checkpoint_that_the_server_does_not_know_any_more_is_not_built_on(server: Server) -> None:
    first = server.write()
    for _ in range(2):
        server.train([1, 2])
        server.write()
    server.newest = first
    server.train([3])
    expected = server.rows()
    manifest = server.write()
    assert row_files(manifest) == ["4"]
    assert restored(server, manifest) == expected


def test_a_checkpoint_that_fails_holds_no_copies(server: Server, tmp_path: Path) -> None:
    [small, _] = server.shard.stores.values()
    without = small.nbytes
    folder = "step-000000001.1-00000000"
    (tmp_path / "checkpoints" / folder).write_text("a file where a folder should be")
    part = server.shard.snapshot(1, folder, None, server.woken.set)
    server.train(range(1000))  # its rows are copied before their turn
    assert small.nbytes > without
    assert isinstance(server.writer.write(folder, part.files).exception(PATIENCE_SECONDS), StorageError)
    part.over(None)
    assert small.nbytes == without
    expected = server.rows()
    assert restored(server, server.write()) == expected


def test_old_checkpoints_go_but_for_what_newer_ones_need(server: Server) -> None:
    manifests = [server.write()]
    for _ in range(3):
        server.train([1, 2])
        manifests.append(server.write())
    found = {one.folder: one for one in survey(server.storage)}
    assert [found[m.folder].health for m in manifests] == [Health.NEEDED, Health.NEEDED, Health.VALID, Health.VALID]
    assert server.storage.files(manifests[0].folder) == [f"{manifests[0].folder}/rows-0.safetensors"]
    assert found[manifests[3].folder].bytes > found[manifests[3].folder].stored
    server.train(range(1000), range(500))  # all rows are written again
    server.write()
    server.train([1])
    server.write()
    folders = server.storage.folders()
    assert not any(manifest.folder in folders for manifest in manifests)
    assert [one.health for one in survey(server.storage, contents=True)] == [Health.VALID, Health.VALID]


def test_a_lost_file_of_an_earlier_checkpoint_damages_those_that_need_it(server: Server, tmp_path: Path) -> None:
    first = server.write()
    server.train(range(1000), range(500))
    whole = server.write()
    server.train([1])
    increment = server.write()
    assert row_files(increment) == ["2", "3"]
    lost = tmp_path / "checkpoints" / whole.folder / "rows-0.safetensors"
    lost.unlink()
    manifest, skipped = find_latest(server.storage)
    assert manifest is None or manifest.folder == first.folder
    assert next(reason for _, reason in skipped) == "rows-0.safetensors is missing"
    server.train([2])
    with pytest.raises(Exception, match=f"{whole.folder}/rows-0.safetensors is missing"):
        server.write()


def test_a_write_ends_with_an_error_if_the_state_is_another_one(server: Server) -> None:
    part = server.shard.snapshot(1, "step-000000001.1-00000000", None, server.woken.set)
    written = server.writer.write("step-000000001.1-00000000", part.files)
    while server.shard.copy_rows():
        pass
    server.restore(None)
    with pytest.raises(TransientError, match="went back to an earlier checkpoint"):
        written.result(PATIENCE_SECONDS)
    assert server.storage.files("step-000000001.1-00000000") == []
    server.train([1])
    assert row_files(server.write()) == ["1"]


@pytest.mark.parametrize(
    ("increment_bytes", "changed", "total", "expected"),
    [
        ([], 10, 100, True),
        ([], 60, 100, False),  # half of the rows: the whole takes hardly more
        ([30, 30, 30], 10, 100, True),
        ([30, 30, 30], 11, 100, False),  # whoever restores would read more than twice the rows
        ([], 1, 0, False),
        ([0] * 49, 1, 100, True),
        ([0] * 50, 1, 100, False),  # whoever restores would open too many files
    ],
)
def test_all_rows_are_written_again_when_increments_add_up(
    increment_bytes: list[int], changed: int, total: int, expected: bool
) -> None:
    entries = tuple(
        FileEntry(f"rows-{i}", size, "crc32:00000000", "rows") for i, size in enumerate([total, *increment_bytes])
    )
    assert builds_on(Saved("step", entries, {}, 0), changed, total) is expected


def test_few_rows_are_always_written_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "SMALLEST_BYTES", 100)
    entry = FileEntry("rows-0", 99, "crc32:00000000", "rows")
    assert [builds_on(Saved("step", (entry,), {}, 0), 1, total) for total in (99, 100)] == [False, True]
