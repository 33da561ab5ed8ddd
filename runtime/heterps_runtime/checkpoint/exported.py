"""Reading an exported model, of whatever size, in bounded pieces.

The identity of a model is the SHA-256 of its model.json, which has the sizes and checksums of all other files.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.format import DTYPES, TensorFile, checksum_of
from heterps_runtime.checkpoint.manifest import ID_BITS
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION, TENSORS_FILE
from heterps_runtime.errors import UserError
from heterps_runtime.partition.tables import MAX_DIM
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError, check_version

__all__ = [
    "ExportedModel",
    "ExportedTable",
    "Rows",
    "SparseRows",
    "check_files",
    "differ",
    "dtype_of",
    "identity_of",
    "pieces",
]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_VERSION = 1  # of model.json
_PIECE_ROWS = 65_536  # read at a time
_MOST_IDS = 1 << ID_BITS  # of a table


@dataclass(frozen=True)
class ExportedTable:
    """A table as model.json describes it.

    Attributes:
        name: of the parameter in the user's module.
        state_names: its names in model.safetensors, if it is whole there.
        num_embeddings: number of its ids.
        dim: elements of a row.
        dtype: of its elements.
        init: distribution of the rows that were never trained.
        file: of its ids and rows; None if it is whole.
    """

    name: str
    state_names: tuple[str, ...]
    num_embeddings: int
    dim: int
    dtype: str
    init: Mapping[str, Any]
    file: str | None


class ExportedModel:
    """An exported model, whose files are verified.

    Attributes:
        storage: the folder.
        text: model.json as it is.
        document: model.json.
        identity: of this model.
        tables: by name.
        tensors: name -> type and shape in the user's `state_dict()`, in the order of model.json.
        step: number of committed steps.
        seed: of the job; initial values depend on it.
    """

    def __init__(self, storage: Storage) -> None:
        """Read the description, and compare the checksums of all files.

        Raises:
            UserError: there is no exported model.
            DamagedError: a file is missing, or differs from what was exported; or the description does not fit it.
            StorageError: a file cannot be read.
            UnsupportedVersionError: a newer release has exported it.
        """
        self.storage = storage
        try:
            self.text = storage.read(MODEL_DESCRIPTION)
        except StorageError as error:
            if not error.missing:
                raise
            raise UserError(
                f"{storage.address}: there is no exported model, as {MODEL_DESCRIPTION} is missing; name the folder of "
                "one"
            ) from None
        self.identity = identity_of(self.text)
        try:
            self.document: dict[str, Any] = json.loads(self.text)
            check_version(f"the model {storage.address}", self.document["version"], _VERSION)
            self.tables = {table.name: table for table in map(_read_table, self.document["tables"])}
            self.tensors: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
                str(entry["name"]): (dtype_of(entry["dtype"]), tuple(map(int, entry["shape"])))
                for entry in self.document["tensors"]
            }
            self.step, self.seed = int(self.document["step"]), int(self.document["seed"])
        except UnsupportedVersionError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DamagedError(
                f"{storage.path(MODEL_DESCRIPTION)} is malformed ({error})", MODEL_DESCRIPTION
            ) from error
        files = {TENSORS_FILE, *(table.file for table in self.tables.values() if table.file is not None)}
        check_files(storage, self.document, MODEL_DESCRIPTION, files)
        self._check_tensors()

    def _check_tensors(self) -> None:
        """Compare the description of the tensors with their file, and with the tables among them."""
        where = self.storage.path(MODEL_DESCRIPTION)
        with TensorFile(self.storage, TENSORS_FILE) as file:
            found = {name: (spec.dtype, spec.shape) for name, spec in file.specs.items()}
        if found != self.tensors:
            raise DamagedError(f"{where} has other tensors than {TENSORS_FILE}", MODEL_DESCRIPTION)
        for table in self.tables.values():
            expected = np.dtype(table.dtype), (table.num_embeddings, table.dim)
            if any(found.get(name) != expected for name in table.state_names):
                raise DamagedError(f"{where} has another table {table.name!r} than {TENSORS_FILE}", MODEL_DESCRIPTION)

    @property
    def values(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The tensors that are no tables."""
        tables = {name for table in self.tables.values() for name in table.state_names}
        return {name: spec for name, spec in self.tensors.items() if name not in tables}

    @property
    def buffers(self) -> set[str]:
        """Names of the tensors that are buffers of the module.

        Raises:
            DamagedError: the model does not say.
        """
        try:
            return set(map(str, self.document["buffers"]))
        except (KeyError, TypeError) as error:
            where = self.storage.path(MODEL_DESCRIPTION)
            raise DamagedError(f"{where} does not say which tensors are buffers", MODEL_DESCRIPTION) from error

    def rows(self, table: ExportedTable) -> Rows:
        """The rows of a table, to be closed.

        Raises:
            DamagedError: its file is malformed.
            StorageError: it cannot be opened.
        """
        if table.file is None:
            return _WholeTable(self.storage, TENSORS_FILE, table.state_names[0])
        return SparseRows(self.storage, table.file, table)


class Rows(ABC):
    """Rows of a table in a safetensors file, by ascending id.

    Attributes:
        count: number of rows.
    """

    count: int

    def __init__(self, storage: Storage, file: str, array: str) -> None:
        self._file = TensorFile(storage, file)
        spec = self._file.specs.get(array)
        if spec is None or len(spec.shape) != 2:
            self._file.close()
            raise DamagedError(f"{storage.path(file)} has no rows in {array!r}", file)
        self._array = array
        self.count = spec.shape[0]

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @abstractmethod
    def ids_at(self, positions: Ids) -> Ids:
        """The ids of the rows at ascending positions (n,)."""

    @abstractmethod
    def find(self, ids: Ids) -> tuple[Ids, Mask]:
        """The positions of ids (n,) among the rows, and which of them (n,) have a row; other positions mean nothing."""

    def at(self, positions: Ids) -> Array:
        """The rows at ascending positions (n,), (n, dim)."""
        return _gather(self._file, self._array, positions)

    def pieces(self) -> Iterator[tuple[int, Ids]]:
        """Yield the first position and the ids (n,) of all rows in bounded pieces."""
        for piece in pieces(self.count):
            yield piece.start, self.ids_at(np.arange(piece.start, piece.stop))


class _WholeTable(Rows):
    """A table that is whole: each id has a row."""

    def ids_at(self, positions: Ids) -> Ids:
        """See `Rows.ids_at`."""
        return positions

    def find(self, ids: Ids) -> tuple[Ids, Mask]:
        """See `Rows.find`."""
        return ids, np.ones(len(ids), np.bool_)


class SparseRows(Rows):
    """A table of ids and rows. Only its ids are held in memory, of a local file not even these."""

    def __init__(self, storage: Storage, file: str, table: ExportedTable) -> None:
        super().__init__(storage, file, "rows")
        try:
            self._ids = self._file.read("ids")
            self._check(storage.path(file), file, table)
        except BaseException:
            self._file.close()
            raise

    def _check(self, where: str, file: str, table: ExportedTable) -> None:
        if self._ids.shape != (self.count,) or self._ids.dtype != np.int64:
            raise DamagedError(f"{where} does not have one id for each row", file)
        spec = self._file.specs[self._array]
        if (spec.dtype, spec.shape[1]) != (np.dtype(table.dtype), table.dim):
            raise DamagedError(f"{where} has other rows of {table.name!r} than the description of the model says", file)
        last = -1
        for piece in pieces(self.count):
            ids = self._ids[piece]
            if ids[0] <= last or (ids[1:] <= ids[:-1]).any():
                raise DamagedError(f"{where} has ids that are not in order", file)
            last = int(ids[-1])
        if last >= table.num_embeddings:
            raise DamagedError(f"{where} has ids beyond the table", file)

    def ids_at(self, positions: Ids) -> Ids:
        """See `Rows.ids_at`."""
        return self._ids[positions]

    def find(self, ids: Ids) -> tuple[Ids, Mask]:
        """See `Rows.find`."""
        positions = np.searchsorted(self._ids, ids).astype(np.int64)
        there = positions < self.count
        there[there] = self._ids[positions[there]] == ids[there]
        return positions, there


def pieces(count: int) -> Iterator[slice]:
    """Yield the parts of `count` rows that are read at a time."""
    for start in range(0, count, _PIECE_ROWS):
        yield slice(start, min(start + _PIECE_ROWS, count))


def _gather(file: TensorFile, array: str, positions: Ids) -> Array:
    """Read the entries of an array at ascending positions (n,), in pieces of at most 65,536 entries of the file."""
    spec = file.specs[array]
    out = np.empty((len(positions), *spec.shape[1:]), spec.dtype)
    first = 0
    while first < len(positions):
        start = int(positions[first])
        stop = int(np.searchsorted(positions, start + _PIECE_ROWS))
        piece = file.read(array, start, int(positions[stop - 1]) + 1)
        out[first:stop] = piece[positions[first:stop] - start]
        first = stop
    return out


def differ(one: Array, other: Array) -> npt.NDArray[np.bool_]:
    """Which entries (n,) along the first axis have other bits: zeros have signs, and not-a-number equals itself."""
    shape = (len(one), math.prod(one.shape[1:]))
    left, right = (np.ascontiguousarray(values).reshape(shape).view(np.uint8) for values in (one, other))
    differing: npt.NDArray[np.bool_] = (left != right).any(axis=1)
    return differing


def dtype_of(name: object) -> np.dtype[Any]:
    """The type of arrays that a description names.

    Raises:
        ValueError: no array of a file has such a type.
    """
    for dtype in DTYPES:
        if str(dtype) == name:
            return dtype
    raise ValueError(f"{name!r} is no type of an array")


def identity_of(description: bytes) -> str:
    """The identity of a model, from its model.json."""
    return f"sha256:{hashlib.sha256(description).hexdigest()}"


def check_files(storage: Storage, document: Mapping[str, Any], description: str, needed: Collection[str] = ()) -> None:
    """Compare the files of a folder with the sizes and checksums in its description.

    Args:
        storage: the folder.
        document: the description.
        description: its name, for messages.
        needed: files that the description must have.

    Raises:
        DamagedError: a file is missing, or differs from what was written; or the description is malformed.
        StorageError: a file cannot be read.
    """
    try:
        files = [(_file_name(file["name"]), int(file["bytes"]), str(file["checksum"])) for file in document["files"]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedError(f"{storage.path(description)} is malformed ({error})", description) from error
    if missing := sorted({*needed} - {name for name, _, _ in files}):
        raise DamagedError(f"{storage.path(description)} has no checksum of {missing[0]}", description)
    for name, size, checksum in files:
        found = storage.size(name)
        if found is None:
            raise DamagedError(f"{storage.path(name)} is missing", name)
        if found != size or checksum_of(storage, name, size) != checksum:
            raise DamagedError(f"{storage.path(name)} differs from what {description} says", name)


def _file_name(value: object) -> str:
    """Read the name of a file in a folder or below.

    Raises:
        ValueError: it is none.
    """
    name = str(value)
    name.encode()  # which raises a ValueError for what is no text
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no file in this folder")
    return name


def _read_table(entry: Mapping[str, Any]) -> ExportedTable:
    """Read an entry of a table.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: a field is missing or malformed.
    """
    form, names = entry["form"], tuple(map(str, entry["stateDictNames"]))
    if form not in ("dense", "rows") or (form == "dense" and not names):
        raise ValueError(f"table {entry['name']!r} of the form {form!r} with the names {list(names)}")
    name, size, dim = str(entry["name"]), int(entry["numEmbeddings"]), int(entry["dim"])
    name.encode()  # which raises a ValueError for what is no text: files have this name
    if not (0 < size <= _MOST_IDS and 0 < dim <= MAX_DIM):
        raise ValueError(f"table {name!r} of {size} ids with rows of {dim} elements")
    return ExportedTable(
        name=name,
        state_names=names if form == "dense" else (),
        num_embeddings=size,
        dim=dim,
        dtype=str(dtype_of(entry["dtype"])),
        init=dict(entry["init"]),
        file=None if form == "dense" else str(entry["file"]),
    )
