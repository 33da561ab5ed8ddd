"""The folder of the cache: its locks, its limit, and the errors of its disk.

Each data set has a folder of its own there, with a `meta.json` whose shared lock shows that a process uses it. Locks
are `flock`s, which the kernel releases when a process ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from heterps_runtime.data.errors import DataCacheError

__all__ = ["META", "SAY_SECONDS", "Progress", "evict", "note", "open_folder", "open_or_make", "size_text"]

T = TypeVar("T")

#: Called with the fraction done (0 to 1) and a description for users.
Progress = Callable[[float, str], None]

#: The file of a data set's folder that is written last.
META = "meta.json"

_POLL_SECONDS = 0.1  # while another process builds
SAY_SECONDS = 1.0  # between messages


def open_or_make(
    directory: Path,
    name: str,
    progress: Progress,
    open_: Callable[[Path], T | None],
    make: Callable[[Path, IO[str]], None],
) -> T:
    """Open the folder of a data set; make it first if it is missing or damaged. One process makes it, others wait.

    Args:
        directory: of the cache.
        name: of the folder in it.
        progress: is told what another process does.
        open_: opens the folder; returns None if that is not possible.
        make: makes it, and writes its progress to the lock file (`note`).

    Raises:
        DataCacheError: the cache's folder cannot be written, or its disk is full.
    """
    folder = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f"{name}.lock", progress) as lock:
            opened = open_(folder)
            if opened is None:
                make(folder, lock)
                opened = open_(folder)
                assert opened is not None, f"{folder} was just made"
            return opened
    except OSError as error:
        raise _explained(error, directory) from error


def open_folder(folder: Path, version: int, read: Callable[[dict[str, Any]], T], progress: Progress) -> T | None:
    """Open a data set, whose folder is not evicted while the result exists.

    Args:
        folder: of the data set.
        version: of `meta.json` that this program reads.
        read: makes the result of the contents of `meta.json`.
        progress: is told if the folder is damaged or of another version.

    Returns:
        What `read` returns; None if there is no such folder, or a damaged one.
    """
    try:
        descriptor = os.open(folder / META, os.O_RDONLY)
    except FileNotFoundError:
        return None
    # Lock before reading: a locked folder is not evicted, and one evicted in the meantime is found to be missing.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        meta = json.loads((folder / META).read_text())
        if meta["version"] != version:
            raise ValueError(f"{META} has version {meta['version']}, this program reads version {version}")
        opened = read(meta)
    except (AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError, ValueError) as error:
        os.close(descriptor)
        progress(0.0, f"the data cache {folder} is damaged or of another version ({error}); building it again")
        return None
    weakref.finalize(opened, os.close, descriptor)  # which releases the lock
    os.utime(folder)  # the time of last use, for eviction
    return opened


def _explained(error: OSError, directory: Path) -> DataCacheError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataCacheError(
            f"spec.data.cache.directory: the disk of {directory} is full ({error.strerror}); free some space, "
            f"use a folder on another disk, or set spec.data.cache.maxBytes so that old data sets are removed"
        )
    return DataCacheError(
        f"spec.data.cache.directory: {directory} cannot be used: {error.strerror or error}; use a writable folder"
    )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[IO[str]]:
    """Hold a data set's lock. While another process holds it, report that process's progress."""
    with path.open("a+") as lock:
        said = -SAY_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - said >= SAY_SECONDS:
                    said = now
                    lock.seek(0)
                    text = lock.read().strip()
                    percent = int(text) if text.isdecimal() else 0
                    progress(percent / 100, f"waiting: another process is preparing the data ({percent} %)")
                time.sleep(_POLL_SECONDS)
        yield lock  # closing the file releases the lock, and so does the end of the process


def note(lock: IO[str], fraction: float) -> None:
    """Write the progress to a lock file, for waiting processes."""
    lock.seek(0)
    lock.truncate()
    lock.write(f"{100 * fraction:.0f}\n")
    lock.flush()


def evict(directory: Path, allowed: int, keep: Path, progress: Progress) -> int:
    """Remove data sets, least recently used first, until they take at most `allowed` bytes.

    Args:
        directory: of the cache.
        allowed: bytes.
        keep: a folder that is neither counted nor removed, nor its unfinished build.
        progress: is told what is removed.

    Returns:
        The bytes that remain, more than `allowed` if they are in use.
    """
    for leftover in directory.glob("*.building"):
        if leftover.stem != keep.name:
            _remove_unless_locked(leftover, directory / f"{leftover.stem}.lock")  # of a killed build
    used, sizes = {}, {}
    for meta in directory.glob(f"*/{META}"):
        if meta.parent.name in (keep.name, f"{keep.name}.building"):
            continue
        with suppress(FileNotFoundError):  # another process may evict at the same time
            used[meta.parent] = meta.parent.stat().st_mtime_ns
            sizes[meta.parent] = sum(f.stat().st_size for f in meta.parent.iterdir())
    for folder in sorted(sizes, key=lambda f: used[f]):
        if sum(sizes.values()) <= allowed:
            break
        if _remove_unless_locked(folder, folder / META):
            del sizes[folder]
            progress(0.0, f"removed the data set {folder.name} from the cache, to stay within maxBytes")
    return sum(sizes.values())


def _remove_unless_locked(folder: Path, lock_file: Path) -> bool:
    """Remove a folder unless another process holds its lock; returns whether it is gone."""
    try:
        with lock_file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return not folder.exists()
    return True


def size_text(count: int) -> str:
    """A number of bytes in the units of manifests."""
    value, unit = float(count), ""
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if value < 1024 or unit == "Ti":
            break
        value /= 1024
    return f"{value:.4g}{unit or ' bytes'}"
