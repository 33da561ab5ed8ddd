"""Which checkpoints stay, and the files of older ones that these need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.manifest import (
    DAMAGE_NAME,
    MANIFEST_NAME,
    CheckpointManifest,
    check_sizes,
    checkpoint_folders,
    order_of,
    read_manifest,
)
from heterps_runtime.checkpoint.ownership import Ownership
from heterps_runtime.storage import Storage
from heterps_runtime.versions import UnsupportedVersionError

__all__ = ["Superseded", "retain", "superseded"]


@dataclass(frozen=True)
class Superseded:
    """What is to be deleted of an old checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        files: names of the files to delete, the manifest first.
        bytes: of these files.
        whole: whether no file of the folder remains.
    """

    folder: str
    files: tuple[str, ...]
    bytes: int
    whole: bool

    def delete(self, storage: Storage) -> None:
        """Delete the files. The manifest goes first: an interrupted deletion leaves nothing that looks valid.

        Raises:
            StorageError: a file cannot be deleted.
        """
        for name in self.files:
            storage.delete(name)
        if self.whole:
            storage.delete_dir(self.folder)


def retain(storage: Storage, newest: CheckpointManifest, keep: int, owner: Ownership) -> None:
    """Delete old checkpoints once `newest` is valid.

    `newest` and the `keep - 1` valid ones before it stay, with the files of earlier ones that they need. All else in
    older folders is deleted, and so are leftovers of interrupted writes inside `newest`. Newer folders stay: they may
    be checkpoints in progress.

    Raises:
        FencedError: another run has taken the checkpoints over.
        StorageError: a file cannot be deleted; `newest` is valid nevertheless.
    """
    if keep < 1:
        raise ValueError(f"checkpoint.keep: must be >= 1, is {keep}")
    known = {MANIFEST_NAME, DAMAGE_NAME, *(entry.name for entry in newest.files if not entry.folder)}
    for stored in storage.files(newest.folder):
        if stored.removeprefix(f"{newest.folder}/") not in known:
            storage.delete(stored)
    for old in superseded(storage, newest, keep):
        owner.check()
        old.delete(storage)


def superseded(storage: Storage, newest: CheckpointManifest, keep: int) -> list[Superseded]:
    """Return what is older than `newest`, except for the `keep - 1` newest valid checkpoints and what they need.

    Raises:
        StorageError: the storage cannot be read.
    """
    kept, old, sizes = [newest], [], storage.sizes()
    for folder in checkpoint_folders(storage):
        if order_of(folder) >= order_of(newest.folder):
            continue
        try:
            manifest = _complete(storage, folder, sizes) if len(kept) < keep else None
        except UnsupportedVersionError:
            return []  # not ours to judge what it needs
        if manifest is None:
            old.append(folder)
        else:
            kept.append(manifest)
    needed = {manifest.path_of(entry) for manifest in kept for entry in manifest.files}
    found = []
    for folder in old:
        inside = [name for name in sizes if name.startswith(f"{folder}/")]
        files = sorted((n for n in inside if n not in needed), key=lambda n: n != f"{folder}/{MANIFEST_NAME}")
        whole = len(files) == len(inside)
        if files or whole:
            found.append(Superseded(folder, tuple(files), sum(sizes[name] for name in files), whole))
    return found


def _complete(storage: Storage, folder: str, sizes: Mapping[str, int]) -> CheckpointManifest | None:
    """The manifest of a checkpoint, if its files have the right sizes; otherwise None.

    Raises:
        UnsupportedVersionError: it was written by a newer release.
        StorageError: the manifest cannot be read.
    """
    try:
        manifest = read_manifest(storage, folder)
        check_sizes(manifest, sizes)
    except DamagedError:
        return None
    return manifest
