"""The manifest of a checkpoint, and the choice of the checkpoint to restore.

    CHECKPOINT_PATH/
        step-000000120.3-9f86d081/   state after the commit of 120 steps, written under term 3
            rows-0.safetensors       files of shards and stages, named by their writers
            dense-0.safetensors
            manifest.json            written last; it makes the checkpoint valid
        owners/                      which run may write here (ownership.py)

Each attempt at a checkpoint draws its own name, so no two ever write to the same folder. The term (ownership.py) goes
before the step: what the youngest run has written is the newest, also if an older one had come further.

`find_latest` skips a folder without a manifest, or with a file whose size, checksum or commit differs from it. It
returns the newest valid checkpoint, and the reason for each folder that it skipped.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heterps_runtime.checkpoint.errors import DamagedError, IncompleteError
from heterps_runtime.checkpoint.format import FileEntry, Origin, verify_file
from heterps_runtime.checkpoint.ownership import Ownership
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError, check_version, known_fields

__all__ = [
    "ID_BITS",
    "MANIFEST_NAME",
    "CheckpointManifest",
    "TableRecord",
    "check_checkpoint",
    "checkpoint_folders",
    "delete_checkpoint",
    "differences",
    "explain_mismatch",
    "find_latest",
    "new_folder",
    "order_of",
    "retain",
    "superseded",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
ID_BITS = 48  # a row's key is (table index << ID_BITS) | id
_VERSION = 1
_FOLDER = re.compile(r"step-(\d{9,})\.(\d+)-([0-9a-f]{8})")


@dataclass(frozen=True)
class TableRecord:
    """An embedding table."""

    index: int  # in its rows' keys
    name: str  # qualified name of the parameter in the user's module
    num_embeddings: int
    dim: int
    init: dict[str, Any]  # distribution of untrained rows
    dtype: str = "float32"
    padding_idx: int | None = None


@dataclass(frozen=True)
class CheckpointManifest:
    """Everything needed to resume from a checkpoint, or to export its model."""

    step: int  # number of committed steps
    epoch: int
    seed: int
    global_batch_size: int
    num_rows: int  # of the training data
    samples: int  # trained on so far, over all epochs
    fingerprint: dict[str, Any]  # what a resuming job must have in common; see `explain_mismatch`
    plan: dict[str, Any]  # in force when the checkpoint was written
    tables: tuple[TableRecord, ...]
    files: tuple[FileEntry, ...]
    term: int  # of the run that wrote it
    lineage: int  # of its members' state
    loss: float | None = None  # of training, smoothed; None before the first step
    folder: str = ""  # the checkpoint's folder in its storage
    layout: str = ""  # what the order of training rows depends on beside their number
    imported_from: str = ""  # the checkpoint of another job that the values are of; its tables keep their indices
    version: int = _VERSION

    @property
    def origin(self) -> Origin:
        """The commit that all files must belong to."""
        return Origin(self.step, self.lineage)

    def files_of(self, role: str) -> tuple[FileEntry, ...]:
        """The files of one role ("rows", "dense" or "buffers"), by index and name."""
        return tuple(sorted((f for f in self.files if f.role == role), key=lambda f: (f.index, f.name)))

    def to_json(self) -> bytes:
        """The manifest as a JSON document with a checksum."""
        body = asdict(self)
        for name in ("layout", "imported_from"):  # as written before there were such jobs
            if not body[name]:
                del body[name]
        return json.dumps({"manifest": body, "checksum": _checksum(body)}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointManifest:
        """Read what `to_json` wrote.

        Raises:
            DamagedError: the text is truncated or was changed.
            UnsupportedVersionError: it was written by a newer release.
        """
        try:
            document = json.loads(text)
            body = document["manifest"]
            check_version(f"the checkpoint {body['folder']}", body["version"], _VERSION)
            if document["checksum"] != _checksum(body):
                raise DamagedError(f"{MANIFEST_NAME} was changed after it was written")
            tables = tuple(TableRecord(**known_fields(TableRecord, t)) for t in body["tables"])
            files = tuple(FileEntry(**known_fields(FileEntry, f)) for f in body["files"])
            return cls(**{**known_fields(cls, body), "tables": tables, "files": files})
        except UnsupportedVersionError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{MANIFEST_NAME} is truncated or malformed ({error})") from error


def new_folder(step: int, term: int) -> str:
    """A new name for the folder of a checkpoint."""
    return f"step-{step:09d}.{term}-{secrets.token_hex(4)}"


def write_manifest(storage: Storage, manifest: CheckpointManifest, owner: Ownership) -> None:
    """Make a checkpoint valid: check sizes and commits of its files, then write its manifest.

    Raises:
        DamagedError: a file is missing, has the wrong size or belongs to another commit.
        FencedError: another run has taken the checkpoints over.
        StorageError: the manifest cannot be written.
    """
    for entry in manifest.files:
        verify_file(storage, manifest.folder, entry, manifest.origin, contents=False)
    owner.check()
    storage.write_atomic(f"{manifest.folder}/{MANIFEST_NAME}", manifest.to_json())


def check_checkpoint(storage: Storage, folder: str, *, contents: bool = True) -> CheckpointManifest:
    """Read a checkpoint's manifest and verify all its files.

    Args:
        storage: the storage of the job's checkpoints.
        folder: the checkpoint's folder.
        contents: compare checksums as well as sizes and commits.

    Raises:
        DamagedError: the checkpoint must not be used, with the reason.
        StorageError: the checkpoint cannot be read.
        UnsupportedVersionError: it was written by a newer release.
    """
    manifest = read_manifest(storage, folder)
    for entry in manifest.files:
        verify_file(storage, folder, entry, manifest.origin, contents=contents)
    return manifest


def read_manifest(storage: Storage, folder: str) -> CheckpointManifest:
    """Read a checkpoint's manifest, without its files.

    Raises:
        DamagedError: the checkpoint must not be used, with the reason.
        StorageError: the manifest cannot be read.
        UnsupportedVersionError: it was written by a newer release.
    """
    try:
        text = storage.read(f"{folder}/{MANIFEST_NAME}")
    except StorageError as error:
        if error.missing:
            raise IncompleteError(f"it is incomplete: {MANIFEST_NAME} is missing") from error
        raise
    manifest = CheckpointManifest.from_json(text)
    if manifest.folder != folder:
        raise DamagedError(f"its manifest belongs to {manifest.folder}")
    return manifest


def find_latest(
    storage: Storage, *, contents: bool = True
) -> tuple[CheckpointManifest | None, tuple[tuple[str, str], ...]]:
    """The newest valid checkpoint, and the reasons for skipping newer ones.

    Args:
        storage: the storage of the job's checkpoints.
        contents: compare checksums as well as sizes and commits, which reads all files of the checkpoint.

    Returns:
        (manifest, skipped): manifest is None if there is no valid checkpoint; skipped is `((folder, reason), ...)`,
        newest first.

    Raises:
        StorageError: the storage cannot be read, which does not mean that its checkpoints are damaged.
        UnsupportedVersionError: a newer release has written a checkpoint, which an older one must not pass over.
    """
    skipped: list[tuple[str, str]] = []
    for folder in checkpoint_folders(storage):
        try:
            return check_checkpoint(storage, folder, contents=contents), tuple(skipped)
        except DamagedError as error:
            skipped.append((folder, str(error)))
    return None, tuple(skipped)


def retain(storage: Storage, newest: CheckpointManifest, keep: int, owner: Ownership) -> None:
    """Delete old checkpoints once `newest` is valid.

    `newest` and the `keep - 1` valid ones before it stay. All other older folders are deleted, and so are leftovers of
    interrupted writes inside `newest`. Newer folders stay: they may be checkpoints in progress.

    Raises:
        FencedError: another run has taken the checkpoints over.
        StorageError: a file cannot be deleted; `newest` is valid nevertheless.
    """
    if keep < 1:
        raise ValueError(f"checkpoint.keep: must be >= 1, is {keep}")
    known = {MANIFEST_NAME, *(entry.name for entry in newest.files)}
    for stored in storage.files(newest.folder):
        if stored.removeprefix(f"{newest.folder}/") not in known:
            storage.delete(stored)
    for folder in superseded(storage, newest, keep):
        owner.check()
        delete_checkpoint(storage, folder)


def superseded(storage: Storage, newest: CheckpointManifest, keep: int) -> list[str]:
    """Return the folders before `newest`, except for the `keep - 1` newest valid ones.

    Raises:
        StorageError: the storage cannot be read.
    """
    kept, found = 1, []
    for folder in checkpoint_folders(storage):
        if order_of(folder) >= order_of(newest.folder):
            continue
        if kept < keep and _is_valid(storage, folder):
            kept += 1
        else:
            found.append(folder)
    return found


def delete_checkpoint(storage: Storage, folder: str) -> None:
    """Delete a checkpoint. The manifest goes first: an interrupted deletion leaves nothing that looks valid.

    Raises:
        StorageError: a file cannot be deleted.
    """
    storage.delete(f"{folder}/{MANIFEST_NAME}")
    storage.delete_dir(folder)


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], *, _prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value before, value after) for each field that differs; nested fields have dots.

    Values are JSON; that of an absent field is "nothing".
    """
    for key in sorted({*before, *after}):
        name = f"{_prefix}{key}"
        one, other = before.get(key), after.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, _prefix=f"{name}.")
        elif (key in before) != (key in after) or _canonical(one) != _canonical(other):
            yield name, _shown(before, key), _shown(after, key)


def explain_mismatch(checkpoint: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    """List the differences between a job and the one that wrote a checkpoint.

    Args:
        checkpoint: fingerprint in the checkpoint's manifest.
        job: fingerprint of the job that wants to resume.

    Returns:
        One sentence per differing field, with both values.
    """
    return [
        f"{name}: the checkpoint has {theirs}, the job has {ours}"
        for name, theirs, ours in differences(checkpoint, job)
    ]


def _is_valid(storage: Storage, folder: str) -> bool:
    try:
        check_checkpoint(storage, folder, contents=False)
    except DamagedError:
        return False
    except UnsupportedVersionError:
        return True  # not ours to judge
    return True


def checkpoint_folders(storage: Storage) -> list[str]:
    """Folders of checkpoints, newest first; other folders are ignored."""
    return sorted((name for name in storage.folders() if _FOLDER.fullmatch(name)), key=order_of, reverse=True)


def order_of(folder: str) -> tuple[int, int, str]:
    """The term, the step and the attempt of a checkpoint's folder: its place in the order of age."""
    match = _FOLDER.fullmatch(folder)
    assert match, folder
    step, term, attempt = match.groups()
    return int(term), int(step), attempt


def _shown(values: Mapping[str, Any], key: str) -> str:
    return _canonical(values[key]) if key in values else "nothing"


def _canonical(value: Any) -> str:
    """A text that is the same for equal JSON values, whatever the order of keys and the Python type of lists."""
    return json.dumps(value, sort_keys=True, separators=(", ", ": "), ensure_ascii=False)


def _checksum(body: Mapping[str, Any]) -> str:
    return f"crc32:{zlib.crc32(_canonical(body).encode()):08x}"
