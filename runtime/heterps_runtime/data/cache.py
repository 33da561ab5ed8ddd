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

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.columns import dense_values, label_values
from heterps_runtime.data.errors import DataCacheError, DataError
from heterps_runtime.data.ids import column_ids, list_ids
from heterps_runtime.data.npy import HEADER_BYTES, NpyWriter
from heterps_runtime.data.source import Source
from heterps_runtime.data.tensors import tensor_values
from heterps_runtime.disk import sync_folder

__all__ = ["CachedSplit", "Progress", "fingerprint", "open_cached"]

#: Called with the fraction done (0 to 1) and a description for users.
Progress = Callable[[float, str], None]

_VERSION = 1  # of the layout; part of the fingerprint and of meta.json
_POLL_SECONDS = 0.1  # while another process builds
_SAY_SECONDS = 1.0  # between messages


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
    directory = source.spec.cache_directory
    name = fingerprint(source)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f"{name}.lock", progress) as lock:
            folder = directory / name
            opened = _open(folder, progress)
            if opened is None:
                _Builder(source, folder, lock, progress).build()
                opened = _open(folder, progress)
                assert opened is not None, f"{folder} was just built"
            return opened
    except OSError as error:
        raise _explained(error, directory) from error


def _explained(error: OSError, directory: Path) -> DataCacheError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataCacheError(
            f"spec.data.cache.directory: the disk of {directory} is full ({error.strerror}); free some space, "
            f"use a folder on another disk, or set spec.data.cache.maxBytes so that old data sets are removed"
        )
    return DataCacheError(
        f"spec.data.cache.directory: {directory} cannot be used: {error.strerror or error}; use a writable folder"
    )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[IO[str]]:
    """Hold a data set's lock. While another process holds it, report that process's progress."""
    with path.open("a+") as lock:
        said = -_SAY_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - said >= _SAY_SECONDS:
                    said = now
                    lock.seek(0)
                    text = lock.read().strip()
                    percent = int(text) if text.isdecimal() else 0
                    progress(percent / 100, f"waiting: another process is preparing the data ({percent} %)")
                time.sleep(_POLL_SECONDS)
        yield lock  # closing the file releases the lock, and so does the end of the process


def _open(folder: Path, progress: Progress) -> CachedSplit | None:
    """Open a complete cache folder; None if there is none, or if it is damaged or of another version, which is said."""
    try:
        descriptor = os.open(folder / "meta.json", os.O_RDONLY)
    except FileNotFoundError:
        return None
    # Lock before reading: a locked folder is not evicted, and one evicted in the meantime is found to be missing.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["version"] != _VERSION:
            raise ValueError(f"meta.json has version {meta['version']}, this program reads version {_VERSION}")
        for file, size in meta["sizes"].items():
            found = (folder / file).stat().st_size
            if found != size:
                raise ValueError(f"{file} has {found} bytes instead of {size}")
        cached = CachedSplit(
            folder, meta["rows"], meta["arrays"], tuple(meta["multiValued"]), tuple(meta["singleValued"])
        )
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        os.close(descriptor)
        progress(0.0, f"the data cache {folder} is damaged or of another version ({error}); building it again")
        return None
    weakref.finalize(cached, os.close, descriptor)  # which releases the lock
    os.utime(folder)  # the time of last use, for eviction
    return cached


class _Builder:
    """Builds one cache folder, under its lock."""

    def __init__(self, source: Source, folder: Path, lock: IO[str], progress: Progress) -> None:
        self.source = source
        self.spec = source.spec
        self.folder = folder
        self.building = folder.with_name(folder.name + ".building")
        self.lock = lock
        self.progress = progress
        self.single = tuple(n for n in self.spec.sparse if source.kinds[n] in ("integer", "text"))
        self.multi = tuple(n for n in self.spec.sparse if n not in self.single)
        self._others: int | None = None  # bytes of other data sets in the cache's folder; None: not measured yet

    def build(self) -> None:
        """Read the source, write the arrays, publish the folder."""
        # Remains of a damaged folder or an interrupted build. We hold the lock, so no other process writes here.
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.building, ignore_errors=True)
        self._note(0.0)
        if self.source.num_rows is not None and not self.multi:
            self._make_room(self._fixed_bytes(self.source.num_rows), exact=True)
        self.building.mkdir()
        try:
            self._write()
        except BaseException:
            shutil.rmtree(self.building, ignore_errors=True)
            raise
        self.building.rename(self.folder)
        sync_folder(self.folder.parent)

    def _fixed_bytes(self, rows: int) -> int:
        """Size of the arrays of fixed width."""
        label = 8 if self.spec.label_kind == "class" else 4
        widths = [w for w in (label, 4 * len(self.spec.dense), 8 * len(self.single)) if w]
        widths += [t.size * np.dtype(t.dtype).itemsize for t in self.spec.tensors]
        return sum(HEADER_BYTES + rows * width for width in widths)

    def _write(self) -> None:
        spec = self.spec
        with ExitStack() as stack:
            writers: dict[str, NpyWriter] = {}

            def add(name: str, file: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
                writers[name] = stack.enter_context(NpyWriter(self.building / file, dtype, row_shape))

            add("label", "label.npy", np.int64 if spec.label_kind == "class" else np.float32, ())
            if spec.dense:
                add("dense", "dense.npy", np.float32, (len(spec.dense),))
            if self.single:
                add("sparse", "sparse.npy", np.int64, (len(self.single),))
            for k, name in enumerate(self.multi):
                add(f"{name}:values", f"{k}.values.npy", np.int64, ())
                add(f"{name}:offsets", f"{k}.offsets.npy", np.int64, ())
                writers[f"{name}:offsets"].append(np.zeros(1, dtype=np.int64))
            for k, tensor in enumerate(spec.tensors):
                add(tensor.name, f"tensor-{k}.npy", tensor.dtype, tensor.shape)
            self._fill(writers)
            rows = writers["label"].num_rows
            if rows == 0:
                raise DataError(f"{self.source.field}: {self.source.location} has no rows")
            for writer in writers.values():
                writer.finish()
        meta = {
            "version": _VERSION,
            "rows": rows,
            "arrays": {name: w.path.name for name, w in writers.items()},
            "sizes": {w.path.name: w.nbytes for w in writers.values()},
            "singleValued": self.single,
            "multiValued": self.multi,
            "source": self.source.location,  # for users who look into the folder
        }
        with (self.building / "meta.json").open("w") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.building)

    def _fill(self, writers: dict[str, NpyWriter]) -> None:
        said = -_SAY_SECONDS
        for part in self.source.batches():
            batch, place = part.batch, part.place
            writers["label"].append(label_values(batch, self.spec, place))
            if self.spec.dense:
                writers["dense"].append(dense_values(batch, self.spec.dense, place))
            if self.single:
                ids = np.empty((batch.num_rows, len(self.single)), dtype=np.int64)  # (n, S)
                for j, name in enumerate(self.single):
                    ids[:, j] = column_ids(batch.column(name))
                writers["sparse"].append(ids)
            for name in self.multi:
                values, lengths = list_ids(batch.column(name))
                offsets = writers[f"{name}:values"].num_rows + np.cumsum(lengths)
                writers[f"{name}:values"].append(values)
                writers[f"{name}:offsets"].append(offsets)
            for k, tensor in enumerate(self.spec.tensors):
                writers[tensor.name].append(tensor_values(batch.column(tensor.name), tensor, k, place))
            written = sum(w.nbytes for w in writers.values())
            self._make_room(written, exact=False, fraction=part.fraction)
            now = time.monotonic()
            if now - said >= _SAY_SECONDS or part.fraction == 1.0:
                said = now
                self._say(part.fraction, writers["label"].num_rows)

    def _say(self, fraction: float, rows: int) -> None:
        self.progress(fraction, f"preparing the data: {rows:,} rows ({fraction:.0%})")
        self._note(fraction)

    def _note(self, fraction: float) -> None:
        """Write the progress to the lock file, for waiting processes."""
        self.lock.seek(0)
        self.lock.truncate()
        self.lock.write(f"{100 * fraction:.0f}\n")
        self.lock.flush()

    # --- spec.data.cache.maxBytes -------------------------------------------------------------------------------------
    def _make_room(self, needed: int, *, exact: bool, fraction: float = 1.0) -> None:
        """Keep all data sets together within maxBytes; `needed` is the size of this one so far."""
        limit = self.spec.cache_max_bytes
        if self._others is None or self._others + needed > limit:
            self._others = self._evict(limit - needed)
        if self._others + needed > limit:
            # While writing, the total is extrapolated from the part read so far.
            total = needed if exact else int(needed / max(fraction, 1e-3))
            used = f", in addition to {_size(self._others)} of data sets in use" if self._others else ""
            raise DataCacheError(
                f"spec.data.cache.maxBytes: is {_size(limit)}, but {self.source.field} needs "
                f"{'' if exact else 'about '}{_size(total)} in {self.folder.parent}{used}; "
                f"raise it to at least {total + self._others}"
            )

    def _evict(self, allowed: int) -> int:
        """Remove the other data sets, least recently used first, until they take at most `allowed` bytes.

        Returns:
            The bytes that remain, more than `allowed` if they are in use.
        """
        directory = self.folder.parent
        for leftover in directory.glob("*.building"):
            if leftover != self.building:
                _remove_unless_locked(leftover, directory / f"{leftover.stem}.lock")  # of a killed build
        used, sizes = {}, {}
        for meta in directory.glob("*/meta.json"):
            if meta.parent in (self.folder, self.building):
                continue
            with suppress(FileNotFoundError):  # another process may evict at the same time
                used[meta.parent] = meta.parent.stat().st_mtime_ns
                sizes[meta.parent] = sum(f.stat().st_size for f in meta.parent.iterdir())
        for folder in sorted(sizes, key=lambda f: used[f]):
            if sum(sizes.values()) <= allowed:
                break
            if _remove_unless_locked(folder, folder / "meta.json"):
                del sizes[folder]
                self.progress(0.0, f"removed the data set {folder.name} from the cache, to stay within maxBytes")
        return sum(sizes.values())


def _remove_unless_locked(folder: Path, lock_file: Path) -> bool:
    """Remove a folder unless another process holds its lock; returns whether it is gone."""
    try:
        with lock_file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return not folder.exists()
    return True


def _size(count: int) -> str:
    """A number of bytes in the units of manifests."""
    value, unit = float(count), ""
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if value < 1024 or unit == "Ti":
            break
        value /= 1024
    return f"{value:.4g}{unit or ' bytes'}"
