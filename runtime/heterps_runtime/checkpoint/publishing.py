"""Publishing a folder, such as an exported model, in place of an older one.

A folder on a disk is replaced in one step where the file system can exchange two names (on Linux: ext4, XFS, Btrfs,
tmpfs). A reader, or a crash, then sees the older model or the new one. Elsewhere the older one is moved aside first. A
crash between the two moves leaves it there as `.NAME.replaced`, from which the next export brings it back.

Object stores have neither. There, the folder's description (model.json) is deleted first and written last, and without
it there is no model.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heterps_runtime.disk import sync_folder
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.storage import Storage, StorageError

__all__ = ["MODEL_DESCRIPTION", "TENSORS_FILE", "list_files", "publication", "table_file"]

MODEL_DESCRIPTION = "model.json"
TENSORS_FILE = "model.safetensors"
_CHUNK_BYTES = 8 << 20
_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>


@contextmanager
def publication(target: Storage, description: str, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """An empty folder to be filled, which becomes `target` at the end of the context; nothing is left of it otherwise.

    Args:
        target: the root is replaced.
        description: name of the file in the folder without which there is nothing to read.
        check: raises if this process must not replace what is there; called right before that.

    Raises:
        StorageError: a file cannot be written or renamed; a local `target` is unchanged.
    """
    if target.local:
        final = Path(target.address)
        building = final.with_name(f".{final.name}.exporting")
    else:
        building = Path(tempfile.mkdtemp(prefix="heterps-export-"))
    try:
        if target.local:
            _recover(final)
        shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
        building.mkdir(parents=True)
        yield building
        if target.local:
            _replace_folder(building, final, target.work, check)
        else:
            _upload(building, target, description, check)
    except OSError as error:
        raise StorageError.of("write", target.address, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def table_file(name: str) -> str:
    """The file of a table; its name, which may contain any character, is quoted."""
    return f"tables/{quote(name, safe='')}.safetensors"


def list_files(folder: Path, work: WorkCounter) -> list[dict[str, Any]]:
    """Name, size and checksum of every file in a folder and below, for a description."""
    listed = []
    for path in _files_below(folder):
        checksum = 0
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                checksum = zlib.crc32(chunk, checksum)
                work.add(len(chunk))
        name = path.relative_to(folder).as_posix()
        listed.append({"name": name, "bytes": path.stat().st_size, "checksum": f"crc32:{checksum:08x}"})
    return listed


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _recover(final: Path) -> None:
    """Bring back a folder that a crash has left aside."""
    if _aside(final).exists() and not final.exists():
        _aside(final).rename(final)
    shutil.rmtree(_aside(final), ignore_errors=True)


def _replace_folder(building: Path, final: Path, work: WorkCounter, check: Callable[[], None]) -> None:
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
            _recover(final)
            raise
    sync_folder(final.parent)
    shutil.rmtree(_aside(final), ignore_errors=True)


def _upload(building: Path, target: Storage, description: str, check: Callable[[], None]) -> None:
    """Copy a finished folder to an object store.

    Args:
        building: the folder.
        target: where its files go.
        description: name of the file that goes last.
        check: raises if this run must not change the target; called before each change.

    Raises:
        StorageError: a file cannot be written.
    """
    check()
    target.delete(description)
    names = {path.relative_to(building).as_posix(): path for path in _files_below(building)}
    for name, path in sorted(names.items(), key=lambda item: item[0] == description):
        with path.open("rb") as stream:
            check()
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
    files = _files_below(folder)
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
