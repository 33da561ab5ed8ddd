"""Replacing an exported model by a newer one.

A folder on a disk is replaced in one step where the file system can exchange two names (on Linux: ext4, XFS, Btrfs,
tmpfs). A reader, or a crash, then sees the older model or the new one. Elsewhere the older one is moved aside first. A
crash between the two moves leaves it there as `.NAME.replaced`, from which the next export brings it back.

Object stores have neither. There, model.json is deleted first and written last, and without it there is no model.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from heterps_runtime.checkpoint.storage import Storage
from heterps_runtime.disk import sync_folder
from heterps_runtime.processes.work import WorkCounter

__all__ = ["DESCRIPTION", "files_below", "recover", "replace_folder", "upload"]

DESCRIPTION = "model.json"
_CHUNK_BYTES = 8 << 20
_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and below, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def recover(final: Path) -> None:
    """Bring back a model that a crash has left aside."""
    if _aside(final).exists() and not final.exists():
        _aside(final).rename(final)
    shutil.rmtree(_aside(final), ignore_errors=True)


def replace_folder(building: Path, final: Path, work: WorkCounter, check: Callable[[], None]) -> None:
    """Flush a finished folder, and give it its final name; an older one there is deleted.

    Args:
        building: beside `final`; the caller removes what is left of it.
        final: the name.
        work: counts the bytes that are flushed.
        check: raises if this run must not replace the older folder; called right before.

    Raises:
        OSError: a file cannot be flushed or a folder cannot be renamed.
    """
    _sync(building, work)
    check()
    if not final.exists():
        building.rename(final)
    elif not _exchange(building, final):
        final.rename(_aside(final))
        try:
            building.rename(final)
        except OSError:
            recover(final)
            raise
    sync_folder(final.parent)
    shutil.rmtree(_aside(final), ignore_errors=True)


def upload(building: Path, target: Storage, check: Callable[[], None]) -> None:
    """Copy a finished folder to an object store.

    Args:
        building: the folder.
        target: where its files go.
        check: raises if this run must not change the target; called before each change.

    Raises:
        StorageError: a file cannot be written.
    """
    check()
    target.delete(DESCRIPTION)
    for path in sorted(files_below(building), key=lambda p: p.name == DESCRIPTION):
        with path.open("rb") as stream:
            check()
            name = path.relative_to(building).as_posix()
            target.write_atomic(name, iter(lambda s=stream: s.read(_CHUNK_BYTES), b""))  # type: ignore[misc]


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; returns False if the file system cannot (renameat2(2), Linux)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def _sync(folder: Path, work: WorkCounter) -> None:
    """Flush files and folders to the disk; mapped pages are written back at some later time otherwise."""
    files = files_below(folder)
    for path in files:
        with path.open("r+b") as stream:
            size = path.stat().st_size
            if size:
                with mmap.mmap(stream.fileno(), size) as pages:
                    for start in range(0, size, _CHUNK_BYTES):  # in pieces, so that progress is seen
                        count = min(_CHUNK_BYTES, size - start)
                        pages.flush(start, count)
                        work.add(count)
            os.fsync(stream.fileno())
    for path in {folder, *(path.parent for path in files)}:
        sync_folder(path)
