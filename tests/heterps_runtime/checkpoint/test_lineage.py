"""Which checkpoint is trusted, which is kept, and what is said about the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    DamagedError,
    Storage,
    StorageError,
    check_checkpoint,
    commit,
    explain_mismatch,
    find_latest,
    new_folder,
)
from heterps_runtime.checkpoint.manifest import retain, write_manifest
from tests.heterps_runtime.helpers.checkpoint_samples import FINGERPRINT, make_manifest, write_checkpoint, write_state


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path)


def test_a_folder_without_checkpoints_has_no_latest(storage: Storage) -> None:
    assert find_latest(storage) == (None, ())


def test_the_newest_checkpoint_comes_back_as_it_was_written(storage: Storage) -> None:
    write_checkpoint(storage, 20)
    written = write_checkpoint(storage, 100)
    assert find_latest(storage) == (written, ())
    assert written.folder == "step-000000100"
    assert [f.name for f in written.files_of("rows")] == ["rows-0.safetensors", "rows-1.safetensors"]


def test_a_checkpoint_that_was_never_finished_is_passed_over_aloud(storage: Storage) -> None:
    good = write_checkpoint(storage, 20)
    write_state(storage, new_folder(storage, 40), 40, shards=2)
    latest, skipped = find_latest(storage)
    assert latest == good
    [(folder, reason)] = skipped
    assert folder == "step-000000040"
    assert reason == "it is incomplete: manifest.json is missing"


@pytest.mark.parametrize("victim", ["rows-1.safetensors", "dense-0.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "remove"])
def test_a_damaged_checkpoint_is_passed_over_with_the_file_and_the_reason(
    storage: Storage, tmp_path: Path, victim: str, harm: str
) -> None:
    good = write_checkpoint(storage, 20)
    write_checkpoint(storage, 40)
    path = tmp_path / "step-000000040" / victim
    contents = bytearray(path.read_bytes())
    middle = len(contents) // 2
    if harm == "truncate":
        path.write_bytes(contents[:middle])
    elif harm == "flip":
        contents[middle] ^= 0x01
        path.write_bytes(contents)
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    latest, skipped = find_latest(storage)
    assert latest == good
    [(folder, reason)] = skipped
    assert folder == "step-000000040"
    assert victim in reason


def test_without_a_valid_checkpoint_all_reasons_are_given(storage: Storage, tmp_path: Path) -> None:
    for step in (20, 40):
        write_checkpoint(storage, step)
        (tmp_path / f"step-{step:09d}" / "dense-0.safetensors").unlink()
    latest, skipped = find_latest(storage)
    assert latest is None
    assert [folder for folder, _ in skipped] == ["step-000000040", "step-000000020"]


def test_a_storage_that_cannot_be_read_is_not_mistaken_for_damage(storage: Storage) -> None:
    write_checkpoint(storage, 20)

    class Unreachable(Storage):
        def read(self, name: str) -> bytes:
            raise StorageError("read", self.path(name), "connection refused")

    unreachable = Unreachable(storage._filesystem, storage.address, storage.address)
    with pytest.raises(StorageError, match="connection refused"):
        find_latest(unreachable)


def test_a_second_attempt_at_a_step_never_touches_the_first(storage: Storage) -> None:
    first = write_checkpoint(storage, 20)
    assert new_folder(storage, 20) == "step-000000020.1"
    write_state(storage, new_folder(storage, 20), 20, shards=3)
    assert find_latest(storage)[0] == first
    third = write_checkpoint(storage, 20)
    assert third.folder == "step-000000020.2"
    assert find_latest(storage)[0] == third


def test_steps_are_ordered_as_numbers(storage: Storage) -> None:
    write_checkpoint(storage, 999_999_999)
    newest = write_checkpoint(storage, 1_000_000_000)
    assert find_latest(storage)[0] == newest


def test_a_manifest_moved_to_another_folder_is_refused(storage: Storage, tmp_path: Path) -> None:
    write_checkpoint(storage, 20)
    (tmp_path / "step-000000020").rename(tmp_path / "step-000000030")
    with pytest.raises(DamagedError, match="belongs to step-000000020"):
        check_checkpoint(storage, "step-000000030")


def test_a_manifest_of_another_version_is_refused(storage: Storage) -> None:
    write_manifest(storage, dataclasses.replace(make_manifest(20, "step-000000020", ()), version=2))
    with pytest.raises(DamagedError, match="has version 2, this program reads version 1 only"):
        check_checkpoint(storage, "step-000000020")


def test_a_manifest_is_not_written_over_files_that_are_not_there(storage: Storage, tmp_path: Path) -> None:
    files = write_state(storage, "step-000000020", 20, shards=2)
    (tmp_path / "step-000000020" / "rows-1.safetensors").write_bytes(b"short")
    with pytest.raises(DamagedError, match=r"rows-1\.safetensors has 5 bytes"):
        commit(storage, make_manifest(20, "step-000000020", files), keep=1)
    assert find_latest(storage)[0] is None


def test_retention_keeps_the_newest_valid_ones_and_deletes_the_rest(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for step in (10, 20, 30):
        write_checkpoint(storage, step)
    write_state(storage, "step-000000025", 25, shards=1)
    write_checkpoint(storage, 40)
    (tmp_path / "step-000000030" / "rows-0.safetensors").unlink()
    newest = write_checkpoint(storage, 50)
    assert storage.folders() == [
        "notes", "step-000000010", "step-000000020", "step-000000025", "step-000000030", "step-000000040",
        "step-000000050",
    ]  # fmt: skip
    retain(storage, newest, keep=3)
    # 30 is damaged and 25 incomplete, so 20 is the third valid one.
    assert storage.folders() == ["notes", "step-000000020", "step-000000040", "step-000000050"]
    retain(storage, newest, keep=1)
    assert storage.folders() == ["notes", "step-000000050"]
    assert find_latest(storage) == (newest, ())


def test_retention_leaves_newer_folders_alone_and_clears_leftovers_of_its_own(storage: Storage, tmp_path: Path) -> None:
    newest = write_checkpoint(storage, 20)
    leftover = tmp_path / "step-000000020" / ".rows-0.safetensors.partial-1-2"
    leftover.write_bytes(b"killed")
    write_state(storage, "step-000000030", 30, shards=1)
    retain(storage, newest, keep=1)
    assert not leftover.exists()
    assert find_latest(storage)[0] == newest
    assert storage.exists("step-000000030")


def test_retention_of_nothing_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.keep: must be >= 1, is 0"):
        retain(storage, write_checkpoint(storage, 20), keep=0)


def test_a_manifest_survives_the_way_through_json() -> None:
    manifest = make_manifest(20, "step-000000020", ())
    again = CheckpointManifest.from_json(manifest.to_json())
    assert again == manifest
    # The checksum is over the meaning, not over the spelling.
    document = json.dumps(json.loads(manifest.to_json()), sort_keys=True).encode()
    assert CheckpointManifest.from_json(document) == manifest


def test_equal_fingerprints_have_nothing_to_explain() -> None:
    assert explain_mismatch(FINGERPRINT, json.loads(json.dumps(FINGERPRINT))) == []
    assert explain_mismatch({"columns": ("a", "b")}, {"columns": ["a", "b"]}) == []


def test_every_difference_is_named_with_both_values() -> None:
    job = {
        **FINGERPRINT,
        "training.seed": 8,
        "model.arguments": {"width": 16},
        "columns": ["a"],
    }
    del job["training.precision"]
    assert explain_mismatch(FINGERPRINT, job) == [
        'columns: the checkpoint has nothing, the job has ["a"]',
        "model.arguments.width: the checkpoint has 8, the job has 16",
        'training.precision: the checkpoint has "fp32", the job has nothing',
        "training.seed: the checkpoint has 7, the job has 8",
    ]


def test_numbers_and_texts_that_look_alike_differ() -> None:
    assert explain_mismatch({"rate": "1"}, {"rate": 1}) == ['rate: the checkpoint has "1", the job has 1']
    assert explain_mismatch({"rate": None}, {}) == ["rate: the checkpoint has null, the job has nothing"]
