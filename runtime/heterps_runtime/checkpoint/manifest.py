"""What a checkpoint is, and which one of a folder to trust.

    CHECKPOINT_PATH/
        step-000000120/            state after the commit of 120 steps
            rows-0.safetensors     the files of shards and stages (names are the writers' choice)
            dense-0.safetensors
            manifest.json          written last: with it the checkpoint is valid, without it it is nothing
        step-000000120.1/          the same step once more (a second attempt never touches the first)

A folder whose manifest is missing, or whose files have another size or checksum than the manifest says, is passed
over, with the reason in words, and the next older one is taken (`find_latest`). A folder found damaged can be marked
(`mark_damaged`), so that it is neither read again nor counted among those to keep.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from heterps_runtime.checkpoint.errors import DamagedError, StorageError
from heterps_runtime.checkpoint.format import FileEntry, verify_file
from heterps_runtime.checkpoint.storage import Storage

__all__ = [
    "MANIFEST_NAME",
    "CheckpointManifest",
    "TableRecord",
    "check_checkpoint",
    "explain_mismatch",
    "find_latest",
    "mark_damaged",
    "new_folder",
    "retain",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
_DAMAGED_NAME = "damaged.txt"  # holds the reason why this checkpoint must not be used
_VERSION = 1
_FOLDER = re.compile(r"step-(\d{9,})(?:\.(\d+))?")


@dataclass(frozen=True)
class TableRecord:
    """An embedding table as the checkpoint knows it."""

    index: int  # the upper 16 bits of its rows' keys
    name: str  # the qualified name of the parameter in the user's module
    num_embeddings: int
    dim: int
    init: dict[str, Any]  # distribution of rows that were never touched
    dtype: str = "float32"
    padding_idx: int | None = None


@dataclass(frozen=True)
class CheckpointManifest:
    """Everything needed to go on from a checkpoint, or to export its model."""

    step: int  # number of committed steps
    epoch: int
    seed: int
    global_batch_size: int
    num_rows: int  # of the training data
    samples: int  # samples seen so far, all epochs together
    fingerprint: dict[str, Any]  # what a job that resumes must agree with; see `explain_mismatch`
    slot_map: dict[str, Any]  # slots -> shards when it was written
    plan: dict[str, Any]  # the plan when it was written
    tables: tuple[TableRecord, ...]
    files: tuple[FileEntry, ...]
    extra: dict[str, Any] = field(default_factory=dict)  # the bill so far and whatever else the coordinator keeps
    folder: str = ""  # the checkpoint's folder in its storage
    version: int = _VERSION

    def files_of(self, role: str) -> tuple[FileEntry, ...]:
        """The files of one role ("rows", "dense" or "buffers"), by index and name."""
        return tuple(sorted((f for f in self.files if f.role == role), key=lambda f: (f.index, f.name)))

    def to_json(self) -> bytes:
        """The manifest as a JSON document that carries its own checksum."""
        body = asdict(self)
        return json.dumps({"manifest": body, "checksum": _checksum(body)}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointManifest:
        """Read what `to_json` wrote.

        Raises:
            DamagedError: it is cut short, was changed, or is of a version that this program does not know.
        """
        try:
            document = json.loads(text)
            body = document["manifest"]
            if document["checksum"] != _checksum(body):
                raise DamagedError(f"{MANIFEST_NAME} was changed after it was written")
            if body["version"] != _VERSION:
                raise DamagedError(
                    f"{MANIFEST_NAME} has version {body['version']}, this program reads version {_VERSION} only"
                )
            tables = tuple(TableRecord(**t) for t in body.pop("tables"))
            files = tuple(FileEntry(**f) for f in body.pop("files"))
            return cls(**body, tables=tables, files=files)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{MANIFEST_NAME} is cut short or malformed ({error})") from error


def new_folder(storage: Storage, step: int) -> str:
    """Name of a fresh folder for a checkpoint of `step`: never one that exists, complete or not."""
    taken = set(storage.folders())
    name, attempt = f"step-{step:09d}", 0
    while name in taken:
        attempt += 1
        name = f"step-{step:09d}.{attempt}"
    return name


def write_manifest(storage: Storage, manifest: CheckpointManifest) -> None:
    """Make a checkpoint valid: check that its files are there in full, then write its manifest.

    Raises:
        DamagedError: a file is missing or has the wrong size.
        StorageError: the manifest could not be written.
    """
    for entry in manifest.files:
        verify_file(storage, manifest.folder, entry, contents=False)
    storage.write_atomic(f"{manifest.folder}/{MANIFEST_NAME}", manifest.to_json())


def check_checkpoint(storage: Storage, folder: str, *, contents: bool = True) -> CheckpointManifest:
    """Read a checkpoint's manifest and verify all its files.

    Args:
        storage: the storage of all checkpoints of a job.
        folder: the checkpoint's folder in it.
        contents: compare checksums too, not only sizes.

    Raises:
        DamagedError: it must not be used; the text says why.
        StorageError: it could not be read.
    """
    if storage.exists(f"{folder}/{_DAMAGED_NAME}"):
        raise DamagedError(storage.read(f"{folder}/{_DAMAGED_NAME}").decode(errors="replace").strip())
    try:
        text = storage.read(f"{folder}/{MANIFEST_NAME}")
    except StorageError as error:
        if error.missing:
            raise DamagedError(
                f"it is incomplete: {MANIFEST_NAME} is missing, so writing it was never finished"
            ) from error
        raise
    manifest = CheckpointManifest.from_json(text)
    if manifest.folder != folder:
        raise DamagedError(f"its manifest belongs to {manifest.folder}")
    for entry in manifest.files:
        verify_file(storage, folder, entry, contents=contents)
    return manifest


def find_latest(
    storage: Storage, *, contents: bool = True
) -> tuple[CheckpointManifest | None, tuple[tuple[str, str], ...]]:
    """The newest valid checkpoint, and why newer ones were passed over.

    Returns:
        (manifest, skipped): manifest is None if there is no valid checkpoint; skipped is `((folder, reason), ...)`,
        newest first.

    Raises:
        StorageError: the storage could not be read, which says nothing about the checkpoints in it.
    """
    skipped: list[tuple[str, str]] = []
    for folder in _checkpoint_folders(storage):
        try:
            return check_checkpoint(storage, folder, contents=contents), tuple(skipped)
        except DamagedError as error:
            skipped.append((folder, str(error)))
    return None, tuple(skipped)


def mark_damaged(storage: Storage, folder: str, reason: str) -> None:
    """Leave a note in a checkpoint's folder that rules it out for good.

    Without it, a file with the right size but the wrong contents would count among the checkpoints to keep.
    """
    storage.write_atomic(f"{folder}/{_DAMAGED_NAME}", reason.encode())


def retain(storage: Storage, newest: CheckpointManifest, keep: int) -> list[str]:
    """Delete what is no longer needed once `newest` is valid.

    `newest` and the `keep - 1` valid ones before it stay; older ones go, and so do incomplete or damaged ones that are
    older than `newest`. Whatever is newer is left alone: it may be in the making. Leftovers of broken-off writes inside
    `newest` go as well.

    Returns:
        names of what was deleted.

    Raises:
        StorageError: something could not be deleted; `newest` is valid all the same.
    """
    if keep < 1:
        raise ValueError(f"checkpoint.keep: must be >= 1, is {keep}")
    deleted = []
    known = {MANIFEST_NAME, *(entry.name for entry in newest.files)}
    for stored in storage.files(newest.folder):
        if stored.name.removeprefix(f"{newest.folder}/") not in known:
            storage.delete(stored.name)
            deleted.append(stored.name)
    kept = 1
    for folder in _checkpoint_folders(storage):
        if _order(folder) >= _order(newest.folder):
            continue
        if kept < keep and _is_valid(storage, folder):
            kept += 1
            continue
        # The manifest goes first: a deletion that breaks off must not leave a checkpoint that looks valid.
        storage.delete(f"{folder}/{MANIFEST_NAME}")
        storage.delete_dir(folder)
        deleted.append(folder)
    return deleted


def explain_mismatch(checkpoint: Mapping[str, Any], job: Mapping[str, Any], *, _prefix: str = "") -> list[str]:
    """Say in which fields a job differs from the one that wrote a checkpoint.

    Args:
        checkpoint: fingerprint in the checkpoint's manifest.
        job: fingerprint of the job that wants to resume.

    Returns:
        one sentence per field that differs, naming the field and both values; empty if they agree.
    """
    sentences = []
    for key in sorted({*checkpoint, *job}):
        name = f"{_prefix}{key}"
        ours, theirs = job.get(key), checkpoint.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            sentences += explain_mismatch(theirs, ours, _prefix=f"{name}.")
        elif (key in job) != (key in checkpoint) or _canonical(ours) != _canonical(theirs):
            sentences.append(f"{name}: the checkpoint has {_shown(checkpoint, key)}, the job has {_shown(job, key)}")
    return sentences


def _is_valid(storage: Storage, folder: str) -> bool:
    try:
        check_checkpoint(storage, folder, contents=False)
    except DamagedError:
        return False
    return True


def _checkpoint_folders(storage: Storage) -> list[str]:
    """Folders that hold checkpoints, newest first; other folders are none of our business."""
    return sorted((name for name in storage.folders() if _FOLDER.fullmatch(name)), key=_order, reverse=True)


def _order(folder: str) -> tuple[int, int]:
    match = _FOLDER.fullmatch(folder)
    assert match, folder
    return int(match[1]), int(match[2] or 0)


def _shown(values: Mapping[str, Any], key: str) -> str:
    return _canonical(values[key]) if key in values else "nothing"


def _canonical(value: Any) -> str:
    """Text that is equal for equal JSON values, whatever the order of keys and however Python spells a list."""
    return json.dumps(value, sort_keys=True, separators=(", ", ": "), ensure_ascii=False)


def _checksum(body: Mapping[str, Any]) -> str:
    return f"crc32:{zlib.crc32(_canonical(body).encode()):08x}"
