"""Files of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from heterps_runtime import filesystems
from heterps_runtime.checkpoint.dense import _pieces_of
from heterps_runtime.checkpoint.errors import CheckpointError
from heterps_runtime.checkpoint.format import TensorFile
from heterps_runtime.checkpoint.manifest import CheckpointManifest, _checksum, explain_mismatch
from heterps_runtime.checkpoint.ownership import _claims, _described
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.storage import Storage, StorageAddressError, StorageError
from heterps_runtime.versions import UnsupportedVersionError
from tests.fuzz.mutation import SEPARATOR
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.doubles import replaced

_ALL = [Path(__file__).parents[2] / "fixtures" / name / "checkpoints" for name in ("v1", "v2", "v3")]
_FIXTURES = _ALL[0]
_ERRORS = (CheckpointError, StorageError, UnsupportedVersionError)
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


class _Memory(Storage):
    """One file in memory."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(fs.LocalFileSystem(), "/", "/", WorkCounter())
        self._name = name
        self._content = content

    def open_file(self, name: str) -> Any:
        return pa.BufferReader(self._content)

    def read(self, name: str) -> bytes:
        return self._content

    def files(self, folder: str = "") -> list[str]:
        return [self._name]


def _read_manifest(data: bytes) -> None:
    """Read a manifest with the right checksum, and use it as a resuming coordinator does."""
    try:
        document = json.loads(data)
        document["checksum"] = _checksum(document["manifest"])
        data = json.dumps(document).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    manifest = CheckpointManifest.from_json(data)
    for role in ("rows", "dense", "buffers"):
        for entry in manifest.files_of(role):
            manifest.path_of(entry)
    str(manifest.origin)
    explain_mismatch(manifest.fingerprint, {"model.loss": "x", "training": {"seed": 1}})


def _read_tensors(data: bytes) -> None:
    """Read a file's header and arrays. The length of the header is computed."""
    head, _, arrays = data.partition(SEPARATOR)
    with TensorFile(_Memory("file", len(head).to_bytes(8, "little") + head + arrays), "file") as file:
        _read_arrays(file)


def _read_file(data: bytes) -> None:
    with TensorFile(_Memory("file", data), "file") as file:
        _read_arrays(file)


def _read_arrays(file: TensorFile) -> None:
    for name, spec in list(file.specs.items())[:20]:
        if spec.num_bytes < 1 << 20:
            file.read(name)
            file.read(name, 1, 2)
    str(file.origin)
    _pieces_of(file, "file")


def _read_owner(data: bytes) -> None:
    """Read a record of ownership: its name, then its content."""
    name, _, content = data.partition(SEPARATOR)
    storage = _Memory(name.decode(errors="replace"), content)
    for claim in _claims(storage):
        _described(storage, claim)


class _LocalOnly:
    """pyarrow's file systems, as far as they need no network: clients of object stores ask servers at once."""

    LocalFileSystem = fs.LocalFileSystem

    class FileSystem:
        @staticmethod
        def from_uri(text: str) -> Any:
            if not text.lower().startswith("file:"):
                raise pa.ArrowInvalid("a remote address")
            return fs.FileSystem.from_uri(text)


def _no_client(authority: str) -> Any:
    raise ValueError(f"a remote address: {authority}")


def _open_storage(data: bytes) -> None:
    with replaced(filesystems, "pafs", _LocalOnly), replaced(filesystems, "_hdfs", _no_client):
        Storage.open(data.decode("utf-8", "replace")).path("step-1")


def _files() -> Iterator[bytes]:
    for folder in _ALL:
        for file in sorted(folder.glob("step-*/*.safetensors")):
            yield file.read_bytes()


def _manifests() -> Iterator[bytes]:
    for folder in _ALL:
        for file in sorted(folder.glob("step-*/manifest.json")):
            yield file.read_bytes()


def _split_files() -> Iterator[bytes]:
    for content in _files():
        length = int.from_bytes(content[:8], "little")
        yield content[8 : 8 + length] + SEPARATOR + content[8 + length :]


def _owners() -> Iterator[bytes]:
    for file in sorted((_FIXTURES / "owners").glob("*.json")):
        yield f"owners/{file.name}".encode() + SEPARATOR + file.read_bytes()


TARGETS = [
    Target("checkpoint.manifest", _read_manifest, _ERRORS, _manifests, Form.JSON),
    Target("checkpoint.tensors", _read_tensors, _ERRORS, _split_files, Form.JSON),
    Target("checkpoint.file", _read_file, _ERRORS, _files),
    Target(
        "checkpoint.address",
        _open_storage,
        (StorageAddressError,),
        lambda: [b"/data/c", b"file:///data/c"],
        Form.TEXT,
        longest=2048,
    ),
    Target("checkpoint.owner", _read_owner, _ERRORS, _owners),
]
