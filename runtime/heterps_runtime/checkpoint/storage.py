"""A folder, on this machine or in an object store, in which a file is either there in full or not at all.

Everything above this module knows names relative to one root. Reading, listing and deleting go through
`pyarrow.fs`, which speaks to local disks, S3, GCS, Azure and HDFS alike. Writing differs by what each can promise:

- local disks: a temporary file beside the target, fsync, rename, fsync of the folder. After a power cut the name
  stands for all bytes or for none.
- object stores: one put; an object shows only when its upload is complete. pyarrow also completes an upload that broke
  off in the middle, because its streams cannot be abandoned (apache/arrow#40502), so a broken one is deleted again.
- other file systems (HDFS): a temporary file, then a move.

`format.py` writes tensors through it; `manifest.py` decides which files form a valid checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow
from pyarrow import fs as pafs

from heterps_runtime.checkpoint.errors import StorageAddressError, StorageError

__all__ = ["Chunk", "Storage", "StoredFile"]

Chunk = bytes | bytearray | memoryview

PARTIAL = ".partial-"  # marks temporary names: `.rows-0.safetensors.partial-PID-THREAD`
_ONE_PUT = frozenset({"s3", "gcs", "abfs"})  # pyarrow's names of stores in which an upload appears all at once
_ERRORS = (OSError, pyarrow.ArrowException)


@dataclass(frozen=True)
class StoredFile:
    """A file as a listing shows it."""

    name: str  # relative to the storage's root, with "/"
    bytes: int


class Storage:
    """A folder of files, local or remote. Safe to use from several threads.

    Attributes:
        address: the root as the user named it, made absolute and without passwords or options; used in messages.
        local: whether the files lie on this machine's file system.
    """

    def __init__(self, filesystem: Any, root: str, address: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/") or "/"
        self.address = address.rstrip("/") or "/"
        self.local = isinstance(filesystem, pafs.LocalFileSystem)

    @classmethod
    def open(cls, path_or_uri: str | Path) -> Storage:
        """Open a local path or an address such as `file://`, `s3://`, `gs://`, `abfs://` or `hdfs://`.

        The folder need not exist yet; it appears with the first file.

        Raises:
            StorageAddressError: the text is empty, of an unknown scheme, or its client cannot be loaded.
        """
        text = os.fspath(path_or_uri)
        if not text:
            raise StorageAddressError(
                "checkpoint path: must not be empty; give a folder or an address such as s3://..."
            )
        if "://" not in text:
            path = os.path.abspath(text)
            return cls(pafs.LocalFileSystem(), path, path)
        parts = urlsplit(text)
        # `s3://KEY:SECRET@bucket/path?endpoint_override=...` is allowed; messages go to logs and objects' conditions.
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme == "s3" and "allow_delayed_open" not in parts.query:
            # Files below one part's size (10 MB) then take one request instead of a multipart upload's three.
            text += f"{'&' if parts.query else '?'}allow_delayed_open=true"
        try:
            filesystem, path = pafs.FileSystem.from_uri(text)
        except (*_ERRORS, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].replace(text, address)
            raise StorageAddressError(
                f"cannot open {address}: {reason}; use a local path or file://, s3://, gs://, abfs:// or hdfs://"
            ) from None
        return cls(filesystem, path, path if isinstance(filesystem, pafs.LocalFileSystem) else address)

    def path(self, name: str) -> str:
        """Full path or address of `name`, for messages (and, if `local`, for the operating system)."""
        return f"{self.address}/{name}" if name else self.address

    def write_atomic(self, name: str, chunks: Chunk | Iterable[Chunk]) -> None:
        """Write a file so that `name` either holds all chunks or is as it was before.

        Args:
            name: relative name; folders in it are created.
            chunks: the contents, or its parts in order. What the iterator raises is passed on, after cleaning up.

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
        """The whole contents of a small file.

        Raises:
            StorageError: it cannot be read; `error.missing` tells whether it is not there.
        """
        with self._translated("read", name), self._filesystem.open_input_file(self._inner(name)) as stream:
            contents: bytes = stream.read()
        return contents

    def open_file(self, name: str) -> Any:
        """A `pyarrow.NativeFile` for random access: memory-mapped if local, ranged reads otherwise.

        Raises:
            StorageError: it cannot be opened.
        """
        with self._translated("read", name):
            if self.local:
                return pyarrow.memory_map(self._inner(name), "r")
            return self._filesystem.open_input_file(self._inner(name))

    def reading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Context in which an opened file is read: errors come out as `StorageError`."""
        return self._translated("read", name)

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None if there is no such file."""
        with self._translated("look at", name):
            info = self._filesystem.get_file_info(self._inner(name))
        return int(info.size) if info.type == pafs.FileType.File else None

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of this name."""
        with self._translated("look at", name):
            info = self._filesystem.get_file_info(self._inner(name))
        return bool(info.type != pafs.FileType.NotFound)

    def files(self, prefix: str = "") -> list[StoredFile]:
        """All files in a folder and below, by name; empty if there is no such folder."""
        found = self._select(prefix, recursive=True)
        return sorted((f for f, folder in found if not folder), key=lambda f: f.name)

    def folders(self, prefix: str = "") -> list[str]:
        """Names (relative to the root) of the folders directly in a folder; empty if there is no such folder."""
        return sorted(f.name for f, folder in self._select(prefix, recursive=False) if folder)

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if it is not there."""
        if self.size(name) is not None:
            with self._translated("delete", name):
                self._filesystem.delete_file(self._inner(name))

    def delete_dir(self, name: str) -> None:
        """Delete a folder with all it holds; nothing happens if it is not there."""
        assert name, "the root itself is never deleted"
        if self.exists(name):
            with self._translated("delete", name):
                self._filesystem.delete_dir(self._inner(name))

    def _inner(self, name: str) -> str:
        """The name as the file system wants it."""
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _select(self, prefix: str, recursive: bool) -> Iterator[tuple[StoredFile, bool]]:
        selector = pafs.FileSelector(self._inner(prefix), allow_not_found=True, recursive=recursive)
        with self._translated("list", prefix):
            infos = self._filesystem.get_file_info(selector)
        skip = len(self._inner("").rstrip("/")) + 1
        for info in infos:
            yield StoredFile(info.path[skip:].rstrip("/"), int(info.size or 0)), info.type == pafs.FileType.Directory

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
                os.makedirs(folder, exist_ok=True)
                stream = open(temporary, "wb", buffering=0)  # noqa: SIM115  # closed below, before the rename
            with stream:
                # The producer's own errors must stay its own: only the writing is translated.
                for part in iterator:
                    with self._translated("write", name):
                        _write_fully(stream.fileno(), part)
                with self._translated("write", name):
                    os.fsync(stream.fileno())
            with self._translated("write", name):
                os.replace(temporary, target)
                _sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _write_stream(self, name: str, inner: str, parts: Iterable[Chunk]) -> None:
        try:
            with self._translated("write", name):
                stream = self._filesystem.open_output_stream(inner)
            with self._translated("write", name), stream:
                for part in parts:
                    stream.write(part)
        except BaseException:
            with contextlib.suppress(*_ERRORS):
                self._filesystem.delete_file(inner)
            raise


def _temporary_name(base: str) -> str:
    return f".{base}{PARTIAL}{os.getpid()}-{threading.get_ident()}"


def _write_fully(descriptor: int, part: Chunk) -> None:
    """Write all of `part`; the operating system may take less than it is given (signals, nearly full disks)."""
    view = memoryview(part).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: str) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
