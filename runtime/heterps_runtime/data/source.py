"""The user's files as record batches: parquet, Arrow, CSV, and the Criteo click logs.

A row has the same number on each machine: files are in the order of their paths. A file is read from start to end, to
fill the cache of the whole split, or in blocks: consecutive row groups, record batches or lines (`index`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from heterps_runtime.data.columns import SparseKind, check_columns
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.files import FileList, Reading, SourceFile, find_files, patiently
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.spec import DataSpec, Split
from heterps_runtime.data.text import LineRange, TextFormat, compressed

__all__ = ["WHOLE_FILE", "Inspection", "Source", "SourceBatch", "Unit"]

BATCH_ROWS = 65_536  # of a record batch: some MiB, independent of row groups
_BATCH_TENSOR_BYTES = 64 << 20  # of a record batch with tensors, as float64 the largest that files hold
_OPENED_TOGETHER = 16  # files whose schemas are read at the same time: an object store answers after some 10 ms
_KEPT_FOOTERS = 64  # of parquet files: reading one again costs as much as some thousand rows
_WHOLE_FILE_BYTES = 256 << 20  # largest file that is read as one block

#: As `Unit.start`: a file without units, which is read as one block.
WHOLE_FILE = -1


@dataclass(frozen=True)
class SourceBatch:
    """Rows with the columns of the job."""

    batch: Any  # pyarrow RecordBatch
    place: BatchLocation
    fraction: float  # of the source, read so far


@dataclass(frozen=True)
class Unit:
    """Rows of a file that can be read without the others."""

    start: int  # number of the row group or record batch, first byte of the lines, or WHOLE_FILE
    length: int  # row groups, record batches or bytes
    rows: int


@dataclass(frozen=True)
class Inspection:
    """What the schemas of all files say, so that a second process need not read them again."""

    kinds: Mapping[str, SparseKind]  # of each sparse column, the same in all files
    text_types: Mapping[str, str]  # column -> name of its pyarrow type, in files of text


class Source:
    """The files of a split. Unless `inspected` is given, the constructor checks the schema of each.

    Args:
        spec: the job's data.
        split: of the data.
        inspected: the `inspection` of another source of the same files.

    Raises:
        DataError: there are no files, a file cannot be read, or columns are missing or of the wrong type.
    """

    def __init__(
        self, spec: DataSpec, split: Split, inspected: Inspection | None = None, listed: FileList | None = None
    ) -> None:
        self.spec = spec
        self._list = listed or find_files(spec, split)
        self.field, self.location = self._list.field, self._list.location
        self.filesystem, self.files = self._list.filesystem, self._list.files
        #: Kind of each sparse column, the same in all files.
        self.kinds: Mapping[str, SparseKind] = {}
        #: Rows of all files; None if the format does not store it (all but parquet).
        self.num_rows: int | None = None
        self._groups: dict[str, list[int]] = {}  # path -> rows of the row groups
        self._footers: dict[str, Any] = {}  # path -> pyarrow FileMetaData, of the files opened last
        self._text = TextFormat(spec, self.filesystem)
        tensors = [t.name for t in spec.tensors]
        self._columns = list(dict.fromkeys((*spec.dense, *spec.sparse, *tensors, spec.label)))
        self._partition_types = {n: pa.type_for_alias(t) for n, t in _partition_types(self.files).items()}
        if inspected is not None:
            self.kinds = inspected.kinds
            types = {n: pa.type_for_alias(t) for n, t in inspected.text_types.items()}
            self._text = TextFormat(spec, self.filesystem, types)
        else:
            self._inspect()

    @property
    def inspection(self) -> Inspection:
        """What the schemas say."""
        return Inspection(self.kinds, {name: str(kind) for name, kind in self._text.types.items()})

    @property
    def single_valued(self) -> tuple[str, ...]:
        """The sparse columns with one value per row."""
        return tuple(n for n in self.spec.sparse if self.kinds[n] in ("integer", "text"))

    @property
    def multi_valued(self) -> tuple[str, ...]:
        """The sparse columns of lists."""
        return tuple(n for n in self.spec.sparse if self.kinds[n] not in ("integer", "text"))

    # --- checking -----------------------------------------------------------------------------------------------------
    def _inspect(self) -> None:
        first = self.files[0]
        if self.spec.format == "csv":
            patiently(lambda: self._infer(first), f"{self.field}: {first.path}")
        rows = 0
        with ThreadPoolExecutor(_OPENED_TOGETHER, thread_name_prefix="schemas") as threads:
            schemas = [threads.submit(self._patient_schema, file) for file in self.files]
            try:
                for file, opened in zip(self.files, schemas, strict=True):  # each process reports the same error
                    schema, groups = opened.result()
                    with self._reading(file):  # the names of columns may be damaged
                        self._check(file, schema)
                    self._groups[file.path] = groups
                    rows += sum(groups)
            finally:
                threads.shutdown(cancel_futures=True)
        if self.spec.format == "parquet":
            self.num_rows = rows
            if not rows:
                raise self.empty()

    def empty(self) -> DataError:
        """The error of a split without rows."""
        return DataError(f"{self.field}: {self.location} has no rows")

    def _infer(self, file: SourceFile) -> None:
        with self._reading(file, patient=True):
            self._text.infer(file)

    def _patient_schema(self, file: SourceFile) -> tuple[Any, list[int]]:
        return patiently(lambda: self._schema(file), f"{self.field}: {file.path}")

    def _schema(self, file: SourceFile) -> tuple[Any, list[int]]:
        """The schema of a file with the columns of its folders, and the rows of its row groups (parquet only)."""
        groups: list[int] = []
        with self._reading(file, patient=True):
            if self.spec.format == "parquet":
                with self._open_parquet(file) as parquet:
                    schema, found = parquet.schema_arrow, parquet.metadata
                    groups = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
            elif self.spec.format == "arrow":
                with self._open_arrow(file) as reader:
                    schema = reader.schema
            else:
                schema = self._text.schema(file)
        for name in file.partition:
            if name not in schema.names:
                schema = schema.append(pa.field(name, self._partition_types[name]))
        return schema, groups

    def _check(self, file: SourceFile, schema: Any) -> None:
        kinds = check_columns(schema, self.spec, file.path)
        for name, kind in kinds.items():
            first = self.kinds.get(name, kind)
            if kind != first:
                raise DataError(
                    f"spec.data.sparse: column {name!r} has {kind} values in {file.path} but {first} values in "
                    f"{self.files[0].path}, so equal values would get different ids; write all files with one type"
                )
        self.kinds = kinds

    # --- reading everything -------------------------------------------------------------------------------------------
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
                    chosen = self._chosen(batch, file)
                    place = BatchLocation(file.path, row)
                    yield SourceBatch(chosen, place, min(1.0, (before + fraction * file.size) / total))
                    row += batch.num_rows
            before += file.size

    def _read(self, file: SourceFile) -> Iterator[tuple[Any, float]]:
        """Yield record batches of a file, with the fraction of the file read so far."""
        if self.spec.format == "parquet":
            with self._open_parquet(file) as parquet:
                done, total = 0, parquet.metadata.num_rows
                for batch in parquet.iter_batches(self._batch_rows, columns=self._columns):
                    done += batch.num_rows
                    yield batch, done / total
        elif self.spec.format == "arrow":
            with self._open_arrow(file) as reader:
                whole = hasattr(reader, "num_record_batches")  # the stream format does not store its length
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if whole else reader
                for i, batch in enumerate(batches):
                    fraction = (i + 1) / reader.num_record_batches if whole else 0.5
                    for start in range(0, batch.num_rows, self._batch_rows):  # a batch may be the whole file
                        yield batch.slice(start, self._batch_rows), fraction
        else:
            yield from self._text.batches(file)

    # --- reading in units ---------------------------------------------------------------------------------------------
    def units(self, file: SourceFile) -> Sequence[Unit]:
        """The parts of a file that can be read alone. Reads all of a file that is not parquet.

        Raises:
            DataError: the file is damaged, or cannot be read in parts and is too large to be read whole.
            DataUnavailableError: the filesystem does not answer.
        """
        return patiently(lambda: self._units(file), f"{self.field}: {file.path}")

    def _units(self, file: SourceFile) -> Sequence[Unit]:
        if self.spec.format == "parquet":
            return [Unit(i, 1, rows) for i, rows in enumerate(self._groups[file.path])]
        with self._reading(file, patient=True):
            if self.spec.format == "arrow":
                with self._open_arrow(file) as reader:
                    if hasattr(reader, "num_record_batches"):
                        return [Unit(i, 1, reader.get_batch(i).num_rows) for i in range(reader.num_record_batches)]
            elif not compressed(file):
                return [Unit(r.start, r.length, r.rows) for r in self._text.ranges(file)]
        return [self._whole(file)]

    def _whole(self, file: SourceFile) -> Unit:
        if file.size > _WHOLE_FILE_BYTES:
            kind = "the stream format of Arrow" if self.spec.format == "arrow" else "a compressed file of text"
            raise DataError(
                f"{self.field}: {file.path} has {file.size:,} bytes, but spec.data.access: Streamed reads {kind} as a "
                f"whole, and therefore takes at most {_WHOLE_FILE_BYTES:,}; write parquet, or smaller files"
            )
        with self._reading(file, patient=True):
            return Unit(WHOLE_FILE, 0, sum(batch.num_rows for batch, _ in self._read(file)))

    def read(self, file: SourceFile, unit: Unit) -> Iterator[Any]:
        """Yield the rows of a unit as record batches with the columns of the job.

        Raises:
            DataError: the file is damaged, has disappeared or has changed.
            OSError: the filesystem does not answer.
        """
        self._list.unchanged(file)
        with self._reading(file, patient=True):
            for batch in self._unit_batches(file, unit):
                yield self._chosen(batch, file)

    def _unit_batches(self, file: SourceFile, unit: Unit) -> Iterator[Any]:
        if unit.start == WHOLE_FILE:
            yield from (batch for batch, _ in self._read(file))
        elif self.spec.format == "parquet":
            groups = list(range(unit.start, unit.start + unit.length))
            with self._open_parquet(file) as parquet:
                # The threads that read blocks decode; more of them would only take cores from training.
                yield from parquet.iter_batches(
                    self._batch_rows, row_groups=groups, columns=self._columns, use_threads=False
                )
        elif self.spec.format == "arrow":
            with self._open_arrow(file) as reader:
                for i in range(unit.start, unit.start + unit.length):
                    yield reader.get_batch(i)
        else:
            yield from self._text.read_range(file, LineRange(unit.start, unit.length, unit.rows))

    # --- files --------------------------------------------------------------------------------------------------------
    @property
    def _batch_rows(self) -> int:
        """Rows of a record batch, so that its tensors take a bounded amount of memory."""
        elements = sum(t.size for t in self.spec.tensors)
        return max(1, min(BATCH_ROWS, _BATCH_TENSOR_BYTES // (8 * elements))) if elements else BATCH_ROWS

    def _reading(self, file: SourceFile, *, patient: bool = False) -> Reading:
        """Errors of local files are about their contents; those of a store may pass."""
        return Reading(self.field, file.path, self.spec.format, patient and self.filesystem.type_name != "local")

    def _chosen(self, batch: Any, file: SourceFile) -> Any:
        """The job's columns of a record batch; those that only the names of folders give are added."""
        names = set(batch.schema.names)
        arrays = [
            batch.column(name) if name in names else self._from_folders(file, name, batch.num_rows)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)

    def _from_folders(self, file: SourceFile, name: str, rows: int) -> Any:
        value, kind = file.partition[name], self._partition_types[name]
        return pa.repeat(pa.scalar(value).cast(kind), rows)

    def _open_parquet(self, file: SourceFile) -> Any:
        footer = self._footers.get(file.path)
        stored = self.filesystem.open_input_file(file.path)
        parquet = pa.parquet.ParquetFile(stored, metadata=footer, pre_buffer=True)
        if footer is None:
            while len(self._footers) >= _KEPT_FOOTERS:
                with suppress(KeyError, StopIteration):  # another thread may remove it at the same time
                    del self._footers[next(iter(self._footers))]
            self._footers[file.path] = parquet.metadata
        return parquet

    def _open_arrow(self, file: SourceFile) -> Any:
        """Open the file format (Feather) or the stream format of Arrow IPC."""
        stored = self.filesystem.open_input_file(file.path)
        try:
            return pa.ipc.open_file(stored)
        except pa.ArrowInvalid:
            stored.seek(0)
            return pa.ipc.open_stream(stored)


def _partition_types(files: Sequence[SourceFile]) -> dict[str, str]:
    """The type of each column in the names of folders: integers if all its values are, otherwise text."""
    types: dict[str, str] = {}
    for file in files:
        for name, value in file.partition.items():
            if value is not None and types.get(name) != "string":
                types[name] = "int64" if _is_integer(value) else "string"
            types.setdefault(name, "int64")
    return types


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 19
