"""The user's files as record batches: parquet, Arrow, CSV, and the Criteo click logs.

A source is a file or a folder on any filesystem of pyarrow. Files are read one at a time, in the order of their paths,
so that a row has the same number on each machine, and errors can name the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from heterps_runtime.contract import CREDENTIALS_FIX, CREDENTIALS_PATTERN
from heterps_runtime.data.columns import SparseKind, check_columns, missing_as_zero
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.spec import CRITEO_DENSE, CRITEO_LABEL, CRITEO_SPARSE, DataSpec, Split

__all__ = ["Source", "SourceBatch", "SourceFile"]

BATCH_ROWS = 65_536  # of a record batch: some MiB, independent of row groups
_BATCH_TENSOR_BYTES = 64 << 20  # of a record batch with tensors, as float64 the largest that files hold
_CSV_BLOCK_BYTES = 8 * 2**20  # CSV types are inferred from the first block


@dataclass(frozen=True)
class SourceFile:
    """A file, as it enters the cache's fingerprint."""

    path: str  # in its filesystem
    size: int  # bytes
    mtime_ns: int | None  # None if the filesystem has none


@dataclass(frozen=True)
class SourceBatch:
    """Rows with the columns of the job."""

    batch: Any  # pyarrow RecordBatch
    place: BatchLocation
    fraction: float  # of the source, read so far


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.count = 0
        self.closed = False

    def read(self, size: int = -1) -> Any:
        data = self._file.read(None if size < 0 else size)
        self.count += len(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._file.close()


@dataclass(frozen=True)
class _CsvProgress:
    """Progress in a CSV file. The parser reads ahead, so the number of bytes read is not enough."""

    stored: _Counted  # the file
    plain: _Counted  # decompressed from it; the same object if it is not compressed
    size: int  # bytes of the file

    def fraction(self, blocks: int) -> float:
        """The fraction of the file in the first `blocks` blocks, if it compresses evenly."""
        packed = blocks * _CSV_BLOCK_BYTES * self.stored.count / max(1, self.plain.count)
        return min(1.0, packed / max(1, self.size))


class Source:
    """The files of a split. The constructor checks them.

    Args:
        spec: the job's data.
        split: of the data.

    Raises:
        DataError: there are no files, a file cannot be read, or columns are missing or of the wrong type.
    """

    def __init__(self, spec: DataSpec, split: Split) -> None:
        self.spec = spec
        self.field = f"spec.data.{split}"
        self.location = spec.location(split)
        self.filesystem, root = self._resolve()
        self.files = self._list(root)
        #: Kind of each sparse column, the same in all files.
        self.kinds: Mapping[str, SparseKind] = {}
        #: Rows of all files; None if the format does not store it (all but parquet).
        self.num_rows: int | None = 0
        self._csv_types: dict[str, Any] = {}  # inferred from the first file, applied to all
        for file in self.files:
            with self._reading(file):
                self._check(file)
        if self.num_rows == 0:
            raise DataError(f"{self.field}: {self.location} has no rows")

    # --- finding files ----------------------------------------------------------------------------------------------
    def _resolve(self) -> tuple[Any, str]:
        try:
            if "://" not in self.location:
                return pa.fs.LocalFileSystem(), os.path.abspath(self.location)
            if re.match(CREDENTIALS_PATTERN, self.location):
                raise DataError(f"{self.field}: {CREDENTIALS_FIX}")
            filesystem, path = pa.fs.FileSystem.from_uri(self.location)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{self.field}: {self.location}: not a usable path or address: {_plain(error)}") from error
        return filesystem, path

    def _list(self, root: str) -> tuple[SourceFile, ...]:
        """All files, by path, except those with a `.` or `_` at the start of a name (markers, partial files)."""
        try:
            info = self.filesystem.get_file_info(root)
            if info.type == pa.fs.FileType.NotFound:
                raise DataError(
                    f"{self.field}: {self.location} does not exist; prepare the data first, or correct the path"
                )
            if info.type == pa.fs.FileType.File:
                found = [info]
            else:
                found = self.filesystem.get_file_info(pa.fs.FileSelector(root, recursive=True))
        except OSError as error:
            raise DataError(f"{self.field}: {self.location}: cannot be listed: {_plain(error)}") from error
        files = [f for f in found if f.type == pa.fs.FileType.File]
        if info.type != pa.fs.FileType.File:
            files = [
                f for f in files if not any(p[:1] in (".", "_") for p in f.path[len(root) :].strip("/").split("/"))
            ]
        if not files:
            raise DataError(f"{self.field}: the folder {self.location} has no files")
        return tuple(sorted((SourceFile(f.path, f.size, f.mtime_ns) for f in files), key=lambda f: f.path))

    # --- checking ---------------------------------------------------------------------------------------------------
    def _reading(self, file: SourceFile) -> _Readable:
        return _Readable(self.field, file.path, self.spec.format)

    def _check(self, file: SourceFile) -> None:
        if self.spec.format == "parquet":
            with pa.parquet.ParquetFile(self.filesystem.open_input_file(file.path)) as parquet:
                schema = parquet.schema_arrow
                assert self.num_rows is not None
                self.num_rows += parquet.metadata.num_rows
        else:
            self.num_rows = None
            if self.spec.format == "arrow":
                with self._open_arrow(file) as reader:
                    schema = reader.schema
            else:
                if self.spec.format == "csv" and not self._csv_types:
                    self._infer_csv_types(file)
                with self._open_csv(file, {})[0] as reader:
                    schema = reader.schema
                types = self._csv_types
                schema = pa.schema([(f.name, types.get(f.name, f.type)) for f in schema])
        kinds = check_columns(schema, self.spec, file.path)
        for name, kind in kinds.items():
            first = self.kinds.get(name, kind)
            if kind != first:
                raise DataError(
                    f"spec.data.sparse: column {name!r} has {kind} values in {file.path} but {first} values in "
                    f"{self.files[0].path}, so equal values would get different ids; write all files with one type"
                )
        self.kinds = kinds

    def _infer_csv_types(self, file: SourceFile) -> None:
        """Fix the types of CSV columns: numbers are float64, sparse columns integers if possible, else text."""
        with self._open_csv(file, {})[0] as reader:
            schema = reader.schema
        kinds = {f.name: f.type for f in schema}
        for name in {*self.spec.dense, self.spec.label} & kinds.keys():
            if pa.types.is_integer(kinds[name]) or pa.types.is_null(kinds[name]):
                self._csv_types[name] = pa.float64()
        for name in set(self.spec.sparse) & kinds.keys():
            self._csv_types[name] = pa.int64() if pa.types.is_integer(kinds[name]) else pa.string()

    # --- reading ----------------------------------------------------------------------------------------------------
    def batches(self) -> Iterator[SourceBatch]:
        """All rows, in order.

        Raises:
            DataError: a file is damaged, or a CSV value is not of its column's type.
        """
        total = sum(f.size for f in self.files) or 1
        before = 0
        for file in self.files:
            row = 0
            with self._reading(file):
                for batch, fraction in self._read(file):
                    yield SourceBatch(
                        batch, BatchLocation(file.path, row), min(1.0, (before + fraction * file.size) / total)
                    )
                    row += batch.num_rows
            before += file.size

    def _read(self, file: SourceFile) -> Iterator[tuple[Any, float]]:
        """Yield record batches of a file, with the fraction of the file read so far."""
        tensors = [t.name for t in self.spec.tensors]
        columns = list(dict.fromkeys((*self.spec.dense, *self.spec.sparse, *tensors, self.spec.label)))
        rows = _batch_rows(sum(t.size for t in self.spec.tensors))
        if self.spec.format == "parquet":
            with pa.parquet.ParquetFile(self.filesystem.open_input_file(file.path), pre_buffer=True) as parquet:
                done = 0
                for batch in parquet.iter_batches(rows, columns=columns):
                    done += batch.num_rows
                    yield batch.select(columns), done / parquet.metadata.num_rows
        elif self.spec.format == "arrow":
            with self._open_arrow(file) as reader:
                whole = hasattr(reader, "num_record_batches")  # the stream format does not store its length
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if whole else reader
                for i, batch in enumerate(batches):
                    fraction = (i + 1) / reader.num_record_batches if whole else 0.5
                    for start in range(0, batch.num_rows, rows):  # a batch may be the whole file
                        yield batch.select(columns).slice(start, rows), fraction
        else:
            reader, progress = self._open_csv(file, self._csv_types)
            with reader:
                for block, batch in enumerate(reader):
                    chosen = batch.select(columns)
                    if self.spec.format == "criteo-tsv":
                        chosen = missing_as_zero(chosen, self.spec.dense)
                    yield chosen, progress.fraction(block + 1)

    def _open_arrow(self, file: SourceFile) -> Any:
        """Open the file format (Feather) or the stream format of Arrow IPC."""
        stored = self.filesystem.open_input_file(file.path)
        try:
            return pa.ipc.open_file(stored)
        except pa.ArrowInvalid:
            stored.seek(0)
            return pa.ipc.open_stream(stored)

    def _open_csv(self, file: SourceFile, types: Mapping[str, Any]) -> tuple[Any, _CsvProgress]:
        stored = _Counted(self.filesystem.open_input_stream(file.path, compression=None))
        stream: Any = pa.PythonFile(stored, mode="r")
        codec = next((c for suffix, c in _CODECS.items() if file.path.endswith(suffix)), None)
        plain = stored
        if codec is not None:
            plain = _Counted(pa.CompressedInputStream(stream, codec))
            stream = pa.PythonFile(plain, mode="r")
        if self.spec.format == "criteo-tsv":
            names = [CRITEO_LABEL, *CRITEO_DENSE, *CRITEO_SPARSE]
            read = pa.csv.ReadOptions(column_names=names, block_size=_CSV_BLOCK_BYTES)
            parse = pa.csv.ParseOptions(delimiter="\t", quote_char=False)
            numbers = dict.fromkeys((CRITEO_LABEL, *CRITEO_DENSE), pa.float64())
            convert = pa.csv.ConvertOptions(column_types=numbers | dict.fromkeys(CRITEO_SPARSE, pa.string()))
        else:
            read = pa.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES)
            parse = pa.csv.ParseOptions()
            convert = pa.csv.ConvertOptions(column_types=dict(types))
        reader = pa.csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
        return reader, _CsvProgress(stored, plain, file.size)


def _batch_rows(tensor_elements: int) -> int:
    """Rows of a record batch, so that its tensors take a bounded amount of memory."""
    return max(1, min(BATCH_ROWS, _BATCH_TENSOR_BYTES // (8 * tensor_elements))) if tensor_elements else BATCH_ROWS


_CODECS: dict[str, str] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def _plain(error: Exception) -> str:
    """The first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class _Readable:
    """A context that turns pyarrow's errors into ones that name the file and a remedy."""

    field: str
    path: str
    format: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DataError) or not isinstance(error, pa.ArrowException | OSError | ValueError | EOFError):
            return
        text = _plain(error)
        if "CSV conversion error" in text:
            fix = "correct the value, or write the data as parquet (a CSV column's type is guessed from its start)"
        elif isinstance(error, PermissionError):
            fix = "check the file's permissions"
        else:
            fix = "is it complete, and is spec.data.format right?"
        raise DataError(f"{self.field}: {self.path}: cannot be read as {self.format}: {text}; {fix}") from error
