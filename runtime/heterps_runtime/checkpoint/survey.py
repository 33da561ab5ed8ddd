"""What lies at a checkpoint path: every checkpoint, whether it can be restored, and its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    INCOMPLETE = "Incomplete"  # being written, or its writer was interrupted
    DAMAGED = "Damaged"
    NEWER = "Newer"  # written by a newer release


@dataclass(frozen=True)
class Found:
    """A checkpoint at a path.

    Attributes:
        folder: its folder.
        health: whether it can be restored.
        reason: why it cannot; empty if it can.
        bytes: of all its files.
        manifest: what it says of itself; None unless it is valid.
    """

    folder: str
    health: Health
    reason: str
    bytes: int
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
    return [_look(storage, name, contents) for name in (checkpoint_folders(storage) if folders is None else folders)]


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
    """Return the number of embedding rows in a checkpoint, from the headers of its files.

    Raises:
        DamagedError: a file has no readable header.
        StorageError: a file cannot be read.
    """
    rows = 0
    for entry in manifest.files_of("rows"):
        with TensorFile(storage, f"{manifest.folder}/{entry.name}") as file:
            rows += sum(math.prod(spec.shape) for name, spec in file.specs.items() if name.endswith("/keys"))
    return rows


def _look(storage: Storage, folder: str, contents: bool) -> Found:
    try:
        manifest = check_checkpoint(storage, folder, contents=contents)
    except UnsupportedVersionError as error:
        health, reason = Health.NEWER, str(error)
    except IncompleteError as error:
        health, reason = Health.INCOMPLETE, str(error)
    except DamagedError as error:
        health, reason = Health.DAMAGED, str(error)
    else:
        return Found(folder, Health.VALID, "", sum(entry.bytes for entry in manifest.files), manifest)
    return Found(folder, health, reason, sum(storage.size(name) or 0 for name in storage.files(folder)), None)
