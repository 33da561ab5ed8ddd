"""Checkpoints of a server that have only what changed since the one before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    FileEntry,
    StorageError,
    check_checkpoint,
    find_latest,
)
from heterps_runtime.checkpoint.survey import Health, count_rows, survey
from heterps_runtime.errors import TransientError
from heterps_runtime.ps import increments
from heterps_runtime.ps.increments import Saved, builds_on
from heterps_runtime.store import snapshot
from tests.heterps_runtime.helpers.servers import PATIENCE_SECONDS, Server, restored


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 64)


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
    assert server.shard.copy_rows()  # a piece; a fast writer could take all of them
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
        ([30, 30, 30], 11, 100, False),  # a restore would read more than twice the rows
        ([], 1, 0, False),
        ([0] * 49, 1, 100, True),
        ([0] * 50, 1, 100, False),  # a restore would open too many files
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


@pytest.mark.parametrize(("base", "expected"), [(60, True), (74, True), (76, False)])
def test_all_rows_are_written_again_when_many_of_the_first_file_are_gone(base: int, expected: bool) -> None:
    entry = FileEntry("rows-0", base, "crc32:00000000", "rows")
    assert builds_on(Saved("step", (entry,), {}, 0), 5, 40) is expected  # of a restore's bytes, half are rows
