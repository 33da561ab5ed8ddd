"""The local cache: a split's rows, checked and hashed once, in memory-mapped files of fixed-width rows.

Each data set has a folder, named by a fingerprint of the source files and the columns:

    CACHE/<fingerprint>/meta.json        contents and file sizes; written last
                        label.npy        (N,) float32, or int64 for classes
                        dense.npy        (N, D) float32
                        sparse.npy       (N, S) int64, the single-valued columns
                        <k>.values.npy   (nnz,) int64 and
                        <k>.offsets.npy  (N + 1,) int64, the k-th multi-valued column
                        tensor-<k>.npy   (N, *shape) float32 or uint8, the k-th tensor column
    CACHE/<fingerprint>.lock             locked while building or opening; contains the progress in per cent
    CACHE/<fingerprint>.building/        an unfinished build, renamed when complete

Processes of a machine share a cache: one builds, the others wait. A new build replaces the `.building` folder of an
interrupted one. `maxBytes` limits all data sets of a cache folder together; the least recently used ones are removed,
unless a process has them open. docs/decisions/0003-data-cache.md gives the reasons for this format.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from heterps_runtime.data.errors import DataCacheError
from heterps_runtime.data.folder import (
    META,
    SAY_SECONDS,
    Progress,
    evict,
    note,
    open_folder,
    open_or_make,
    size_text,
)
from heterps_runtime.data.npy import HEADER_BYTES, NpyWriter
from heterps_runtime.data.records import array_types, arrays_of, row_bytes
from heterps_runtime.data.source import Source
from heterps_runtime.disk import sync_folder

__all__ = ["CachedSplit", "fingerprint", "open_cached"]

_VERSION = 1  # of the layout; part of the fingerprint and of meta.json


@dataclass(frozen=True)
class CachedSplit:
    """A complete cache folder. A shared lock on meta.json prevents its eviction while this object exists."""

    folder: Path
    num_rows: int
    arrays: dict[str, str]  # name of an array -> file
    multi_valued: tuple[str, ...]
    single_valued: tuple[str, ...]


def fingerprint(source: Source) -> str:
    """Identity of a source's rows and columns: 32 hexadecimal digits."""
    spec = source.spec
    value = {
        "version": _VERSION,
        "filesystem": source.filesystem.type_name,
        "files": [(f.path, f.size, f.mtime_ns) for f in source.files],
        "format": spec.format,
        "label": [spec.label, spec.label_kind],
        "dense": spec.dense,
        "sparse": [(name, source.kinds[name]) for name in spec.sparse],
    }
    if spec.tensors:  # scale and offset are applied when rows are read
        value["tensors"] = [(t.name, t.shape, t.dtype) for t in spec.tensors]
    if spec.num_classes is not None:  # labels are checked against it
        value["classes"] = spec.num_classes
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def open_cached(source: Source, progress: Progress) -> CachedSplit:
    """Open the cache of a source; build it first if it is missing or damaged.

    Raises:
        DataError: the data is wrong (see `columns` and `source`).
        DataCacheError: the cache's folder cannot be written or is full, or `maxBytes` is too small.
    """
    return open_or_make(
        source.spec.cache_directory,
        fingerprint(source),
        progress,
        lambda folder: _open(folder, progress),
        lambda folder, lock: _Builder(source, folder, lock, progress).build(),
    )


def _open(folder: Path, progress: Progress) -> CachedSplit | None:
    """Open a complete cache folder; None if there is none, or if it is damaged or of another version, which is said."""

    def read(meta: dict[str, Any]) -> CachedSplit:
        for file, size in meta["sizes"].items():
            found = (folder / file).stat().st_size
            if found != size:
                raise ValueError(f"{file} has {found} bytes instead of {size}")
        return CachedSplit(
            folder, meta["rows"], meta["arrays"], tuple(meta["multiValued"]), tuple(meta["singleValued"])
        )

    return open_folder(folder, _VERSION, read, progress)


class _Builder:
    """Builds one cache folder, under its lock."""

    def __init__(self, source: Source, folder: Path, lock: IO[str], progress: Progress) -> None:
        self.source = source
        self.spec = source.spec
        self.folder = folder
        self.building = folder.with_name(folder.name + ".building")
        self.lock = lock
        self.progress = progress
        self._others: int | None = None  # bytes of other data sets in the cache's folder; None: not measured yet

    def build(self) -> None:
        """Read the source, write the arrays, publish the folder."""
        # Remains of a damaged folder or an interrupted build. We hold the lock, so no other process writes here.
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.building, ignore_errors=True)
        note(self.lock, 0.0)
        if self.source.num_rows is not None and not self.source.multi_valued:
            headers = HEADER_BYTES * len(array_types(self.source))
            self._make_room(headers + row_bytes(self.source) * self.source.num_rows, exact=True)
        self.building.mkdir()
        try:
            self._write()
        except BaseException:
            shutil.rmtree(self.building, ignore_errors=True)
            raise
        self.building.rename(self.folder)
        sync_folder(self.folder.parent)

    def _write(self) -> None:
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(NpyWriter(self.building / self._file(name), dtype, shape))
                for name, (dtype, shape) in array_types(self.source).items()
            }
            self._fill(writers)
            rows = writers["label"].num_rows
            if rows == 0:
                raise self.source.empty()
            for writer in writers.values():
                writer.finish()
        meta = {
            "version": _VERSION,
            "rows": rows,
            "arrays": {name: w.path.name for name, w in writers.items()},
            "sizes": {w.path.name: w.nbytes for w in writers.values()},
            "singleValued": self.source.single_valued,
            "multiValued": self.source.multi_valued,
            "source": self.source.location,  # for users who look into the folder
        }
        with (self.building / META).open("w") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.building)

    def _file(self, name: str) -> str:
        """The file of an array: names of columns may have any characters."""
        column, _, part = name.partition(":")
        if part:
            return f"{self.source.multi_valued.index(column)}.{part}.npy"
        tensors = [t.name for t in self.spec.tensors]
        return f"tensor-{tensors.index(name)}.npy" if name in tensors else f"{name}.npy"

    def _fill(self, writers: dict[str, NpyWriter]) -> None:
        said = -SAY_SECONDS
        for part in self.source.batches():
            for name, array in arrays_of(part.batch, self.source, part.place).items():
                if name.endswith(":offsets"):
                    values = writers[name.replace(":offsets", ":values")]
                    before = values.num_rows - array[-1]  # the values of this part have been written
                    array = array + before if writers[name].num_rows == 0 else array[1:] + before
                writers[name].append(array)
            written = sum(w.nbytes for w in writers.values())
            self._make_room(written, exact=False, fraction=part.fraction)
            now = time.monotonic()
            if now - said >= SAY_SECONDS or part.fraction == 1.0:
                said = now
                self._say(part.fraction, writers["label"].num_rows)

    def _say(self, fraction: float, rows: int) -> None:
        self.progress(fraction, f"preparing the data: {rows:,} rows ({fraction:.0%})")
        note(self.lock, fraction)

    # --- spec.data.cache.maxBytes -------------------------------------------------------------------------------------
    def _make_room(self, needed: int, *, exact: bool, fraction: float = 1.0) -> None:
        """Keep all data sets together within maxBytes; `needed` is the size of this one so far."""
        limit = self.spec.cache_max_bytes
        if self._others is None or self._others + needed > limit:
            self._others = evict(self.folder.parent, limit - needed, self.folder, self.progress)
        if self._others + needed > limit:
            # While writing, the total is extrapolated from the part read so far.
            total = needed if exact else int(needed / max(fraction, 1e-3))
            used = f", in addition to {size_text(self._others)} of data sets in use" if self._others else ""
            raise DataCacheError(
                f"spec.data.cache.maxBytes: is {size_text(limit)}, but {self.source.field} needs "
                f"{'' if exact else 'about '}{size_text(total)} in {self.folder.parent}{used}; "
                f"raise it to at least {total + self._others}"
            )
