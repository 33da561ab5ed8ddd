"""Writing a checkpoint while training goes on.

Every shard and one replica per stage own a `CheckpointWriter`: they take a snapshot at the commit (a copy, quickly),
hand it over, and go on. Disk and checksum work happen on the writer's thread, outside the interpreter's lock. A write
that fails costs nothing but this checkpoint: its files are removed and the error travels back in the future.

The coordinator owns a `Barrier` per checkpoint, which only keeps the books, and calls `commit` when all have reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import StorageError
from heterps_runtime.checkpoint.format import FileEntry, write_tensors
from heterps_runtime.checkpoint.manifest import CheckpointManifest, retain, write_manifest
from heterps_runtime.checkpoint.storage import Storage

__all__ = ["Barrier", "CheckpointWriter", "StateFile", "commit", "dense_arrays", "row_arrays"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StateFile:
    """One file to write: what it holds, under which name."""

    name: str  # e.g. rows-0.safetensors
    arrays: Mapping[str, Array]  # must not change until the write is over
    role: str  # "rows" | "dense" | "buffers"
    index: int = 0


def row_arrays(groups: Mapping[int, tuple[Array, Array, Mapping[str, Array]]]) -> dict[str, Array]:
    """Names of a shard's row arrays in its file.

    Args:
        groups: dim -> (keys (n,) int64, rows (n, dim), optimizer state name -> (n, ...)).
    """
    arrays: dict[str, Array] = {}
    for dim, (keys, rows, state) in groups.items():
        assert keys.shape == (len(rows),), "one key per row"
        assert keys.dtype == np.int64, "keys are int64"
        assert rows.shape[1:] == (dim,), "rows of one dim"
        assert all(len(values) == len(keys) for values in state.values()), "one state entry per key"
        arrays[f"group-{dim}/keys"] = keys
        arrays[f"group-{dim}/rows"] = rows
        arrays |= {f"group-{dim}/state/{name}": values for name, values in state.items()}
    return arrays


def dense_arrays(values: Mapping[str, Array], role: str = "dense") -> dict[str, Array]:
    """Names of dense parameters (with state as `NAME::exp_avg`) or, with role "buffers", of buffers in their file."""
    return {f"{role}/{name}": value for name, value in values.items()}


class CheckpointWriter:
    """Writes the state files of one process in the background, one checkpoint at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[tuple[FileEntry, ...]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is under way; another one would hold a second snapshot in memory."""
        return self._current is not None and not self._current.done()

    def write(self, folder: str, files: Sequence[StateFile]) -> Future[tuple[FileEntry, ...]]:
        """Write files into a checkpoint's folder and return at once.

        Returns:
            a future of the files' entries, or of a `StorageError`, in which case none of the files is left behind.
        """
        # The future must not keep the snapshot alive, so the list of files is emptied as they are written.
        self._current = self._executor.submit(self._write, folder, list(files))
        return self._current

    def close(self) -> None:
        """Wait for the write under way and end the thread."""
        self._executor.shutdown(wait=True)

    def _write(self, folder: str, files: list[StateFile]) -> tuple[FileEntry, ...]:
        entries: list[FileEntry] = []
        try:
            while files:
                entries.append(_write_file(self._storage, folder, files.pop(0)))
            return tuple(entries)
        except StorageError as error:
            for entry in entries:
                with contextlib.suppress(StorageError):
                    self._storage.delete(f"{folder}/{entry.name}")
            # The traceback's frames would keep the snapshot alive as long as the error is kept.
            failure = error.with_traceback(None)
            failure.__cause__ = failure.__context__ = None
        files.clear()
        raise failure


def _write_file(storage: Storage, folder: str, file: StateFile) -> FileEntry:
    return write_tensors(storage, folder, file.name, file.arrays, role=file.role, index=file.index)


class Barrier:
    """Who has written its part of a checkpoint, and who has not.

    Reports may come in any order and more than once. The first failure decides: a checkpoint with a failed part is
    never committed. Pure bookkeeping, no I/O.
    """

    def __init__(self, step: int, folder: str, members: Iterable[str]) -> None:
        self.step = step
        self.folder = folder
        self._entries: dict[str, tuple[FileEntry, ...] | None] = dict.fromkeys(members)
        self._failures: dict[str, str] = {}
        assert self._entries, "a checkpoint has at least one part"

    def report(self, member: str, step: int, entries: Iterable[FileEntry]) -> bool:
        """Note that a member has written its files.

        Returns:
            whether this report belongs here: late ones of another step or of an unknown member do not.
        """
        if step != self.step or member not in self._entries:
            return False
        self._entries[member] = tuple(entries)
        return True

    def fail(self, member: str, step: int, reason: str) -> bool:
        """Note that a member could not write, or was lost. Returns as `report` does."""
        if step != self.step or member not in self._entries:
            return False
        self._failures.setdefault(member, reason)
        return True

    @property
    def failed(self) -> bool:
        """Whether this checkpoint cannot come about any more."""
        return bool(self._failures)

    @property
    def complete(self) -> bool:
        """Whether every part is written."""
        return not self._failures and not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """Members that have not reported."""
        return tuple(m for m, entries in self._entries.items() if entries is None and m not in self._failures)

    @property
    def reason(self) -> str:
        """Why it failed, one clause per member; empty if it did not."""
        return "; ".join(f"{member}: {reason}" for member, reason in self._failures.items())

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files of a complete checkpoint."""
        assert self.complete, "only a complete checkpoint has its files"
        return tuple(entry for entries in self._entries.values() for entry in entries or ())


def commit(storage: Storage, manifest: CheckpointManifest, keep: int) -> list[str]:
    """Make a checkpoint valid and tidy up behind it.

    Returns:
        names of older checkpoints and leftovers that were deleted.

    Raises:
        DamagedError: a file is not as it was reported; the checkpoint is not valid.
        StorageError: the manifest could not be written (the checkpoint is not valid), or something could not be
            deleted (it is valid).
    """
    write_manifest(storage, manifest)
    return retain(storage, manifest, keep)
