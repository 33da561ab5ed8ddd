"""One state file: named arrays in the safetensors layout, written as a stream and read in slices.

A file is the header's length in eight bytes, a JSON header, and the bytes of the arrays
(https://huggingface.co/docs/safetensors). The format needs no pickle and is readable from many languages. The place of
an array is known before its bytes are, so a file is written without a second copy in memory. The safetensors library
builds the whole file in memory first, which would double a shard's memory at each checkpoint.

Rows are written in pieces that are copied while the file is being written: arrays `group-16/0/keys`, `group-16/0/rows`
and `group-16/0/state/sum` have the first piece of the rows of dimension 16. If there is only one, they are
`group-16/keys` and so on.

The header's metadata has the version of this layout and the commit that the state belongs to, so that a file of another
step cannot get into a checkpoint.

A CRC-32 of the whole file is computed on the way. It detects truncation and bit rot, not tampering. It was chosen for
its speed, since restoring waits for it: 3.5 GB/s per core, where SHA-256 reaches 1.5 GB/s.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError, check_version

__all__ = [
    "DTYPES",
    "FileEntry",
    "Origin",
    "TensorFile",
    "TensorSpec",
    "checksum_of",
    "create_tensor_file",
    "specs_of",
    "verify_file",
    "wide_first",
    "write_stream",
    "write_tensors",
]

Array = npt.NDArray[Any]

_VERSION = 3  # of a state file: 3 with pieces of parameters, 2 with rows in several pieces, 1 without either
_CHUNK_BYTES = 8 << 20  # few system calls, yet small against a shard's memory
_MAX_HEADER_BYTES = 100_000_000  # the safetensors library refuses longer headers
_MAX_AXES = 32  # of an array; some releases of NumPy allow more
_MAX_BYTES = 2**63 - 1  # of an array, NumPy's limit
_NAMES: dict[np.dtype[Any], str] = {
    np.dtype("<f8"): "F64",
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("<i8"): "I64",
    np.dtype("<i4"): "I32",
    np.dtype("<i2"): "I16",
    np.dtype("i1"): "I8",
    np.dtype("<u8"): "U64",
    np.dtype("<u4"): "U32",
    np.dtype("<u2"): "U16",
    np.dtype("u1"): "U8",
    np.dtype("?"): "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
DTYPES = tuple(_NAMES)  # of arrays that a file can have


@dataclass(frozen=True)
class Origin:
    """The commit that a state belongs to."""

    step: int  # number of committed steps
    lineage: int  # how often the members had restored a checkpoint, or started from scratch

    def __str__(self) -> str:
        return f"step {self.step}, lineage {self.lineage}"


@dataclass(frozen=True)
class FileEntry:
    """A state file as the manifest lists it."""

    name: str  # relative to its folder
    bytes: int
    checksum: str  # "crc32:" and eight hexadecimal digits, over the whole file
    role: str  # "rows" | "dense" | "buffers"
    index: int = 0  # of the shard for rows, of the stage otherwise
    added: int | None = None  # by how many rows the shard has grown since its file before; None: all, or no rows
    folder: str = ""  # of the earlier checkpoint that wrote it; empty: the checkpoint's own
    origin: Origin | None = None  # its commit, if an earlier checkpoint wrote it

    def earlier(self, folder: str, origin: Origin) -> FileEntry:
        """The same file as a later checkpoint lists it.

        Args:
            folder: of the checkpoint that lists it so.
            origin: of that checkpoint.
        """
        return self if self.folder else replace(self, folder=folder, origin=origin)


@dataclass(frozen=True)
class TensorSpec:
    """Type, shape and place of one array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0  # offset of the first byte in the file

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def item_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def specs_of(arrays: Mapping[str, Array]) -> dict[str, TensorSpec]:
    """Types and shapes of arrays.

    Raises:
        ValueError: an array's type cannot be stored.
    """
    return {key: TensorSpec(_little_endian(key, value.dtype), value.shape) for key, value in arrays.items()}


def wide_first(specs: Mapping[str, TensorSpec]) -> list[str]:
    """The names in an order that aligns each array, as in the safetensors library: wide types first."""
    return sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))


def write_tensors(
    storage: Storage,
    folder: str,
    name: str,
    arrays: Mapping[str, Array],
    *,
    origin: Origin,
    role: str,
    index: int = 0,
    version: int = 1,
    added: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> FileEntry:
    """Write `folder/name` with all arrays, name -> array of any shape; see `write_stream`.

    Raises:
        StorageError: the file cannot be written; nothing is left behind.
        ValueError: an array's type cannot be stored.
    """
    specs = specs_of(arrays)
    ordered = {name: specs[name] for name in wide_first(specs)}
    values = (arrays[name] for name in ordered)
    return write_stream(
        storage,
        folder,
        name,
        ordered,
        values,
        origin=origin,
        role=role,
        index=index,
        version=version,
        added=added,
        metadata=metadata,
    )


def write_stream(
    storage: Storage,
    folder: str,
    name: str,
    specs: Mapping[str, TensorSpec],
    arrays: Iterable[Array],
    *,
    origin: Origin,
    role: str,
    index: int = 0,
    version: int = 1,
    added: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> FileEntry:
    """Write `folder/name` with all arrays, completely or not at all.

    An array must not change until the next one is asked for. Arrays are not copied, except those that are not
    contiguous (8 MB at a time).

    Args:
        storage: where to write.
        folder: the checkpoint's folder.
        name: the file's name in it.
        specs: name -> type and shape of each array, in the order of the file.
        arrays: the arrays of `specs`, in this order.
        origin: the commit that the arrays belong to.
        role: what the file holds: "rows", "dense" or "buffers".
        index: the shard's or stage's index.
        version: of the layout, see `_VERSION`.
        added: see `FileEntry`.
        metadata: for the header, besides version and commit.

    Raises:
        StorageError: the file cannot be written; nothing is left behind.
    """
    written = {"version": str(version), "step": str(origin.step), "lineage": str(origin.lineage)}
    header = _header(specs, written | dict(metadata or {}))
    checksum, size = 0, 0

    def chunks() -> Iterator[memoryview]:
        nonlocal checksum, size
        parts = (chunk for spec, array in zip(specs.values(), arrays, strict=True) for chunk in _chunks(array, spec))
        for chunk in itertools.chain([memoryview(header)], parts):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
            yield chunk

    storage.write_atomic(f"{folder}/{name}", chunks())
    return FileEntry(name, size, _crc_text(checksum), role, index, added)


def verify_file(storage: Storage, folder: str, entry: FileEntry, origin: Origin, *, contents: bool = True) -> None:
    """Check that a file matches its entry, and that its state belongs to the checkpoint's commit.

    Args:
        storage: where the file is.
        folder: the checkpoint's folder.
        entry: expected name, size and checksum; and folder and commit, if an earlier checkpoint wrote the file.
        origin: the checkpoint's commit.
        contents: read the whole file and compare the checksum; otherwise read its header only.

    Raises:
        DamagedError: the file is missing, or its size, checksum or commit differs.
        UnsupportedVersionError: it was written by a newer release.
        StorageError: the file cannot be read.
    """
    name = f"{entry.folder or folder}/{entry.name}"
    try:
        _compare(storage, name, entry, entry.origin or origin, contents)
    except DamagedError as error:
        error.file = name
        raise


def _compare(storage: Storage, name: str, entry: FileEntry, origin: Origin, contents: bool) -> None:
    size = storage.size(name)
    if size is None:
        raise DamagedError(f"{entry.name} is missing")
    if size != entry.bytes:
        raise DamagedError(f"{entry.name} has {size} bytes instead of {entry.bytes}")
    if contents:
        checksum = checksum_of(storage, name, size)
        if checksum != entry.checksum:
            raise DamagedError(
                f"{entry.name} was changed after it was written (checksum {checksum} instead of {entry.checksum})"
            )
    with TensorFile(storage, name) as file:
        if file.origin != origin:
            raise DamagedError(f"{entry.name} has the state of {file.origin}, and should have that of {origin}")


def checksum_of(storage: Storage, name: str, size: int) -> str:
    """The checksum of a file of `size` bytes, as descriptions have it.

    Raises:
        DamagedError: the file is shorter.
        StorageError: it cannot be read.
    """
    checksum, remaining = 0, size
    with storage.open_file(name) as stream:
        while remaining:
            with storage.reading(name):
                chunk = stream.read_buffer(min(_CHUNK_BYTES, remaining))
            if chunk.size == 0:
                raise DamagedError(f"{name} ended {remaining} bytes early")
            checksum = zlib.crc32(chunk, checksum)
            remaining -= chunk.size
            storage.work.add(chunk.size)
    return _crc_text(checksum)


class TensorFile:
    """Reads arrays, or slices of them, from a safetensors file. A local file is memory-mapped.

    Arrays are read-only. Not thread-safe.

    Attributes:
        specs: of the arrays, by name.
        metadata: of the header.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        """Read the header.

        Raises:
            DamagedError: the file is not a safetensors file, or is truncated.
            StorageError: the file cannot be opened.
        """
        self._storage = storage
        self._name = name
        self._stream = storage.open_file(name)
        try:
            self.specs, self.metadata = self._read_header()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def origin(self) -> Origin:
        """The commit that a state file belongs to.

        Raises:
            DamagedError: the file does not say.
            UnsupportedVersionError: it was written by a newer release.
        """
        try:
            check_version(self._name, int(self.metadata["version"]), _VERSION)
            return Origin(int(self.metadata["step"]), int(self.metadata["lineage"]))
        except UnsupportedVersionError:
            raise
        except (KeyError, ValueError) as error:
            raise DamagedError(f"{self._name} does not say which commit it belongs to") from error

    def close(self) -> None:
        """Close the file; arrays read from it stay valid."""
        self._stream.close()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Read the entries `start:stop` along the first axis of an array, by default all.

        Raises:
            DamagedError: the file has no such array.
            StorageError: the file cannot be read.
        """
        spec = self.specs.get(name)
        if spec is None:
            raise DamagedError(f"{self._name} has no array {name!r}")
        if not spec.shape:
            return self._bytes_at(spec.start, spec.num_bytes).view(spec.dtype).reshape(())
        stop = spec.shape[0] if stop is None else min(stop, spec.shape[0])
        start = min(start, stop)
        raw = self._bytes_at(spec.start + start * spec.item_bytes, (stop - start) * spec.item_bytes)
        return raw.view(spec.dtype).reshape((stop - start, *spec.shape[1:]))

    def read_flat(self, name: str, start: int, stop: int) -> Array:
        """Read the elements `start:stop` of a flat array (stop - start,).

        Raises:
            DamagedError: the file is shorter.
            StorageError: it cannot be read.
        """
        spec = self.specs[name]
        size = spec.dtype.itemsize
        return self._bytes_at(spec.start + start * size, (stop - start) * size).view(spec.dtype)

    def _bytes_at(self, offset: int, count: int) -> npt.NDArray[np.uint8]:
        with self._storage.reading(self._name):
            self._stream.seek(offset)
            buffer = self._stream.read_buffer(count)
        if buffer.size != count:
            raise DamagedError(f"{self._name} ended {count - buffer.size} bytes early")
        self._storage.work.add(count)
        return np.frombuffer(buffer, dtype=np.uint8)

    def _read_header(self) -> tuple[dict[str, TensorSpec], dict[str, str]]:
        size = self._stream.size()
        if size < 8:
            raise DamagedError(f"{self._name} has only {size} bytes")
        (length,) = struct.unpack("<Q", self._bytes_at(0, 8).tobytes())
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise DamagedError(f"{self._name} is not a safetensors file, or is truncated")
        try:
            header = json.loads(self._bytes_at(8, length).tobytes())
            metadata = dict(header.pop("__metadata__", {}))
            if not all(isinstance(value, str) for value in metadata.values()):
                raise ValueError("metadata must be texts")
            specs = {key: _read_spec(value, 8 + length) for key, value in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise DamagedError(f"{self._name} has an unreadable header ({error})") from error
        if any(spec.start + spec.num_bytes > size for spec in specs.values()):
            raise DamagedError(f"{self._name} is truncated")
        return specs, metadata


def _read_spec(entry: Mapping[str, Any], data_start: int) -> TensorSpec:
    """Read an array's entry in a header.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the entry is malformed, or no array can have this shape.
    """
    dtype, shape, start = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"][0]
    if not all(type(size) is int and 0 <= size <= _MAX_BYTES for size in (*shape, start)):
        raise ValueError(f"shape {shape} at {start}")
    # NumPy checks the bytes that an empty array would have if none of its axes were empty.
    if len(shape) > _MAX_AXES or math.prod(max(1, size) for size in shape) * dtype.itemsize > _MAX_BYTES:
        raise ValueError(f"an array of {len(shape)} axes is too large")
    return TensorSpec(dtype, shape, data_start + start)


def create_tensor_file(path: Path, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Lay out a local safetensors file and map its arrays into memory, to be filled in any order.

    The space is reserved first, because a write to a mapped file kills the process if the disk is full.

    Returns:
        name -> writable array backed by the file, initially zero.

    Raises:
        StorageError: the disk is full, or the file cannot be created.
    """
    ordered = {name: specs[name] for name in wide_first(specs)}
    header = _header(ordered, {"format": "pt"})  # some loaders refuse a file without it
    total = len(header) + sum(spec.num_bytes for spec in specs.values())
    try:
        with path.open("wb") as stream:
            stream.write(header)
            stream.flush()
            _reserve(stream.fileno(), total)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StorageError.of("write", str(path), error) from error
    mapped = np.memmap(path, dtype=np.uint8, mode="r+")
    arrays, start = {}, len(header)
    for name, spec in ordered.items():
        stop = start + spec.num_bytes
        arrays[name] = mapped[start:stop].view(spec.dtype).reshape(spec.shape)
        start = stop
    return arrays


def _reserve(descriptor: int, total: int) -> None:
    """Extend a file to `total` bytes and allocate all its blocks."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, total)
        return
    position = os.fstat(descriptor).st_size
    zeros = bytes(_CHUNK_BYTES)
    while position < total:
        position += os.pwrite(descriptor, zeros[: total - position], position)


def _header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file with arrays in this order."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, spec in specs.items():
        entries[name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.num_bytes],
        }
        offset += spec.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _chunks(array: Array, spec: TensorSpec) -> Iterable[memoryview]:
    """The bytes of an array in pieces of about 8 MB, copied only if the array is not contiguous."""
    assert array.shape == spec.shape, "the header says so"
    flat = array.reshape(1) if not array.shape else array
    step = max(1, _CHUNK_BYTES // max(1, spec.item_bytes))
    for start in range(0, len(flat), step):
        piece = np.ascontiguousarray(flat[start : start + step], dtype=spec.dtype)
        if piece.nbytes:
            yield piece.reshape(-1).view(np.uint8).data


def _little_endian(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    target = dtype.newbyteorder("<")
    if target not in _NAMES:
        raise ValueError(f"array {name!r}: type {dtype} cannot be stored; convert it to a float, integer or bool type")
    return target


def _crc_text(checksum: int) -> str:
    return f"crc32:{checksum:08x}"
