"""Unpacking a zip archive whose contents are not trusted.

Everything is checked before the first file is written: names stay in the folder, links lead to files of the archive,
sizes and counts are bounded, and entries do not hide each other. The archive's own times and owners are ignored.
"""

from __future__ import annotations

import os
import posixpath
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from heterps_runtime.contract import CODE_MOST_BYTES, CODE_MOST_FILES
from heterps_runtime.user_code.errors import CodeError

__all__ = ["unpack"]

_CHUNK = 1 << 16
_LONGEST_NAME = 1024  # bytes; Linux allows 4096 for a whole path
_LONGEST_PART = 255  # bytes, as on all usual file systems
_LONGEST_QUOTE = 200  # characters of a name in a message
_ENCRYPTED = 1  # bit of an entry's flags
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What `zipfile` raises for archives that are none.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


@dataclass
class _Contents:
    """The entries of an archive, by name."""

    files: dict[str, zipfile.ZipInfo] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    links: dict[str, zipfile.ZipInfo] = field(default_factory=dict)


def unpack(archive: Path | BinaryIO, folder: Path, most_bytes: int = CODE_MOST_BYTES) -> int:
    """Unpack an archive into a folder; return the number of its files.

    Files get mode 0644, or 0755 if their owner may execute them.

    Args:
        archive: the zip archive, a path or an open file.
        folder: exists and is empty.
        most_bytes: limit of all files together.

    Raises:
        CodeError: the archive is damaged, unsafe or too large. The folder may hold a part of it.
        OSError: the folder cannot be written.
    """
    try:
        opened = zipfile.ZipFile(archive)
    except _BROKEN as error:
        raise CodeError(f"the code is no zip archive ({error}); pack it again with heterps submit --code") from error
    with opened:
        contents = _checked(opened, most_bytes)
        targets = {name: _target(opened, info) for name, info in contents.links.items()}
        for name in sorted(contents.folders):
            _make(folder / name)
        for name, info in contents.files.items():
            _make((folder / name).parent)
            _write(opened, info, folder / name)
        for name, target in targets.items():
            _make((folder / name).parent)
            os.symlink(target, folder / name)
    return len(contents.files)


def _checked(archive: zipfile.ZipFile, most_bytes: int) -> _Contents:
    """Sort the entries of an archive into files, folders and links, all of them safe to create."""
    infos = archive.infolist()
    if len(infos) > 2 * CODE_MOST_FILES:  # as many folders as files
        raise CodeError(f"the code has {len(infos)} entries, more than {2 * CODE_MOST_FILES}; exclude some")
    contents, size = _Contents(), 0
    for info in infos:
        name = _safe_name(info)
        if name in contents.files or name in contents.links or (name in contents.folders and not info.is_dir()):
            raise CodeError(f"the code has two entries of the name {_quote(name)}; pack it again")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
            raise CodeError(f"{_quote(name)} is encrypted or compressed by an unknown method; use deflate")
        if info.is_dir() or kind == stat.S_IFDIR:
            contents.folders.add(name)
            continue
        size += info.file_size
        if kind == stat.S_IFLNK:
            contents.links[name] = info
        elif kind in (0, stat.S_IFREG):
            contents.files[name] = info
        else:
            raise CodeError(f"{_quote(name)} is neither a file nor a folder nor a link; leave it out")
    if len(contents.files) + len(contents.links) > CODE_MOST_FILES:
        found = len(contents.files) + len(contents.links)
        raise CodeError(f"the code has {found} files, more than {CODE_MOST_FILES}; exclude some")
    if size > most_bytes:
        raise CodeError(f"the code has {size} bytes unpacked, more than {most_bytes}; exclude data and outputs")
    for name in (*contents.files, *contents.links, *contents.folders):
        for parent in _parents(name):
            if parent in contents.files or parent in contents.links:
                raise CodeError(f"{_quote(name)} lies in {_quote(parent)}, which is no folder; pack the code again")
    return contents


def _safe_name(info: zipfile.ZipInfo) -> str:
    """Return the relative path of an entry without a slash at its end."""
    name = info.filename.removesuffix("/")
    parts = name.split("/")
    if info.orig_filename != info.filename or "\0" in name:
        raise CodeError(f"{_quote(info.orig_filename)} has a character that no name may have; rename it")
    if any(part in ("", ".", "..") for part in parts):
        raise CodeError(f"{_quote(info.filename)} leads out of the folder or is no plain path; pack the code again")
    if len(os.fsencode(name)) > _LONGEST_NAME or any(len(os.fsencode(part)) > _LONGEST_PART for part in parts):
        raise CodeError(f"{_quote(name)} is too long; shorten it")
    return name


def _target(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    """Return the target of a link, which lies in the folder.

    `..` may stand only at its beginning: after another link, it would lead elsewhere than it reads.
    """
    text = b"".join(_read(archive, info, _LONGEST_NAME)).decode("utf-8", "replace")
    parts = text.split("/")
    depth = info.filename.count("/")
    up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if not text or "\0" in text or up > depth or any(part in ("", "..") for part in parts[up:]):
        raise CodeError(
            f"{_quote(info.filename)} is a link to {_quote(text)}, which leads out of the folder; "
            "replace it by the file"
        )
    return text


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    mode = 0o755 if (info.external_attr >> 16) & stat.S_IXUSR else 0o644
    with open(path, "xb") as file:
        for chunk in _read(archive, info, info.file_size):
            file.write(chunk)
        os.fchmod(file.fileno(), mode)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
    """Yield the contents of an entry.

    Raises:
        CodeError: they are damaged, or have another length than the entry says or more than `most` bytes.
    """
    size = 0
    try:
        with archive.open(info) as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > most:
                    break
                yield chunk
    except _BROKEN as error:
        raise CodeError(f"{_quote(info.filename)} is damaged ({error}); submit the code again") from error
    if size != info.file_size or size > most:
        raise CodeError(f"{_quote(info.filename)} is damaged: it has another length than it says; pack the code again")


def _quote(name: str) -> str:
    text = ascii(name)
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
