"""A server restores its own rows: it reads the files that have some of them, whatever the number of servers was."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.checkpoint import CheckpointManifest, FileEntry, Storage, count_rows, read_manifest, verify_file
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import overlapping_servers, slot_map
from heterps_runtime.store.keys import NUM_SLOTS
from heterps_runtime.store.rows import RowStore
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, ThreadedJob, configuration, run_job
from tests.heterps_runtime.helpers.store_reference import all_rows


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Storage, CheckpointManifest, dict[str, Any]]:
    """A checkpoint of three servers, and the rows in it by key."""
    document = configuration(tmp_path_factory.mktemp("restore") / "work", "flights", steps=20)
    run_job(document, [("cpu", 10, 1)], 3)
    config = RunConfig.from_json(document)
    storage = Storage.open(config.checkpoint_path)
    manifest = read_manifest(storage, storage.folders()[-1])
    shard = restored(config, storage, manifest, 0, 1)
    chunk = all_rows(shard.stores[4])
    return config, storage, manifest, dict(zip(chunk.keys.tolist(), chunk.rows, strict=True))


def restored(config: RunConfig, storage: Storage, manifest: CheckpointManifest, index: int, servers: int) -> Shard:
    shard = Shard(config, index)
    shard.begin_generation(servers)
    shard.reset(storage, manifest)
    tables = [Table(t.index, t.name, t.num_embeddings, t.dim, t.padding_idx) for t in manifest.tables]
    shard.define(tables, {}, {})
    return shard


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6, 7])
def test_all_rows_come_back_on_any_number_of_servers(servers: int, written: Any) -> None:
    config, storage, manifest, expected = written
    found: dict[int, Any] = {}
    for index in range(servers):
        chunk = all_rows(restored(config, storage, manifest, index, servers).stores[4])
        assert not found.keys() & set(chunk.keys.tolist())
        found.update(zip(chunk.keys.tolist(), chunk.rows, strict=True))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("servers", "files"),
    [(1, [{0, 1, 2}]), (3, [{0}, {1}, {2}]), (2, [{0, 1}, {1, 2}]), (6, [{0}, {0}, {1}, {1}, {2}, {2}])],
)
def test_a_server_reads_the_files_that_have_its_slots(servers: int, files: list[set[int]], written: Any) -> None:
    config, _, manifest, _ = written
    for index, expected in enumerate(files):
        shard = Shard(config, index)
        shard.begin_generation(servers)
        read: list[FileEntry] = shard.files_to_verify(manifest)
        assert {entry.index for entry in read if entry.role == "rows"} == expected
        assert {entry for entry in manifest.files if entry.role == "buffers"} <= set(read)


@pytest.mark.parametrize(("servers", "margin"), [(1, 1), (3, 1), (2, 1.3), (7, 1.6)])
def test_a_server_makes_room_for_its_rows_at_once(
    servers: int, margin: float, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number of servers that wrote them exactly, otherwise by its share of the slots of each file."""
    config, storage, manifest, _ = written
    asked: list[int] = []
    reserve = RowStore.reserve

    def noted(store: RowStore, num_rows: int) -> None:
        asked.append(num_rows)
        reserve(store, num_rows)

    monkeypatch.setattr(RowStore, "reserve", noted)
    for index in range(servers):
        shard = restored(config, storage, manifest, index, servers)
        room = asked.pop() / 1.02
        assert not asked
        assert shard.num_rows / margin - 1 <= room <= shard.num_rows * margin + 1


def test_rows_of_increments_are_counted_once(written: Any) -> None:
    _, storage, manifest, _ = written
    entry = manifest.files_of("rows")[0]
    [(dim, count)] = count_rows(storage, manifest, entry).items()
    assert (dim, count) == (4, entry.added)
    assert count_rows(storage, manifest, replace(entry, added=count - 7)) == {4: count - 7}
    assert count_rows(storage, manifest, replace(entry, added=None)) == {4: count}


def test_files_that_are_not_those_of_servers_are_all_read(written: Any) -> None:
    config, storage, manifest, expected = written
    odd = replace(manifest, files=tuple(replace(e, index=e.index + (e.role == "rows")) for e in manifest.files))
    shards = [restored(config, storage, odd, index, 3) for index in range(3)]
    assert all({e for e in odd.files if e.role != "dense"} == set(shard.files_to_verify(odd)) for shard in shards)
    assert sum(shard.num_rows for shard in shards) == len(expected)


def test_a_restore_shows_how_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = configuration(tmp_path / "work", "flights", steps=20)
    job = ThreadedJob(document)
    job.start([("cpu", 10, 1)], 1, hold_at=10)
    job.credentials.request("POST", PATH_STOP)
    job.wait()
    job.close()
    verified, loaded = threading.Event(), threading.Event()
    define = Shard.define

    def slow_verify(*arguments: Any) -> None:
        assert verified.wait(PATIENCE_SECONDS)
        verify_file(*arguments)

    def slow_define(shard: Shard, *arguments: Any) -> None:
        assert loaded.wait(PATIENCE_SECONDS)
        define(shard, *arguments)

    def says(status: dict[str, Any], words: str) -> bool:
        return any(re.fullmatch(words, member["message"]) for member in status["members"])

    monkeypatch.setattr("heterps_runtime.ps.server.verify_file", slow_verify)
    monkeypatch.setattr(Shard, "define", slow_define)
    job = ThreadedJob(document)
    job.start([("cpu", 10, 1)], 1)
    job.wait(lambda status: says(status, r"verifying step-\d+\.1-\w+: 0\.0 of 0\.0 GB"))
    verified.set()
    job.wait(lambda status: says(status, r"loading rows: 0\.0 of 0\.0 GB"))
    loaded.set()
    assert job.wait()["phase"] == JobPhase.SUCCEEDED
    job.close()


def test_every_slot_is_in_a_file_that_its_server_reads() -> None:
    for before in (1, 2, 3, 5, 64, 1000):
        for after in (1, 2, 3, 7, 63, 128, 1024):
            old, new = slot_map(before), slot_map(after)
            for slot in range(0, NUM_SLOTS, 37):
                assert old[slot] in overlapping_servers(int(new[slot]), after, before)
