"""Reading the rows of a checkpoint, into any number of shards.

Row files are read in bounded pieces and filtered by key, so that a shard never holds more than one piece beyond its own
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.format import FileEntry, TensorFile
from heterps_runtime.checkpoint.manifest import CheckpointManifest
from heterps_runtime.storage import Storage

__all__ = ["RowBlock", "count_rows", "iterate_keys", "iterate_rows"]

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.int64]
Wanted = Callable[[Keys], npt.NDArray[np.bool_]]

_BLOCK_ROWS = 65_536  # 4 MB of rows at dim 16
_LAST_STEP = "last_step"  # state that the rows of some stores have
_PREFIX = re.compile(r"[a-z]+-([0-9]{1,9})/([0-9]+/)?")


@dataclass(frozen=True)
class _Group:
    """Arrays of rows in a file."""

    prefix: str  # of their names, such as `group-16/0/`
    dim: int
    count: int


@dataclass(frozen=True)
class RowBlock:
    """Rows, or candidates, of one dim with their state. The arrays may be read-only views of the file."""

    dim: int
    keys: Keys  # (n,)
    rows: Array  # (n, dim); (n, 0) of candidates
    state: dict[str, Array]  # name -> (n, ...)


def iterate_rows(
    storage: Storage,
    manifest: CheckpointManifest,
    wanted: Wanted | None = None,
    *,
    files: Iterable[FileEntry] | None = None,
    with_state: bool = True,
    kind: str = "group",
    block_rows: int = _BLOCK_ROWS,
) -> Iterator[RowBlock]:
    """Read the wanted rows of a checkpoint, in bounded pieces. Those that were evicted since are left out.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: the checkpoint.
        wanted: keys (n,) -> mask (n,) of the rows to return; None: all.
        files: of rows, to read; None: all.
        with_state: also read the state, of optimizers and of access.
        kind: "group": rows; "candidates": ids that have no row yet.
        block_rows: rows to read at a time.

    Yields:
        Non-empty blocks. A row that has changed since the first file of its server is in several: the last is valid.
        Of candidates, those are valid that have no row.

    Raises:
        DamagedError: a file does not match the manifest.
        StorageError: a file cannot be read.
    """
    for file, group, start, keys, there in _key_blocks(storage, manifest, block_rows, files, kind):
        prefix, dim, stop = group.prefix, group.dim, start + len(keys)
        # Files hold rows in no order of keys, so reading a piece and selecting is faster than many small reads.
        mask = there if wanted is None else wanted(keys) if there is None else wanted(keys) & there
        if mask is not None and not mask.any():
            continue
        names = [n for n in file.specs if n.startswith(f"{prefix}state/")] if with_state else []
        rows = file.read(f"{prefix}rows", start, stop) if kind == "group" else np.empty((len(keys), 0))
        state = {name.removeprefix(f"{prefix}state/"): file.read(name, start, stop) for name in names}
        if mask is None or mask.all():
            yield RowBlock(dim, keys, rows, state)
        else:
            yield RowBlock(dim, keys[mask], rows[mask], {name: values[mask] for name, values in state.items()})


def iterate_keys(storage: Storage, manifest: CheckpointManifest) -> Iterator[Keys]:
    """Read all keys of a checkpoint (n,) in bounded pieces, without the rows; a key may come several times."""
    for _, _, _, keys, there in _key_blocks(storage, manifest, 16 * _BLOCK_ROWS):
        yield keys if there is None else keys[there]


def count_rows(storage: Storage, manifest: CheckpointManifest, entry: FileEntry) -> dict[int, int]:
    """Count, by dimension, by how many rows a file has more than the earlier files of its server; its header tells.

    What is new of several dimensions is estimated by their shares of the file.

    Raises:
        DamagedError: the file is truncated.
        StorageError: it cannot be read.
    """
    counts: dict[int, int] = {}
    with TensorFile(storage, manifest.path_of(entry)) as file:
        for group in _groups(file, "group"):
            counts[group.dim] = counts.get(group.dim, 0) + group.count
    total = sum(counts.values())
    if entry.added is None or not total:
        return counts
    return {dim: count * entry.added // total for dim, count in counts.items()}


def _key_blocks(
    storage: Storage,
    manifest: CheckpointManifest,
    block_rows: int,
    files: Iterable[FileEntry] | None = None,
    kind: str = "group",
) -> Iterator[tuple[TensorFile, _Group, int, Keys, npt.NDArray[np.bool_] | None]]:
    """Read the keys of the files, by default of all, in pieces.

    Yields:
        (file, group, index of the first row, keys (n,), which of them are not gone, (n,)); None: all.

    Raises:
        DamagedError: the file or the manifest is malformed.
    """
    ages = manifest.ages(kind)
    for entry in manifest.files_of("rows") if files is None else files:
        with TensorFile(storage, manifest.path_of(entry)) as file:
            for group in _groups(file, kind):
                last_steps = f"{group.prefix}state/{_LAST_STEP}"
                goes = ages.any and last_steps in file.specs  # an imported model may come without state
                for start in range(0, group.count, block_rows):
                    keys = file.read(f"{group.prefix}keys", start, start + block_rows)
                    there = None
                    if goes:
                        last = file.read(last_steps, start, start + block_rows).reshape(-1)
                        if len(last) != len(keys):
                            raise DamagedError(f"{group.prefix} has arrays of different lengths")
                        there = ~ages.gone(keys, last, manifest.number)
                    yield file, group, start, keys, there


def _groups(file: TensorFile, kind: str) -> Iterator[_Group]:
    """The groups of rows, or of candidates, in a file.

    Raises:
        DamagedError: the arrays of one do not fit together.
    """
    for name, keys in file.specs.items():
        if not name.startswith(f"{kind}-") or not name.endswith("/keys"):
            continue
        prefix = name.removesuffix("keys")
        found = _PREFIX.fullmatch(prefix)
        if found is None or len(keys.shape) != 1 or keys.dtype != np.int64:
            raise DamagedError(f"{prefix} has keys of {keys.dtype} {list(keys.shape)}")
        dim, count = int(found[1]), keys.shape[0]
        rows = file.specs.get(f"{prefix}rows")
        if kind == "group" and (rows is None or rows.shape != (count, dim)):
            raise DamagedError(f"{prefix} does not have {count} rows of {dim} elements")
        for other, spec in file.specs.items():
            if other.startswith(f"{prefix}state/") and spec.shape[:1] != (count,):
                raise DamagedError(f"{prefix} has arrays of different lengths")
        yield _Group(prefix, dim, count)
