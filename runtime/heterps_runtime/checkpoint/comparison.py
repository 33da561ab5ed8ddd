"""What changed from one checkpoint to another: rows by table, dense arrays by name, and fields of the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.dense import read_dense
from heterps_runtime.checkpoint.manifest import ID_BITS, CheckpointManifest, differences
from heterps_runtime.checkpoint.restore import iterate_rows
from heterps_runtime.partition.splitmix import mix64
from heterps_runtime.storage import Storage

__all__ = ["ArrayChange", "Comparison", "TableChange", "compare"]

Array = npt.NDArray[Any]

_MOST_BYTES = 512 << 20  # of files whose rows are held at a time


@dataclass
class TableChange:
    """The rows of an embedding table in two checkpoints.

    Attributes:
        name: of the parameter in the user's module.
        before: number of rows in the first checkpoint.
        after: number of rows in the second one.
        added: rows that only the second one has.
        removed: rows that only the first one has.
        changed: rows of both with another value.
        largest: greatest difference of an element of such a row.
    """

    name: str
    before: int = 0
    after: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    largest: float = 0.0


@dataclass(frozen=True)
class ArrayChange:
    """A dense array in two checkpoints.

    Attributes:
        name: of the parameter or buffer; its optimizer state is `NAME::exp_avg` and so on.
        elements: number of its elements, in the second checkpoint if it is there.
        changed: elements of another value; all of them if only one checkpoint has the array, or its shape differs.
        largest: greatest difference of an element; not a number if they cannot be compared.
    """

    name: str
    elements: int
    changed: int
    largest: float


@dataclass(frozen=True)
class Comparison:
    """What changed from one checkpoint to another.

    Attributes:
        fields: (field, value before, value after) of the job and of its plan.
        tables: by index.
        arrays: by name.
    """

    fields: list[tuple[str, str, str]]
    tables: list[TableChange]
    arrays: list[ArrayChange]


def compare(
    storage: Storage, before: CheckpointManifest, after: CheckpointManifest, *, most_bytes: int = _MOST_BYTES
) -> Comparison:
    """Compare two checkpoints of a path.

    Rows are compared in parts of the keys, each of which is read from all files, so that memory stays bounded.

    Args:
        storage: the storage of the checkpoints.
        before: the first checkpoint.
        after: the second one.
        most_bytes: of row files that are held in memory at a time.

    Raises:
        DamagedError: a file does not match its manifest.
        StorageError: a file cannot be read.
    """
    fields = [
        *differences(before.fingerprint, after.fingerprint),
        *differences({"plan": before.plan}, {"plan": after.plan}),
    ]
    tables = {record.index: TableChange(record.name) for record in (*before.tables, *after.tables)}
    size = sum(entry.bytes for manifest in (before, after) for entry in manifest.files_of("rows"))
    parts = max(1, math.ceil(size / most_bytes))
    for part in range(parts):
        one, other = _rows(storage, before, part, parts), _rows(storage, after, part, parts)
        for dim in sorted({*one, *other}):
            _compare_rows(one.get(dim, _no_rows(dim)), other.get(dim, _no_rows(dim)), tables)
    arrays = [
        change
        for role in ("dense", "buffers")
        for change in _compare_arrays(read_dense(storage, before, role=role), read_dense(storage, after, role=role))
    ]
    return Comparison(fields, [tables[index] for index in sorted(tables)], arrays)


def _rows(
    storage: Storage, manifest: CheckpointManifest, part: int, parts: int
) -> dict[int, tuple[npt.NDArray[np.int64], Array]]:
    """Return, by dim, the keys (n,) of a part in ascending order, and their rows (n, dim)."""

    def wanted(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = mix64(keys.view(np.uint64)) % np.uint64(parts) == part
        return mask

    pieces: dict[int, list[tuple[npt.NDArray[np.int64], Array]]] = {}
    for block in iterate_rows(storage, manifest, wanted if parts > 1 else None, with_state=False):
        pieces.setdefault(block.dim, []).append((block.keys, block.rows))
    sorted_rows = {}
    for dim, found in pieces.items():
        keys, rows = np.concatenate([k for k, _ in found]), np.concatenate([r for _, r in found])
        order = np.argsort(keys, kind="stable")
        last = np.ones(len(keys), np.bool_)  # of equal keys, the newest row
        last[:-1] = keys[order][1:] != keys[order][:-1]
        order = order[last]
        sorted_rows[dim] = (keys[order], rows[order])
    return sorted_rows


def _no_rows(dim: int) -> tuple[npt.NDArray[np.int64], Array]:
    return np.empty(0, np.int64), np.empty((0, dim), np.float32)


def _compare_rows(
    before: tuple[npt.NDArray[np.int64], Array],
    after: tuple[npt.NDArray[np.int64], Array],
    tables: dict[int, TableChange],
) -> None:
    (keys, rows), (new_keys, new_rows) = before, after
    common, here, there = np.intersect1d(keys, new_keys, assume_unique=True, return_indices=True)
    old, new = rows[here].astype(np.float64), new_rows[there].astype(np.float64)
    largest = np.abs(new - old).max(axis=1, initial=0.0)
    changed = (old != new).any(axis=1)
    for index, count in _by_table(keys):
        tables[index].before += count
        tables[index].removed += count
    for index, count in _by_table(new_keys):
        tables[index].after += count
        tables[index].added += count
    for index, count in _by_table(common):
        tables[index].removed -= count
        tables[index].added -= count
    for index, count in _by_table(common[changed]):
        mine = largest[changed & ((common >> ID_BITS) == index)]
        tables[index].changed += count
        tables[index].largest = float(np.maximum(tables[index].largest, mine.max()))


def _by_table(keys: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (index, number of keys) of each table."""
    indices, counts = np.unique(keys >> ID_BITS, return_counts=True)
    yield from zip(indices.tolist(), counts.tolist(), strict=True)


def _compare_arrays(before: dict[str, Array], after: dict[str, Array]) -> Iterator[ArrayChange]:
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None or one.shape != other.shape:
            there = one if other is None else other
            assert there is not None
            yield ArrayChange(name, there.size, there.size, math.nan)
            continue
        difference = np.abs(other.astype(np.float64) - one.astype(np.float64))
        yield ArrayChange(name, other.size, int((one != other).sum()), float(difference.max(initial=0.0)))
