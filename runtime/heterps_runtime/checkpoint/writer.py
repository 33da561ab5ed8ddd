"""Writing a checkpoint while training continues.

Each server, and one worker per stage, hands its part of the state to a `CheckpointWriter`: copies of what is small, and
rows that are copied piece by piece as they were at the commit. The writer's thread writes files and computes checksums
without the interpreter lock. If a write fails, its files are removed and the error is returned in the future.

The coordinator has a `Barrier` per checkpoint, and calls `commit` when all members have reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from heterps_runtime.checkpoint.dense import pieces_metadata
from heterps_runtime.checkpoint.format import FileEntry, Origin, write_stream, write_tensors
from heterps_runtime.checkpoint.manifest import CheckpointManifest, write_manifest
from heterps_runtime.checkpoint.ownership import Ownership
from heterps_runtime.checkpoint.retention import retain
from heterps_runtime.checkpoint.rows import RowPart, row_stream
from heterps_runtime.errors import TransientError
from heterps_runtime.partition.pieces import Place
from heterps_runtime.storage import Storage, StorageError

__all__ = ["Barrier", "CheckpointWriter", "RowFile", "StateFile", "commit"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StateFile:
    """A file of dense parameters or buffers to write."""

    name: str  # e.g. dense-ps-0.safetensors
    arrays: Mapping[str, Array]  # must not change during the write
    origin: Origin  # by the writer's own count, not by that of the order
    role: str  # "dense" | "buffers"
    index: int = 0
    pieces: Mapping[str, Place] = field(default_factory=dict)  # of parameters that are not whole, by name

    def write(self, storage: Storage, folder: str) -> FileEntry:
        """Write it.

        Raises:
            StorageError: it cannot be written.
        """
        return write_tensors(
            storage,
            folder,
            self.name,
            self.arrays,
            origin=self.origin,
            role=self.role,
            index=self.index,
            version=3 if self.pieces else 1,
            metadata=pieces_metadata(self.pieces),
        )


@dataclass(frozen=True)
class RowFile:
    """A file of rows to write."""

    name: str  # e.g. rows-0.safetensors
    parts: Sequence[RowPart]
    origin: Origin  # by the writer's own count
    index: int  # of the server
    added: int  # by how many rows the server has grown since its file before; less than 0 if more were evicted

    def write(self, storage: Storage, folder: str) -> FileEntry:
        """Write it.

        Raises:
            StorageError: it cannot be written.
            TransientError: the rows cannot be copied any more.
        """
        specs, arrays = row_stream(self.parts)
        version = 2 if any(part.num_pieces > 1 for part in self.parts) else 1
        return write_stream(
            storage,
            folder,
            self.name,
            specs,
            arrays,
            origin=self.origin,
            role="rows",
            index=self.index,
            version=version,
            added=self.added,
        )


class CheckpointWriter:
    """Writes the state files of a process in the background, one checkpoint at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[tuple[FileEntry, ...]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is in progress; another one would need memory for a second snapshot."""
        return self._current is not None and not self._current.done()

    def write(self, folder: str, files: Sequence[StateFile | RowFile]) -> Future[tuple[FileEntry, ...]]:
        """Start writing files into a checkpoint's folder.

        Returns:
            A future of the files' entries. It fails with `StorageError`, or with `TransientError` if the rows cannot be
            copied any more; then none of the files is left behind.
        """
        # `_write` empties the list on the way, so that the future does not keep the snapshot alive.
        self._current = self._executor.submit(self._write, folder, list(files))
        return self._current

    def close(self) -> None:
        """Wait for the current write, and end the thread."""
        self._executor.shutdown(wait=True)

    def _write(self, folder: str, files: list[StateFile | RowFile]) -> tuple[FileEntry, ...]:
        entries: list[FileEntry] = []
        try:
            while files:
                entries.append(_write_file(self._storage, folder, files.pop(0)))
            return tuple(entries)
        except TransientError as error:
            for entry in entries:
                with contextlib.suppress(StorageError):
                    self._storage.delete(f"{folder}/{entry.name}")
            # The frames of the traceback would keep the snapshot alive as long as the error.
            failure = error.with_traceback(None)
            failure.__cause__ = failure.__context__ = None
        files.clear()
        raise failure


def _write_file(storage: Storage, folder: str, file: StateFile | RowFile) -> FileEntry:
    # A function of its own, so that no variable of `_write` keeps the file's arrays alive.
    return file.write(storage, folder)


class Barrier:
    """Which members have written their part of a checkpoint. Reports may come in any order and more than once.

    Args:
        origin: the commit that all parts must belong to.
        folder: the checkpoint's folder.
        members: the writers.
    """

    def __init__(self, origin: Origin, folder: str, members: Iterable[str]) -> None:
        self.origin = origin
        self.folder = folder
        self._entries: dict[str, tuple[FileEntry, ...] | None] = dict.fromkeys(members)
        assert self._entries, "a checkpoint has at least one part"

    @property
    def step(self) -> int:
        """Committed steps in the checkpoint."""
        return self.origin.step

    @property
    def missing(self) -> tuple[str, ...]:
        """Members that have not reported."""
        return tuple(member for member, entries in self._entries.items() if entries is None)

    def report(self, member: str, step: int, entries: Iterable[FileEntry]) -> bool:
        """Note the files of a member; returns False if the step or the member does not belong to this checkpoint."""
        if step != self.step or member not in self._entries:
            return False
        self._entries[member] = tuple(entries)
        return True

    @property
    def complete(self) -> bool:
        """Whether all members have reported."""
        return not self.missing

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files of a complete checkpoint."""
        assert self.complete, "only a complete checkpoint has all its files"
        return tuple(entry for entries in self._entries.values() for entry in entries or ())


def commit(storage: Storage, manifest: CheckpointManifest, keep: int, owner: Ownership) -> None:
    """Make a checkpoint valid, then delete old ones.

    Raises:
        DamagedError: a file differs from its report, or belongs to another commit; the checkpoint is not valid.
        FencedError: another run has taken the checkpoints over.
        StorageError: the manifest cannot be written (the checkpoint is not valid), or an old checkpoint cannot be
            deleted (the checkpoint is valid).
    """
    write_manifest(storage, manifest, owner)
    retain(storage, manifest, keep, owner)
