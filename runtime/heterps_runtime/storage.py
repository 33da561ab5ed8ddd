"""A folder, local or in an object store, in which each file is written completely or not at all.

Names are relative to one root. Reading, listing and deleting use `pyarrow.fs` (`filesystems.py`). Writing depends on
the guarantees of the file system:

- local disks: write a temporary file beside the target, fsync, rename, fsync the folder and new folders' parents. This
  survives a power failure.
- HDFS: write a temporary file, then move it.
- S3, GCS: one put; an object appears when its upload is complete. pyarrow also completes an upload whose producer has
  failed, because its streams cannot be abandoned (apache/arrow#40502), so such an object is deleted again.
- Azure: the same, but pyarrow begins with an empty object, which replaces an older one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import fs as pafs

from heterps_runtime.disk import sync_folder
from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.filesystems import AddressError, first_line, open_address
from heterps_runtime.processes.work import WorkCounter

__all__ = ["Chunk", "Storage", "StorageAddressError", "StorageError"]

Chunk = bytes | bytearray | memoryview

PARTIAL = ".partial-"  # marks temporary names: `.rows-0.safetensors.partial-PID-THREAD`
_ONE_PUT = frozenset({"s3", "gcs", "abfs"})  # pyarrow's names of object stores
_ERRORS = (OSError, pyarrow.ArrowException)
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


class StorageAddressError(UserError):
    """A path or URI that does not name a storage."""


class StorageError(TransientError):
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
        if number == errno.ENOENT and doing == "write":  # folders are made: it is the bucket of an object store
            return cls(doing, path, "there is no such bucket", number)
        if number is not None:
            return cls(doing, path, os.strerror(number).lower(), number)
        return cls(doing, path, first_line(cause), None)


class Storage:
    """A folder of files, local or remote. Thread-safe.

    Attributes:
        address: the root, absolute and without options, for messages.
        local: whether the files are on this machine's file system.
        work: counts the bytes that are read and written.
    """

    def __init__(self, filesystem: Any, root: str, address: str, work: WorkCounter | None = None) -> None:
        self.work = work or WorkCounter()
        self._filesystem = filesystem
        self._root = root.rstrip("/") or "/"
        self.address = address.rstrip("/") or "/"
        self.local = isinstance(filesystem, pafs.LocalFileSystem)

    @classmethod
    def open(cls, path_or_uri: str | Path, work: WorkCounter | None = None) -> Storage:
        """Open a local path or an address such as `file://`, `s3://`, `gs://`, `abfs://` or `hdfs://`.

        The folder is created with its first file.

        Args:
            path_or_uri: the root.
            work: counts the bytes that are read and written; None: a counter of its own.

        Raises:
            StorageAddressError: the text is empty or contains credentials, its scheme is unknown, or its client cannot
                be loaded.
        """
        text = os.fspath(path_or_uri)
        if not text:
            raise StorageAddressError(
                "the address of a storage must not be empty; give a folder or an address such as s3://..."
            )
        try:
            filesystem, path = open_address(text)
        except AddressError as error:
            raise StorageAddressError(f"the address of a storage: {error}") from None
        local = isinstance(filesystem, pafs.LocalFileSystem)
        return cls(filesystem, path, path if local else text.partition("?")[0], work)

    def path(self, name: str) -> str:
        """Full path or address of `name`."""
        return f"{self.address}/{name}" if name else self.address

    def write_atomic(self, name: str, chunks: Chunk | Iterable[Chunk]) -> None:
        """Write a file atomically: afterwards `name` has all chunks, or is unchanged, or is missing in an object store.

        In Azure it may also be empty, if the process is killed.

        Args:
            name: relative name; missing folders are created.
            chunks: the contents, or its parts in order. Exceptions of the iterator are passed on after cleaning up.

        Raises:
            StorageError: the disk is full, permission is missing, the network failed, ...
        """
        parts = (chunks,) if isinstance(chunks, bytes | bytearray | memoryview) else chunks
        if self.local:
            self._write_local(name, parts)
        elif self._filesystem.type_name in _ONE_PUT:
            self._write_stream(name, self._inner(name), parts)
        else:
            folder, _, base = name.rpartition("/")
            temporary = _temporary_name(base)
            inner = self._inner(f"{folder}/{temporary}" if folder else temporary)
            with self._translated("write", name):
                self._filesystem.create_dir(self._inner(folder), recursive=True)
            self._write_stream(name, inner, parts)
            with self._translated("write", name):
                self._filesystem.move(inner, self._inner(name))

    def read(self, name: str) -> bytes:
        """The contents of a small file.

        Raises:
            StorageError: the file cannot be read, or does not exist (`error.missing`).
        """
        with self._translated("read", name), self._filesystem.open_input_stream(self._inner(name)) as stream:
            contents: bytes = stream.read()
        self.work.add(len(contents))
        return contents

    def open_file(self, name: str) -> Any:
        """A `pyarrow.NativeFile` for random access, memory-mapped if local.

        Raises:
            StorageError: the file cannot be opened.
        """
        with self._translated("read", name):
            if self.local:
                return pyarrow.memory_map(self._inner(name), "r")
            return self._filesystem.open_input_file(self._inner(name))

    def reading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A context for reading an open file, which turns errors into `StorageError`."""
        return self._translated("read", name)

    def size(self, name: str) -> int | None:
        """Size of a file in bytes; None if there is no such file."""
        with self._translated("look at", name):
            info = self._filesystem.get_file_info(self._inner(name))
        return int(info.size) if info.type == pafs.FileType.File else None

    def exists(self, name: str) -> bool:
        """Whether a file or folder of this name exists."""
        with self._translated("look at", name):
            info = self._filesystem.get_file_info(self._inner(name))
        return bool(info.type != pafs.FileType.NotFound)

    def files(self, folder: str = "") -> list[str]:
        """Sorted names of all files in a folder and below; empty if there is no such folder."""
        return sorted(name for name, size in self._select(folder, recursive=True) if size is not None)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Sizes of all files in a folder and below, in bytes, by name in order; empty if there is no such folder."""
        found = self._select(folder, recursive=True)
        return {name: size for name, size in sorted(found, key=lambda item: item[0]) if size is not None}

    def folders(self) -> list[str]:
        """Sorted names of the folders directly in the root; empty if the root does not exist."""
        if self._filesystem.type_name == "gcs":  # pyarrow's listing of one level leaves folders out
            return sorted({name.partition("/")[0] for name in self.files() if "/" in name})
        return sorted(name for name, size in self._select("", recursive=False) if size is None)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        if self.size(name) is not None:
            self._delete(name, self._filesystem.delete_file)

    def delete_dir(self, name: str) -> None:
        """Delete a folder and its contents if it exists."""
        assert name, "the root itself is never deleted"
        if self.exists(name):
            self._delete(name, self._filesystem.delete_dir)

    def _delete(self, name: str, delete: Callable[[str], None]) -> None:
        try:
            with self._translated("delete", name):
                delete(self._inner(name))
        except StorageError as error:
            # Another process was faster, or the folder was that of its files alone: pyarrow's client of GCS deletes
            # them, and then misses an object of the folder's name.
            if not error.missing:
                raise

    def _inner(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _select(self, prefix: str, recursive: bool) -> Iterator[tuple[str, int | None]]:
        """Yield (name relative to the root, size in bytes, or None of a folder)."""
        selector = pafs.FileSelector(self._inner(prefix), allow_not_found=True, recursive=recursive)
        with self._translated("list", prefix):
            infos = self._filesystem.get_file_info(selector)
        skip = len(self._inner("").rstrip("/")) + 1
        for info in infos:
            is_folder = info.type == pafs.FileType.Directory
            yield info.path[skip:].rstrip("/"), None if is_folder else int(info.size or 0)

    @contextlib.contextmanager
    def _translated(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise StorageError.of(doing, self.path(name), error) from error

    def _write_local(self, name: str, parts: Iterable[Chunk]) -> None:
        target = self._inner(name)
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, _temporary_name(os.path.basename(target)))
        iterator = iter(parts)
        try:
            with self._translated("write", name):
                _make_folders(folder)
                stream = open(temporary, "wb", buffering=0)  # noqa: SIM115  # closed below, before the rename
            with stream:
                # Errors of the iterator are passed on: only those of writing are translated.
                for part in iterator:
                    with self._translated("write", name):
                        self._write_fully(stream.fileno(), part)
                with self._translated("write", name):
                    os.fsync(stream.fileno())
            with self._translated("write", name):
                os.replace(temporary, target)
                sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _write_fully(self, descriptor: int, part: Chunk) -> None:
        """Write all of `part`; one call may write less than it is given (signals, nearly full disks)."""
        view = memoryview(part).cast("B")
        while view:
            written = os.write(descriptor, view)
            self.work.add(written)
            view = view[written:]

    def _write_stream(self, name: str, inner: str, parts: Iterable[Chunk]) -> None:
        with self._translated("write", name):
            stream = self._filesystem.open_output_stream(inner)
        try:
            with self._translated("write", name), stream:
                for part in parts:
                    stream.write(part)
                    self.work.add(len(part))
        except BaseException:
            with contextlib.suppress(*_ERRORS):
                self._filesystem.delete_file(inner)
            raise


def _temporary_name(base: str) -> str:
    return f".{base}{PARTIAL}{os.getpid()}-{threading.get_ident()}"


def _make_folders(folder: str) -> None:
    """Create a folder and its parents, and flush the parent of each new one: it has the new folder's name."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folders(parent)
    with contextlib.suppress(FileExistsError):  # created by another process in the meantime, or a file: see `open`
        os.mkdir(folder)
    sync_folder(parent)


def _free_space(path: str) -> str:
    """The free space around `path`, as `" (3 MB free)"`; empty if the storage is not a local disk."""
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else ""
    if not folder:
        return ""
    return f" ({shutil.disk_usage(folder).free // 10**6} MB free)"
