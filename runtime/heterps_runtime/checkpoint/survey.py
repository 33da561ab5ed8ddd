"""What lies at a checkpoint path: every checkpoint, whether it can be restored, and its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from heterps_runtime.checkpoint.errors import DamagedError, IncompleteError
from heterps_runtime.checkpoint.format import TensorFile
from heterps_runtime.checkpoint.manifest import (
    CheckpointManifest,
    check_checkpoint,
    checkpoint_folders,
    order_of,
)
from heterps_runtime.errors import UserError
from heterps_runtime.storage import Storage
from heterps_runtime.versions import UnsupportedVersionError

__all__ = ["Found", "Health", "count_rows", "named", "survey"]


class Health(StrEnum):
    """Whether a checkpoint can be restored."""

    VALID = "Valid"
    NEEDED = "Needed"  # deleted but for files that newer checkpoints need
    INCOMPLETE = "Incomplete"  # being written, or its writer was interrupted
    DAMAGED = "Damaged"
    NEWER = "Newer"  # written by a newer release


@dataclass(frozen=True)
class Found:
    """A checkpoint at a path.

    Attributes:
        folder: its folder.
        health: whether it can be restored.
        reason: why it cannot; empty if it can, or is only needed.
        bytes: of all its files, with those that earlier checkpoints wrote.
        stored: bytes of the files in its folder.
        manifest: what it says of itself; None unless it is valid.
    """

    folder: str
    health: Health
    reason: str
    bytes: int
    stored: int
    manifest: CheckpointManifest | None

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return order_of(self.folder)[1]

    @property
    def term(self) -> int:
        """Term of the run that wrote it (`ownership`)."""
        return order_of(self.folder)[0]


def survey(storage: Storage, folders: Sequence[str] | None = None, *, contents: bool = False) -> list[Found]:
    """Look at checkpoints, newest first.

    Args:
        storage: the storage of a job's checkpoints.
        folders: those to look at; None: all.
        contents: compare checksums as well as sizes and commits, which reads all files.

    Raises:
        StorageError: the storage cannot be read.
    """
    verified: set[str] = set()
    names = checkpoint_folders(storage) if folders is None else folders
    found = [_look(storage, name, contents, verified) for name in names]
    needed = {folder for one in found if one.manifest for folder in _earlier(one.manifest)}
    return [
        replace(one, health=Health.NEEDED, reason="")
        if one.health is Health.INCOMPLETE and one.folder in needed
        else one
        for one in found
    ]


def _earlier(manifest: CheckpointManifest) -> set[str]:
    """Folders of the earlier checkpoints that a checkpoint has files of."""
    return {entry.folder for entry in manifest.files if entry.folder}


def named(storage: Storage, name: str) -> str:
    """Return the folder of a checkpoint.

    Args:
        storage: the storage of a job's checkpoints.
        name: its folder, or its step; of several at one step, the newest is meant.

    Raises:
        UserError: there is no such checkpoint.
        StorageError: the storage cannot be read.
    """
    folders = checkpoint_folders(storage)
    for folder in folders:
        if folder == name or (name.isdecimal() and order_of(folder)[1] == int(name)):
            return folder
    there = ", ".join(str(order_of(folder)[1]) for folder in folders) or "none"
    raise UserError(f"{storage.address}: there is no checkpoint {name}; steps with one: {there}")


def count_rows(storage: Storage, manifest: CheckpointManifest) -> int:
    """Return the number of embedding rows in a checkpoint.

    Raises:
        DamagedError: a file has no readable header.
        StorageError: a file cannot be read.
    """
    return sum(
        _count_keys(storage, manifest.path_of(entry)) if entry.added is None else entry.added
        for entry in manifest.files_of("rows")
    )


def _count_keys(storage: Storage, name: str) -> int:
    with TensorFile(storage, name) as file:
        of_rows = (s for key, s in file.specs.items() if key.startswith("group-") and key.endswith("/keys"))
        return sum(math.prod(spec.shape) for spec in of_rows)


def _look(storage: Storage, folder: str, contents: bool, verified: set[str]) -> Found:
    stored = sum(storage.sizes(folder).values())
    try:
        manifest = check_checkpoint(storage, folder, contents=contents, verified=verified)
    except UnsupportedVersionError as error:
        health, reason = Health.NEWER, str(error)
    except IncompleteError as error:
        health, reason = Health.INCOMPLETE, str(error)
    except DamagedError as error:
        health, reason = Health.DAMAGED, str(error)
    else:
        return Found(folder, Health.VALID, "", sum(entry.bytes for entry in manifest.files), stored, manifest)
    return Found(folder, health, reason, stored, stored, None)
