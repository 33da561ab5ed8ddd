"""The manifest of a checkpoint, and the choice of the checkpoint to restore.

    CHECKPOINT_PATH/
        step-000000120.3-9f86d081/   state after the commit of 120 steps, written under term 3
            rows-0.safetensors       files of shards and stages, named by their writers
            dense-0.safetensors
            manifest.json            written last; it makes the checkpoint valid
            damaged.json             why a member could not restore it; it makes the checkpoint invalid again
        step-000000160.3-2c624232/
            rows-0.safetensors       rows that have changed since; the manifest also lists the files of step 120
            ...
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import DamagedError, IncompleteError
from heterps_runtime.checkpoint.format import FileEntry, Origin, verify_file
from heterps_runtime.checkpoint.ownership import Ownership
from heterps_runtime.partition.access import NEVER, Ages, TableRules
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError, check_version, known_fields

__all__ = [
    "DAMAGE_NAME",
    "ID_BITS",
    "MANIFEST_NAME",
    "CheckpointManifest",
    "InitialRows",
    "TableRecord",
    "check_checkpoint",
    "check_sizes",
    "checkpoint_folders",
    "differences",
    "explain_mismatch",
    "find_latest",
    "mark_damaged",
    "new_folder",
    "order_of",
    "read_manifest",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
DAMAGE_NAME = "damaged.json"  # beside the manifest of a checkpoint that a member could not restore
MAX_TABLES = 1 << 15
ID_BITS = 48  # a row's key is (table index << ID_BITS) | id
# Of manifests with tables that have rules (`partition.access`); of others, those that list files of earlier checkpoints
# are of version 2, and the rest of version 1.
_VERSION = 3
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
    min_steps: int | None = None  # that must have used an id before it has a row (`partition.access`); None: one
    unused_steps: int | None = None  # after which a row goes in its turn; None: it stays
    candidate_unused_steps: int | None = None  # likewise of a candidate
    period: int | None = None  # steps from one turn to the next; None if nothing goes

    def with_rules(self, rules: TableRules) -> TableRecord:
        """The same table with its rules."""
        least = rules.min_steps if rules.min_steps > 1 else None
        limits = (rules.unused_steps, rules.candidate_unused_steps)
        row, candidate = (None if steps == NEVER else steps for steps in limits)
        period = rules.period if row or candidate else None
        return replace(self, min_steps=least, unused_steps=row, candidate_unused_steps=candidate, period=period)


InitialRows = Callable[[TableRecord, npt.NDArray[np.int64]], npt.NDArray[Any]]  # (table, ids (n,)) -> rows (n, dim)


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
    earlier_steps: int = 0  # of other jobs, whose optimizer state this job has gone on with, less its skipped steps
    loss_scale: dict[str, Any] | None = None  # after its step (coordinator/loss_scale.py); None: losses are not scaled
    # Name in the module's `state_dict()` -> name of the parameter, buffer or table here. Tied parameters have several
    # names, buffers that are not persistent none. Empty: the names are equal.
    state_names: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> Origin:
        """The commit that all files must belong to."""
        return Origin(self.step, self.lineage)

    @property
    def version(self) -> int:
        """Of the document; the least that its contents need."""
        if any(table.period or table.min_steps for table in self.tables):
            return _VERSION
        return 2 if any(entry.folder for entry in self.files) else 1

    @property
    def number(self) -> int:
        """Number of the last step that was applied, as rows have it, with the steps of other jobs before this one."""
        return self.earlier_steps + self.step

    def ages(self, kind: str) -> Ages:
        """When rows ("group") or candidates ("candidates") of the tables go.

        Raises:
            DamagedError: no key can be of one of the tables.
        """
        limits = {}
        for table in self.tables:
            steps = table.unused_steps if kind == "group" else table.candidate_unused_steps
            if steps is None or table.period is None:
                continue
            if not (0 <= table.index < MAX_TABLES and 1 <= steps <= NEVER and 1 <= table.period <= NEVER):
                raise DamagedError(
                    f"table {table.name!r} has the index {table.index}, and {steps} steps in turns of {table.period}"
                )
            limits[table.index] = (steps, table.period)
        return Ages(limits)

    def files_of(self, role: str) -> tuple[FileEntry, ...]:
        """The files of one role ("rows", "dense" or "buffers"), by index; those of rows oldest first."""
        return tuple(sorted((f for f in self.files if f.role == role), key=lambda f: f.index))

    @property
    def num_servers(self) -> int | None:
        """The number of servers that wrote it, each files of its slots' rows; None: rows are in any file."""
        indices = sorted({entry.index for entry in self.files_of("rows")})
        return len(indices) if not self.imported_from and indices == list(range(len(indices))) else None

    def path_of(self, entry: FileEntry) -> str:
        """Name of a file in the storage."""
        return f"{entry.folder or self.folder}/{entry.name}"

    def to_json(self) -> bytes:
        """The manifest as a JSON document with a checksum."""
        body = asdict(self)
        # As written before there were such jobs.
        for name in ("layout", "imported_from", "earlier_steps", "loss_scale", "state_names"):
            if not body[name]:
                del body[name]
        for entry in body["files"]:  # as above
            for name in ("added", "folder", "origin"):
                if entry[name] in (None, ""):
                    del entry[name]
        for table in body["tables"]:  # as above
            for name in ("min_steps", "unused_steps", "candidate_unused_steps", "period"):
                if table[name] is None:
                    del table[name]
        body["version"] = self.version
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
            files = tuple(map(_read_entry, body["files"]))
            return cls(**{**known_fields(cls, body), "tables": tables, "files": files})
        except UnsupportedVersionError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{MANIFEST_NAME} is truncated or malformed ({error})") from error


def _read_entry(fields: Mapping[str, Any]) -> FileEntry:
    """Read an entry of a file.

    Raises:
        ValueError, KeyError, TypeError: a field is missing or malformed.
    """
    if not isinstance(fields, Mapping):
        raise TypeError(f"an entry must be an object, is {type(fields).__name__}")
    entry = FileEntry(**known_fields(FileEntry, {name: fields[name] for name in fields if name != "origin"}))
    if not entry.folder:
        return entry
    if not _FOLDER.fullmatch(entry.folder):
        raise ValueError(f"{entry.folder!r} is no folder of a checkpoint")
    return replace(entry, origin=Origin(**known_fields(Origin, fields["origin"])))


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
        if not entry.folder:  # the commits of others were checked when their checkpoint became valid
            verify_file(storage, manifest.folder, entry, manifest.origin, contents=False)
    earlier = {entry.folder for entry in manifest.files if entry.folder}
    check_sizes(manifest, {k: v for folder in (*earlier, manifest.folder) for k, v in storage.sizes(folder).items()})
    owner.check()
    storage.write_atomic(f"{manifest.folder}/{MANIFEST_NAME}", manifest.to_json())


def check_checkpoint(
    storage: Storage, folder: str, *, contents: bool = True, verified: set[str] | None = None
) -> CheckpointManifest:
    """Read a checkpoint's manifest and verify all its files.

    Args:
        storage: the storage of the job's checkpoints.
        folder: the checkpoint's folder.
        contents: compare checksums as well as sizes and commits.
        verified: names of files of which this is known; extended.

    Raises:
        DamagedError: the checkpoint must not be used, with the reason.
        StorageError: the checkpoint cannot be read.
        UnsupportedVersionError: it was written by a newer release.
    """
    manifest = read_manifest(storage, folder)
    known = set() if verified is None else verified
    for entry in manifest.files:
        # With the checksum, since two manifests may disagree about a file.
        name = f"{manifest.path_of(entry)} {entry.bytes} {entry.checksum} {entry.origin or manifest.origin}"
        if name not in known:
            verify_file(storage, folder, entry, manifest.origin, contents=contents)
            known.add(name)
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
    mark = f"{folder}/{DAMAGE_NAME}"
    if storage.size(mark) is not None:
        try:
            raise DamagedError(f"it could not be restored: {json.loads(storage.read(mark))['reason']}")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedError(f"it could not be restored, and {DAMAGE_NAME} does not say why") from None
    return manifest


def mark_damaged(storage: Storage, folder: str, file: str, reason: str, owner: Ownership) -> None:
    """Make a checkpoint invalid that could not be restored, and the others that need the same file.

    Args:
        storage: the storage of the job's checkpoints.
        folder: the checkpoint's folder.
        file: name of the damaged file in the storage; empty if that is not known.
        reason: why it could not be restored.
        owner: the run's right to the checkpoints.

    Raises:
        FencedError: another run has taken the checkpoints over.
        StorageError: the storage cannot be read or written.
    """
    owner.check()
    text = json.dumps({"version": 1, "file": file, "reason": reason}, indent=1).encode()
    for other in checkpoint_folders(storage):
        try:
            manifest = read_manifest(storage, other)
        except (DamagedError, UnsupportedVersionError):
            continue
        if other == folder or file in map(manifest.path_of, manifest.files):
            storage.write_atomic(f"{other}/{DAMAGE_NAME}", text)


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
    verified: set[str] = set()
    for folder in checkpoint_folders(storage):
        try:
            return check_checkpoint(storage, folder, contents=contents, verified=verified), tuple(skipped)
        except DamagedError as error:
            skipped.append((folder, str(error)))
    return None, tuple(skipped)


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


def check_sizes(manifest: CheckpointManifest, sizes: Mapping[str, int]) -> None:
    """Check that the files of a checkpoint are there.

    Args:
        manifest: the checkpoint.
        sizes: of all files in the storage, in bytes.

    Raises:
        DamagedError: a file is missing or has another size.
    """
    for entry in manifest.files:
        name = manifest.path_of(entry)
        if name not in sizes:
            raise DamagedError(f"{name} is missing")
        if sizes[name] != entry.bytes:
            raise DamagedError(f"{name} has {sizes[name]} bytes instead of {entry.bytes}")


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
