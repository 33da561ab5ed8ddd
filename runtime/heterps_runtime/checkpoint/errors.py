"""Errors of checkpoints, worded for users.

    CheckpointError
    ├── StorageError        the storage cannot be read or written: disk full, no permission, no network (transient)
    ├── StorageAddressError the path or address itself is wrong (the user's input)
    ├── DamagedError        a file differs from what was written: truncated, changed, incomplete
    └── FencedError         another run has taken the checkpoints over

After a `StorageError`, training continues and the last good checkpoint stays. After a `DamagedError`, an older
checkpoint is used. After a `FencedError`, this run of the job ends: it must not change the checkpoints any more.
"""

from __future__ import annotations

import errno
import os
import shutil

from heterps_runtime.errors import HeterpsRuntimeError, TransientError, UserError

__all__ = ["CheckpointError", "DamagedError", "FencedError", "StorageAddressError", "StorageError"]


class CheckpointError(HeterpsRuntimeError):
    """Base class of the errors of this package."""


class StorageAddressError(CheckpointError, UserError):
    """A path or URI that does not name a storage."""


class DamagedError(CheckpointError):
    """A file or checkpoint differs from what was written."""


class FencedError(CheckpointError):
    """Another run of a job has taken the checkpoints over, so that this one must not change them."""


class StorageError(CheckpointError, TransientError):
    """A failed operation on a storage.

    Attributes:
        errno: the operating system's error number; None if the storage reported none.
    """

    def __init__(self, doing: str, path: str, reason: str, error_number: int | None = None) -> None:
        super().__init__(f"could not {doing} {path}: {reason}")
        self.errno = error_number

    @property
    def missing(self) -> bool:
        """Whether the file or folder does not exist."""
        return self.errno == errno.ENOENT

    @classmethod
    def of(cls, doing: str, path: str, cause: Exception) -> StorageError:
        """Translate an error of the operating system or of pyarrow."""
        number = cause.errno if isinstance(cause, OSError) else None
        if number is None and isinstance(cause, FileNotFoundError):
            number = errno.ENOENT  # pyarrow raises it without a number
        if number in _FULL:
            return cls(doing, path, f"{_FULL[number]}{_free_space(path)}", number)
        if number in (errno.EEXIST, errno.ENOTDIR):
            return cls(doing, path, "a file exists where a folder is needed", number)
        if number is not None:
            return cls(doing, path, os.strerror(number).lower(), number)
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        return cls(doing, path, lines[0], None)  # object-store clients add pages of detail


_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def _free_space(path: str) -> str:
    """The free space around `path`, as `" (3 MB free)"`; empty if the storage is not a local disk."""
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else ""
    if not folder:
        return ""
    return f" ({shutil.disk_usage(folder).free // 10**6} MB free)"
