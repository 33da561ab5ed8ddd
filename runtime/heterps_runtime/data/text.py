"""CSV files and Criteo click logs: whole, as a stream of record batches, or a range of lines.

A line ends at a newline, also within quotes, as in pyarrow's default. So a file can be cut at any newline, and its rows
can be counted without parsing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from heterps_runtime.data.columns import missing_as_zero
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.files import SourceFile
from heterps_runtime.data.spec import CRITEO_DENSE, CRITEO_LABEL, CRITEO_SPARSE, DataSpec

__all__ = ["LineRange", "TextFormat", "compressed"]

BLOCK_BYTES = 8 * 2**20  # of lines that are parsed together; CSV types are inferred from the first block

_CODECS: dict[str, str] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_NEWLINE, _RETURN = 10, 13


def compressed(file: SourceFile) -> bool:
    """Whether a text file is compressed, so that it cannot be read from the middle."""
    return _codec(file) is not None


def _codec(file: SourceFile) -> str | None:
    return next((codec for suffix, codec in _CODECS.items() if file.path.endswith(suffix)), None)


@dataclass(frozen=True)
class LineRange:
    """Consecutive lines of a file, without its header."""

    start: int  # byte
    length: int  # bytes
    rows: int


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
class _Progress:
    """Progress in a file. The parser reads ahead, so the number of bytes read is not enough."""

    stored: _Counted  # the file
    plain: _Counted  # decompressed from it; the same object if it is not compressed
    size: int  # bytes of the file

    def fraction(self, blocks: int) -> float:
        """The fraction of the file in the first `blocks` blocks, if it compresses evenly."""
        packed = blocks * BLOCK_BYTES * self.stored.count / max(1, self.plain.count)
        return min(1.0, packed / max(1, self.size))


class TextFormat:
    """Reads files of `spec.data.format` csv or criteo-tsv.

    Args:
        spec: the job's data.
        filesystem: of the files, from pyarrow.
        types: column -> pyarrow type, the same in all files; see `infer`. Others are inferred from each file.
    """

    def __init__(self, spec: DataSpec, filesystem: Any, types: Mapping[str, Any] | None = None) -> None:
        self._spec = spec
        self._filesystem = filesystem
        self._criteo = spec.format == "criteo-tsv"
        self.types: dict[str, Any] = dict(types or {})
        if self._criteo:
            self.types = dict.fromkeys((CRITEO_LABEL, *CRITEO_DENSE), pa.float64())
            self.types |= dict.fromkeys(CRITEO_SPARSE, pa.string())

    def infer(self, file: SourceFile) -> None:
        """Fix the types of columns: numbers are float64, sparse columns integers if possible, else text."""
        if self._criteo:
            return
        kinds = {f.name: f.type for f in self.schema(file)}
        for name in {*self._spec.dense, self._spec.label} & kinds.keys():
            kind = kinds[name]
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
                self.types[name] = pa.float64()
        for name in set(self._spec.sparse) & kinds.keys():
            self.types[name] = pa.int64() if pa.types.is_integer(kinds[name]) else pa.string()

    def schema(self, file: SourceFile) -> Any:
        """The pyarrow Schema of a file."""
        reader, _ = self._open(file, {})
        with reader:
            found = reader.schema
        return pa.schema([(f.name, self.types.get(f.name, f.type)) for f in found])

    def batches(self, file: SourceFile) -> Iterator[tuple[Any, float]]:
        """Yield the record batches of a file, with the fraction of the file read so far."""
        reader, progress = self._open(file, self.types)
        with reader:
            for block, batch in enumerate(reader):
                yield self._filled(batch), progress.fraction(block + 1)

    # --- ranges -------------------------------------------------------------------------------------------------------
    def ranges(self, file: SourceFile) -> list[LineRange]:
        """Cut an uncompressed file into ranges of about `BLOCK_BYTES`. Reads the whole file, and counts its lines."""
        made: list[LineRange] = []
        with self._filesystem.open_input_file(file.path) as stream:
            start = 0 if self._criteo else _header_bytes(stream)
            while start < file.size:
                data = np.frombuffer(stream.read_at(min(BLOCK_BYTES, file.size - start), start), dtype=np.uint8)
                newlines = np.flatnonzero(data == _NEWLINE)
                last = start + len(data) >= file.size
                if not last and not len(newlines):
                    raise DataError(f"{file.path}: a line is longer than {BLOCK_BYTES:,} bytes")
                length = len(data) if last else int(newlines[-1]) + 1
                made.append(LineRange(start, length, _count_rows(data[:length], newlines)))
                start += length
        return made

    def read_range(self, file: SourceFile, lines: LineRange) -> Iterator[Any]:
        """Yield the record batches of a range of lines."""
        with self._filesystem.open_input_file(file.path) as stream:
            names = self._names(file)
            data = stream.read_at(lines.length, lines.start)
        read, parse, convert = self._options(self.types, names)
        table = pa.csv.read_csv(pa.BufferReader(data), read_options=read, parse_options=parse, convert_options=convert)
        if table.num_rows != lines.rows:
            raise DataError(
                f"{file.path}: {lines.rows:,} lines from byte {lines.start:,} on are {table.num_rows:,} rows; a value "
                "has a line break in quotes, which spec.data.access: Streamed cannot read from csv; write parquet"
            )
        for batch in table.to_batches():
            yield self._filled(batch)

    def _names(self, file: SourceFile) -> list[str]:
        return [f.name for f in self.schema(file)]

    # --- opening ------------------------------------------------------------------------------------------------------
    def _filled(self, batch: Any) -> Any:
        return missing_as_zero(batch, self._spec.dense) if self._criteo else batch

    def _options(self, types: Mapping[str, Any], names: list[str] | None = None) -> tuple[Any, Any, Any]:
        if self._criteo:
            names = [CRITEO_LABEL, *CRITEO_DENSE, *CRITEO_SPARSE]
            parse = pa.csv.ParseOptions(delimiter="\t", quote_char=False)
            types = self.types
        else:
            parse = pa.csv.ParseOptions()
        read = pa.csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES)
        return read, parse, pa.csv.ConvertOptions(column_types=dict(types))

    def _open(self, file: SourceFile, types: Mapping[str, Any]) -> tuple[Any, _Progress]:
        stored = _Counted(self._filesystem.open_input_stream(file.path, compression=None))
        stream: Any = pa.PythonFile(stored, mode="r")
        codec, plain = _codec(file), stored
        if codec is not None:
            plain = _Counted(pa.CompressedInputStream(stream, codec))
            stream = pa.PythonFile(plain, mode="r")
        read, parse, convert = self._options(types)
        reader = pa.csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
        return reader, _Progress(stored, plain, file.size)


def _header_bytes(stream: Any) -> int:
    """Bytes of the first line."""
    end = stream.read_at(BLOCK_BYTES, 0).find(b"\n")
    return int(end) + 1 if end >= 0 else int(stream.size())


def _count_rows(data: Any, newlines: Any) -> int:
    """Lines of uint8 data (n,) that are not empty; `newlines` are the positions of newlines in it, int64."""
    ends = newlines if len(data) and data[-1] == _NEWLINE else np.append(newlines, len(data))
    if not len(ends):
        return 0
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    only_return = (lengths == 1) & (data[np.minimum(starts, len(data) - 1)] == _RETURN)
    return int(((lengths > 0) & ~only_return).sum())
