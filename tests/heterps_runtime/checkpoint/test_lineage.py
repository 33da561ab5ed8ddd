"""Which checkpoint is trusted, which is kept, and what is said about the others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    DamagedError,
    Origin,
    Storage,
    StorageError,
    check_checkpoint,
    commit,
    explain_mismatch,
    find_latest,
    new_folder,
    read_manifest,
    verify_file,
)
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.checkpoint.retention import retain
from heterps_runtime.versions import UnsupportedVersionError
from tests.heterps_runtime.helpers.checkpoint_samples import (
    FINGERPRINT,
    make_manifest,
    owner_of,
    write_checkpoint,
    write_state,
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path)


def test_a_folder_without_checkpoints_has_no_latest(storage: Storage) -> None:
    assert find_latest(storage) == (None, ())


def test_the_newest_checkpoint_comes_back_as_it_was_written(storage: Storage) -> None:
    write_checkpoint(storage, 20)
    written = write_checkpoint(storage, 100)
    assert find_latest(storage) == (written, ())
    assert re.fullmatch(r"step-000000100\.1-[0-9a-f]{8}", written.folder)
    assert [f.name for f in written.files_of("rows")] == ["rows-0.safetensors", "rows-1.safetensors"]


def test_a_checkpoint_that_was_never_finished_is_passed_over_aloud(storage: Storage) -> None:
    good = write_checkpoint(storage, 20)
    unfinished = new_folder(40, 1)
    write_state(storage, unfinished, 40, shards=2)
    latest, skipped = find_latest(storage)
    assert latest == good
    [(folder, reason)] = skipped
    assert folder == unfinished
    assert reason == "it is incomplete: manifest.json is missing"


@pytest.mark.parametrize("victim", ["rows-1.safetensors", "dense-0.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "remove"])
def test_a_damaged_checkpoint_is_passed_over_with_the_file_and_the_reason(
    storage: Storage, tmp_path: Path, victim: str, harm: str
) -> None:
    good = write_checkpoint(storage, 20)
    newest = write_checkpoint(storage, 40)
    path = tmp_path / newest.folder / victim
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
    assert folder == newest.folder
    assert victim in reason


def test_without_a_valid_checkpoint_all_reasons_are_given(storage: Storage, tmp_path: Path) -> None:
    folders = [write_checkpoint(storage, step).folder for step in (20, 40)]
    for folder in folders:
        (tmp_path / folder / "dense-0.safetensors").unlink()
    latest, skipped = find_latest(storage)
    assert latest is None
    assert [folder for folder, _ in skipped] == folders[::-1]


def test_a_storage_that_cannot_be_read_is_not_mistaken_for_damage(storage: Storage) -> None:
    write_checkpoint(storage, 20)

    class Unreachable(Storage):
        def read(self, name: str) -> bytes:
            raise StorageError("read", self.path(name), "connection refused")

    unreachable = Unreachable(storage._filesystem, storage.address, storage.address)
    with pytest.raises(StorageError, match="connection refused"):
        find_latest(unreachable)


def test_a_second_attempt_at_a_step_never_touches_the_first(storage: Storage) -> None:
    assert len({new_folder(20, 1) for _ in range(100)}) == 100
    first = write_checkpoint(storage, 20)
    write_state(storage, new_folder(20, 1), 20, shards=3)
    assert find_latest(storage)[0] == first


def test_steps_are_ordered_as_numbers(storage: Storage) -> None:
    write_checkpoint(storage, 999_999_999)
    newest = write_checkpoint(storage, 1_000_000_000)
    assert find_latest(storage)[0] == newest


def test_a_manifest_moved_to_another_folder_is_refused(storage: Storage, tmp_path: Path) -> None:
    written = write_checkpoint(storage, 20)
    other = new_folder(30, 1)
    (tmp_path / written.folder).rename(tmp_path / other)
    with pytest.raises(DamagedError, match=f"belongs to {written.folder}"):
        check_checkpoint(storage, other)


def test_a_checkpoint_of_a_newer_release_is_neither_read_nor_passed_over_nor_deleted(storage: Storage) -> None:
    older = write_checkpoint(storage, 10)  # the newer one may need its files
    folder = new_folder(20, 1)
    document = json.loads(make_manifest(20, folder, ()).to_json())
    document["manifest"]["version"] = 4
    storage.write_atomic(f"{folder}/manifest.json", json.dumps(document).encode())
    text = f"the checkpoint {folder} has version 4, but this program reads versions up to 3; use the HeterPS release"
    with pytest.raises(UnsupportedVersionError, match=text):
        find_latest(storage)
    newest = write_checkpoint(storage, 30, keep=2)
    assert storage.folders() == ["owners", older.folder, folder, newest.folder]


def test_a_shard_of_another_step_never_gets_into_a_checkpoint(storage: Storage) -> None:
    folder = new_folder(20, 1)
    files = write_state(storage, folder, 20, shards=2)
    late = write_tensors(storage, folder, "rows-2.safetensors", {}, origin=Origin(21, 1), role="rows", index=2)
    manifest = make_manifest(20, folder, (*files, late))
    with pytest.raises(DamagedError, match=r"rows-2\.safetensors has the state of step 21, lineage 1"):
        commit(storage, manifest, 1, owner_of(storage))
    assert not storage.exists(f"{folder}/manifest.json")


def test_a_reader_of_some_files_verifies_only_those(storage: Storage, tmp_path: Path) -> None:
    written = write_checkpoint(storage, 20)
    rows = tmp_path / written.folder / "rows-0.safetensors"
    contents = bytearray(rows.read_bytes())
    contents[-1] ^= 1
    rows.write_bytes(contents)
    manifest = read_manifest(storage, written.folder)
    assert manifest == written
    for entry in manifest.files:
        if entry.name != "rows-0.safetensors":
            verify_file(storage, manifest.folder, entry, manifest.origin)
    with pytest.raises(DamagedError, match="was changed after it was written"):
        verify_file(storage, manifest.folder, manifest.files_of("rows")[0], manifest.origin)


def test_a_manifest_is_not_written_over_files_that_are_not_there(storage: Storage, tmp_path: Path) -> None:
    folder = new_folder(20, 1)
    files = write_state(storage, folder, 20, shards=2)
    (tmp_path / folder / "rows-1.safetensors").write_bytes(b"short")
    with pytest.raises(DamagedError, match=r"rows-1\.safetensors has 5 bytes"):
        commit(storage, make_manifest(20, folder, files), 1, owner_of(storage))
    assert find_latest(storage)[0] is None


def test_retention_keeps_the_newest_valid_ones_and_deletes_the_rest(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    folders = {step: write_checkpoint(storage, step).folder for step in (10, 20, 30)}
    folders[25] = new_folder(25, 1)
    write_state(storage, folders[25], 25, shards=1)
    folders[40] = write_checkpoint(storage, 40).folder
    (tmp_path / folders[30] / "rows-0.safetensors").unlink()
    newest = write_checkpoint(storage, 50)
    folders[50] = newest.folder
    assert storage.folders() == ["notes", "owners", *(folders[step] for step in sorted(folders))]
    retain(storage, newest, 3, owner_of(storage))
    # 30 is damaged and 25 incomplete, so 20 is the third valid one.
    assert storage.folders() == ["notes", "owners", folders[20], folders[40], folders[50]]
    retain(storage, newest, 1, owner_of(storage))
    assert storage.folders() == ["notes", "owners", folders[50]]
    assert find_latest(storage) == (newest, ())


def test_retention_leaves_newer_folders_alone_and_clears_leftovers_of_its_own(storage: Storage, tmp_path: Path) -> None:
    newest = write_checkpoint(storage, 20)
    leftover = tmp_path / newest.folder / ".rows-0.safetensors.partial-1-2"
    leftover.write_bytes(b"killed")
    unfinished = new_folder(30, 1)
    write_state(storage, unfinished, 30, shards=1)
    retain(storage, newest, 1, owner_of(storage))
    assert not leftover.exists()
    assert find_latest(storage)[0] == newest
    assert storage.exists(unfinished)


def test_retention_of_nothing_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.keep: must be >= 1, is 0"):
        retain(storage, write_checkpoint(storage, 20), 0, owner_of(storage))


def test_a_manifest_survives_the_way_through_json() -> None:
    manifest = make_manifest(20, new_folder(20, 1), ())
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
