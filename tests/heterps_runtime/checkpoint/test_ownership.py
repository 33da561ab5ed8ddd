"""An older run of a job, whose processes still reach the storage, spoils nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    FencedError,
    Ownership,
    Storage,
    commit,
    export_model,
    find_latest,
    new_folder,
    take_over,
)
from heterps_runtime.checkpoint.publishing import publication
from heterps_runtime.checkpoint.retention import retain
from heterps_runtime.storage import Chunk
from tests.heterps_runtime.helpers.checkpoint_samples import Array, make_manifest, write_checkpoint, write_state


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage.open(tmp_path / "jobs")
    return Storage(pafs._MockFileSystem(), "jobs", "mock://jobs")


def finished(storage: Storage, step: int, owner: Ownership) -> CheckpointManifest:
    """A checkpoint whose files are written, and that lacks its manifest."""
    folder = new_folder(step, owner.term)
    return make_manifest(step, folder, write_state(storage, folder, step, shards=1), owner.term)


def test_each_run_takes_over_with_a_greater_term_and_fences_those_before(storage: Storage) -> None:
    runs = [take_over(storage, f"shop/job-{i}", 100.0 + i) for i in range(3)]
    assert [run.term for run in runs] == [1, 2, 3]
    runs[2].check()
    for run in runs[:2]:
        with pytest.raises(FencedError, match=r"another run of job shop/job-2 \(term 3\) has taken over .*jobs"):
            run.check()
    [record] = storage.files("owners")
    assert json.loads(storage.read(record)) == {"version": 1, "term": 3, "job": "shop/job-2", "since": 102.0}


def test_a_fenced_run_commits_no_checkpoint(storage: Storage) -> None:
    older = take_over(storage, "job", 0.0)
    good = write_checkpoint(storage, 10)
    late = finished(storage, 20, older)
    take_over(storage, "job", 1.0)
    with pytest.raises(FencedError):
        commit(storage, late, 1, older)
    assert find_latest(storage)[0] == good


def test_a_fenced_run_deletes_no_checkpoint(storage: Storage) -> None:
    older = take_over(storage, "job", 0.0)
    folders = [write_checkpoint(storage, step).folder for step in (10, 20)]
    newest = write_checkpoint(storage, 30)
    take_over(storage, "job", 1.0)
    with pytest.raises(FencedError):
        retain(storage, newest, 1, older)
    assert storage.folders() == ["owners", *folders, newest.folder]


def test_a_run_that_is_fenced_while_it_deletes_stops_there(storage: Storage) -> None:
    owner = take_over(storage, "job", 0.0)
    folders = [write_checkpoint(storage, step).folder for step in (10, 20, 30)]
    newest = write_checkpoint(storage, 40)
    delete = storage.delete_dir

    def delete_once(name: str) -> None:
        delete(name)
        take_over(storage, "job", 1.0)

    storage.delete_dir = delete_once  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        retain(storage, newest, 1, owner)
    assert storage.folders() == ["owners", *folders[:2], newest.folder]


def initial_rows(table: Any, ids: Array) -> Array:
    return (ids[:, None] + [0.0] * table.dim).astype(table.dtype)


@pytest.mark.parametrize("moment", ["before", "while it is built"])
def test_a_fenced_run_replaces_no_model(storage: Storage, tmp_path: Path, moment: str) -> None:
    older = take_over(storage, "job", 0.0)
    manifest = write_checkpoint(storage, 20)
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.json").write_text("of the younger run")

    def draw(table: Any, ids: Array) -> Array:
        if moment == "while it is built":
            take_over(storage, "job", 1.0)
        return initial_rows(table, ids)

    if moment == "before":
        take_over(storage, "job", 1.0)
    with pytest.raises(FencedError):
        export_model(storage, manifest, model, owner=older, initial_rows=draw)
    assert [path.name for path in model.iterdir()] == ["model.json"]
    assert (model / "model.json").read_text() == "of the younger run"


@pytest.mark.parametrize(
    ("granted", "left"),
    [
        (0, {"a": b"old", "model.json": b"old"}),
        (1, {"a": b"old"}),
        (2, {"a": b"new"}),
        (3, {"a": b"new", "b": b"new"}),
    ],
)
def test_a_run_that_is_fenced_while_it_uploads_a_model_stops_there(granted: int, left: dict[str, bytes]) -> None:
    target = Storage(pafs._MockFileSystem(), "model", "mock://model")
    for name in ("a", "model.json"):
        target.write_atomic(name, b"old")
    checks = iter([None] * granted)

    def check() -> None:
        if next(checks, FencedError) is FencedError:
            raise FencedError("another run has taken over")

    def publish() -> None:
        with publication(target, "model.json", check) as folder:
            for name in ("a", "b", "model.json"):
                (folder / name).write_bytes(b"new")

    with pytest.raises(FencedError):
        publish()
    assert {name: target.read(name) for name in target.files()} == left


def test_what_the_youngest_run_has_written_is_the_newest_although_an_older_one_had_come_further(
    storage: Storage,
) -> None:
    older = take_over(storage, "job", 0.0)
    write_checkpoint(storage, 10)
    # It looks at the record, is stopped for a while, and writes its manifest after it has been fenced.
    late = finished(storage, 30, older)
    younger = take_over(storage, "job", 1.0)
    storage.write_atomic(f"{late.folder}/manifest.json", late.to_json())
    assert find_latest(storage)[0] == late, "it is whole, and better than nothing"
    own = finished(storage, 20, younger)
    commit(storage, own, 1, younger)
    assert find_latest(storage) == (own, ())
    assert storage.folders() == ["owners", own.folder]


def test_a_run_whose_record_was_removed_changes_nothing(storage: Storage) -> None:
    owner = take_over(storage, "job", 0.0)
    storage.delete_dir("owners")
    with pytest.raises(FencedError, match=r"owners/000000001-[0-9a-f]{8}\.json of this run was removed"):
        owner.check()


def racing(storage: Storage, moment: Callable[[int], bool], rival: Callable[[], None]) -> None:
    """Let a rival act right before a write of the storage, by the number of the write."""
    write, writes = storage.write_atomic, [0]

    def write_after_the_rival(name: str, chunks: Chunk | Iterable[Chunk]) -> None:
        writes[0] += 1
        if moment(writes[0]):
            storage.write_atomic = write  # type: ignore[method-assign]
            rival()
            storage.write_atomic = write_after_the_rival  # type: ignore[method-assign]
        write(name, chunks)

    storage.write_atomic = write_after_the_rival  # type: ignore[method-assign]


def test_of_two_runs_that_take_over_at_the_same_moment_one_is_fenced(storage: Storage) -> None:
    rivals: list[Ownership] = []
    racing(storage, lambda write: write == 1, lambda: rivals.append(take_over(storage, "rival", 0.0)))
    mine = take_over(storage, "job", 0.0)
    [rival] = rivals
    assert (mine.term, mine.identity) != (rival.term, rival.identity)
    fenced = []
    for run in (mine, rival):
        try:
            run.check()
        except FencedError:
            fenced.append(run)
    assert len(fenced) == 1


def test_records_of_other_kinds_are_not_taken_for_claims(storage: Storage) -> None:
    owner = take_over(storage, "job", 0.0)
    storage.write_atomic("owners/notes.txt", b"by hand")
    storage.write_atomic("owners/.000000009-00000000.json.partial-1-2", b"")
    owner.check()
    assert take_over(storage, "job", 0.0).term == 2
