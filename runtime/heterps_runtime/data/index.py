"""The index of a streamed split: its blocks, the parts of files that are read together.

A block is one row group or record batch, or some MiB of lines; small ones of a file are taken together, because each
read has a price. The index is made once, from the footers of all files, and kept in the cache:

    CACHE/<fingerprint>/blocks.npy   (M, 4) int64: the number of each block's file, and its `Unit`
                        meta.json    what the files' schemas say; written last

A process that finds it there opens no file before it reads blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.columns import SparseKind
from heterps_runtime.data.files import FileList, find_files
from heterps_runtime.data.folder import META, Progress, note, open_folder, open_or_make
from heterps_runtime.data.npy import map_array
from heterps_runtime.data.source import Inspection, Source, Unit
from heterps_runtime.data.spec import DataSpec, Split

__all__ = ["Index", "open_index"]

LEAST_ROWS = 4096  # of a block, unless its file has fewer, or a window would have few blocks then
_BLOCKS_PER_WINDOW = 128  # enough for the mixture of a window to be that of the data

_VERSION = 1  # of meta.json, and of the division into blocks
_BLOCKS = "blocks.npy"
_SCANNED_TOGETHER = 16  # files
_MOST_ROWS = 2**40  # of a block


@dataclass(frozen=True)
class Index:
    """The blocks of a split, in the order of its rows. The folder is not evicted while this object exists."""

    source: Source
    folder: Path
    files: npt.NDArray[np.int64]  # (M,) number of each block's file
    units: npt.NDArray[np.int64]  # (M, 3) `Unit` of each block
    starts: npt.NDArray[np.int64]  # (M + 1,) number of each block's first row, and of all rows

    @property
    def num_rows(self) -> int:
        """Rows of the split."""
        return int(self.starts[-1])

    @property
    def block_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each block, (M,)."""
        return self.units[:, 2]

    @property
    def layout(self) -> str:
        """Identity of the division into blocks, on which the order of rows depends: 16 hexadecimal digits."""
        return hashlib.blake2b(self.block_rows.tobytes(), digest_size=8).hexdigest()

    def unit(self, block: int) -> Unit:
        """The part of its file that a block is."""
        start, length, rows = (int(n) for n in self.units[block])
        return Unit(start, length, rows)

    def first_in_file(self, block: int) -> int:
        """The number of a block's first row within its file."""
        first = int(np.searchsorted(self.files, self.files[block]))
        return int(self.starts[block] - self.starts[first])


def open_index(spec: DataSpec, split: Split, progress: Progress) -> Index:
    """Open the index of a split; make it first if it is missing.

    Raises:
        DataError: there are no files or no rows, or a file cannot be read or has another schema.
        DataCacheError: the cache's folder cannot be written.
    """
    listed = find_files(spec, split)

    def make(folder: Path, lock: IO[str]) -> None:
        note(lock, 0.0)
        folder.mkdir(exist_ok=True)
        (folder / META).unlink(missing_ok=True)  # a damaged one
        source = Source(spec, split, listed=listed)
        np.save(folder / _BLOCKS, _make(source, progress))
        partial = folder / f"{META}.partial"
        partial.write_text(json.dumps(_meta(source)))
        partial.rename(folder / META)

    return open_or_make(
        spec.cache_directory,
        _fingerprint(spec, listed),
        progress,
        lambda folder: _open(folder, spec, split, listed, progress),
        make,
    )


def _least_rows(spec: DataSpec) -> int:
    """Rows below which parts of a file are taken together."""
    return max(1, min(LEAST_ROWS, spec.window_rows // _BLOCKS_PER_WINDOW))


def _fingerprint(spec: DataSpec, listed: FileList) -> str:
    value = {
        "index": _VERSION,
        "leastRows": _least_rows(spec),
        "filesystem": listed.filesystem.type_name,
        "files": [(f.path, f.size, f.mtime_ns) for f in listed.files],
        "format": spec.format,
        "label": [spec.label, spec.label_kind, spec.num_classes],
        "dense": spec.dense,
        "sparse": spec.sparse,
        "tensors": [(t.name, t.shape, t.dtype) for t in spec.tensors],
    }
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def _open(folder: Path, spec: DataSpec, split: Split, listed: FileList, progress: Progress) -> Index | None:
    """Open the index in a folder; None if there is none, or a damaged one."""

    def read(meta: dict[str, Any]) -> Index:
        blocks = map_array(folder / _BLOCKS)
        if blocks.dtype != np.int64 or blocks.ndim != 2 or blocks.shape[1] != 4:
            raise ValueError(f"{_BLOCKS} has no blocks")
        files, units = blocks[:, 0], blocks[:, 1:]
        in_order = len(files) and files[0] >= 0 and (np.diff(files) >= 0).all() and files[-1] < len(listed.files)
        if not in_order or units[:, 2].min() < 1 or units[:, 2].max() > _MOST_ROWS:
            raise ValueError(f"{_BLOCKS} has wrong blocks")
        schemas = Inspection(**meta["schemas"])
        if not all(schemas.kinds[name] in get_args(SparseKind) for name in spec.sparse):
            raise ValueError(f"{META} has wrong schemas")
        source = Source(spec, split, schemas, listed)
        return Index(source, folder, files, units, np.concatenate([[0], np.cumsum(units[:, 2])]))

    return open_folder(folder, _VERSION, read, progress)


def _make(source: Source, progress: Progress) -> npt.NDArray[np.int64]:
    """Find the blocks of all files, (M, 4)."""
    parts: list[npt.NDArray[np.int64]] = []
    with ThreadPoolExecutor(_SCANNED_TOGETHER, thread_name_prefix="index") as threads:
        scans = [threads.submit(source.units, file) for file in source.files]
        try:
            for number, scan in enumerate(scans):
                units = _merged(scan.result(), _least_rows(source.spec))
                parts.append(np.array([(number, u.start, u.length, u.rows) for u in units], np.int64).reshape(-1, 4))
                fraction = (number + 1) / len(scans)
                progress(fraction, f"reading the index of the data: {number + 1:,} of {len(scans):,} files")
        finally:
            threads.shutdown(cancel_futures=True)
    blocks = np.concatenate(parts)
    if not len(blocks):
        raise source.empty()
    return blocks


def _meta(source: Source) -> dict[str, Any]:
    found = source.inspection
    return {
        "version": _VERSION,
        "schemas": {name: dict(getattr(found, name)) for name in Inspection.__dataclass_fields__},
        "source": source.location,  # for users who look into the folder
    }


def _merged(units: Sequence[Unit], least_rows: int) -> Iterable[Unit]:
    """Take consecutive units together until they have enough rows; leave out those without rows."""
    open_unit: Unit | None = None
    for unit in units:
        if open_unit is None:
            open_unit = unit
        else:
            end = unit.start + unit.length
            open_unit = replace(open_unit, length=end - open_unit.start, rows=open_unit.rows + unit.rows)
        if open_unit.rows >= least_rows:
            yield open_unit
            open_unit = None
    if open_unit is not None and open_unit.rows:
        yield open_unit
