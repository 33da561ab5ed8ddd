"""Copying an archive from where `spec.code` says to a local file, and checking its digest before anything reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from heterps_runtime.contract import CODE_MOST_ARCHIVE_BYTES
from heterps_runtime.user_code.errors import CodeError

__all__ = ["copy_checked", "file_chunks", "stored_chunks"]

_CHUNK = 1 << 20
_AGAIN = "submit the code again (heterps submit --code)"


def copy_checked(chunks: Iterable[bytes], to: Path, sha256: str, where: str) -> None:
    """Write an archive to a file.

    Args:
        chunks: its contents in order.
        to: the new file.
        sha256: the digest that it must have, hexadecimal.
        where: where it comes from, for messages.

    Raises:
        CodeError: it is too large, or has another digest.
    """
    digest, size = hashlib.sha256(), 0
    with open(to, "xb") as file:
        for chunk in chunks:
            size += len(chunk)
            if size > CODE_MOST_ARCHIVE_BYTES:
                raise CodeError(f"spec.code: {where} has more than {CODE_MOST_ARCHIVE_BYTES} bytes; exclude data")
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != sha256:
        raise CodeError(
            f"spec.code: {where} has the SHA-256 {digest.hexdigest()}, but the job names {sha256}: it is damaged or "
            f"was replaced; {_AGAIN}"
        )


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield the contents of a file.

    Raises:
        CodeError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise CodeError(f"spec.code: {path} cannot be read ({error.strerror}); {_AGAIN}") from error


def stored_chunks(uri: str) -> Iterator[bytes]:
    """Yield the contents of a file or an object.

    Args:
        uri: path, or address of a store.

    Raises:
        CodeError: there is no such object.
        StorageAddressError: it is no address.
        StorageError: the storage cannot be read.
    """
    from heterps_runtime.storage import Storage, StorageError

    storage = Storage.open(uri)
    try:
        with storage.open_file("") as file, storage.reading(""):
            while chunk := file.read(_CHUNK):
                yield chunk
    except StorageError as error:
        if not error.missing:
            raise
        raise CodeError(f"spec.code: there is nothing at {storage.address}; {_AGAIN}") from error
