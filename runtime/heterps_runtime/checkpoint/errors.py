"""What can go wrong with a checkpoint, in the words that a user will read.

    CheckpointError
    ├── StorageError        the place could not be read or written: disk full, no permission, no network (transient)
    ├── StorageAddressError the path or address itself is wrong (the user's input)
    └── DamagedError        a file is there, but is not what was written: truncated, changed, incomplete

A `StorageError` may pass (training goes on, the last good checkpoint stays); a `DamagedError` does not, so an older
checkpoint is taken instead.
"""

from __future__ import annotations

import errno
import os
import shutil

from heterps_runtime.errors import HeterpsRuntimeError, TransientError, UserError

__all__ = ["CheckpointError", "DamagedError", "StorageAddressError", "StorageError"]


class CheckpointError(HeterpsRuntimeError):
    """Base of all errors of this package."""


class StorageAddressError(CheckpointError, UserError):
    """A path or URI that names no storage."""


class DamagedError(CheckpointError):
    """A file or checkpoint that is not what was written."""


class StorageError(CheckpointError, TransientError):
    """A failed operation on a storage.

    Attributes:
        path: full path or address of the file or folder concerned.
        errno: the operating system's error number, or None if the storage gave none.
    """

    def __init__(self, doing: str, path: str, reason: str, error_number: int | None = None) -> None:
        super().__init__(f"could not {doing} {path}: {reason}")
        self.path = path
        self.errno = error_number

    @property
    def missing(self) -> bool:
        """Whether the cause is that the file or folder is not there."""
        return self.errno == errno.ENOENT

    @classmethod
    def of(cls, doing: str, path: str, cause: Exception) -> StorageError:
        """Put an error of the operating system or of pyarrow into a plain sentence."""
        number = cause.errno if isinstance(cause, OSError) else None
        if number is None and isinstance(cause, FileNotFoundError):
            number = errno.ENOENT  # pyarrow raises it without a number
        if number in _FULL:
            return cls(doing, path, f"{_FULL[number]}{_free_space(path)}", number)
        if number in (errno.EEXIST, errno.ENOTDIR):
            return cls(doing, path, "a file stands where a folder is needed", number)
        if number is not None:
            return cls(doing, path, os.strerror(number).lower(), number)
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        return cls(doing, path, lines[0], None)  # clients of object stores add pages of detail after the first line


_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def _free_space(path: str) -> str:
    """Free space where `path` lies, as `" (3 MB free)"`; empty if the storage is not a local disk."""
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else ""
    if not folder:
        return ""
    return f" ({shutil.disk_usage(folder).free // 10**6} MB free)"
