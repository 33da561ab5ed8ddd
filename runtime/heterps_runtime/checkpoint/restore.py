"""Reading the rows of a checkpoint, into any number of shards.

Row files are read in bounded pieces and filtered by key, so that a shard never holds more than one piece beyond its own
rows.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class RowBlock:
    """Rows of one dim with their optimizer state. The arrays may be read-only views of the file."""

    dim: int
    keys: Keys  # (n,)
    rows: Array  # (n, dim)
    state: dict[str, Array]  # name -> (n, ...)


def iterate_rows(
    storage: Storage,
    manifest: CheckpointManifest,
    wanted: Wanted | None = None,
    *,
    files: Iterable[FileEntry] | None = None,
    with_state: bool = True,
    block_rows: int = _BLOCK_ROWS,
) -> Iterator[RowBlock]:
    """Read the wanted rows of a checkpoint, in bounded pieces.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: the checkpoint.
        wanted: keys (n,) -> mask (n,) of the rows to return; None: all.
        files: of rows, to read; None: all.
        with_state: also read the optimizer's state.
        block_rows: rows to read at a time.

    Yields:
        Non-empty blocks. A row that has changed since the first file of its server is in several: the last is valid.

    Raises:
        DamagedError: a file does not match the manifest.
        StorageError: a file cannot be read.
    """
    for file, prefix, start, keys in _key_blocks(storage, manifest, block_rows, files):
        dim, stop = _dim_of(prefix), start + len(keys)
        # Files hold rows in no order of keys, so reading a piece and selecting is faster than many small reads.
        mask = None if wanted is None else wanted(keys)
        if mask is not None and not mask.any():
            continue
        names = [n for n in file.specs if n.startswith(f"{prefix}state/")] if with_state else []
        rows = file.read(f"{prefix}rows", start, stop)
        state = {name.removeprefix(f"{prefix}state/"): file.read(name, start, stop) for name in names}
        if any(len(values) != len(keys) for values in (rows, *state.values())):
            raise DamagedError(f"{prefix} has arrays of different lengths")
        if mask is None or mask.all():
            yield RowBlock(dim, keys, rows, state)
        else:
            yield RowBlock(dim, keys[mask], rows[mask], {name: values[mask] for name, values in state.items()})


def iterate_keys(storage: Storage, manifest: CheckpointManifest) -> Iterator[Keys]:
    """Read all keys of a checkpoint (n,) in bounded pieces, without the rows; a key may come several times."""
    for _, _, _, keys in _key_blocks(storage, manifest, 16 * _BLOCK_ROWS):
        yield keys


def count_rows(storage: Storage, manifest: CheckpointManifest, entry: FileEntry) -> dict[int, int]:
    """Count, by dimension, the rows of a file that no earlier file of its server has; its header tells.

    What is new of several dimensions is estimated by their shares of the file.

    Raises:
        DamagedError: the file is truncated.
        StorageError: it cannot be read.
    """
    counts: dict[int, int] = {}
    with TensorFile(storage, manifest.path_of(entry)) as file:
        for name, spec in file.specs.items():
            if name.endswith("/keys"):
                dim = _dim_of(name.removesuffix("keys"))
                counts[dim] = counts.get(dim, 0) + spec.shape[0]
    total = sum(counts.values())
    if entry.added is None or not total:
        return counts
    return {dim: count * entry.added // total for dim, count in counts.items()}


def _key_blocks(
    storage: Storage, manifest: CheckpointManifest, block_rows: int, files: Iterable[FileEntry] | None = None
) -> Iterator[tuple[TensorFile, str, int, Keys]]:
    """Yield (file, prefix of names, index of the first row, keys) for each piece of the files, by default of all."""
    for entry in manifest.files_of("rows") if files is None else files:
        with TensorFile(storage, manifest.path_of(entry)) as file:
            for name, spec in file.specs.items():
                if name.endswith("/keys"):
                    for start in range(0, spec.shape[0], block_rows):
                        keys = file.read(name, start, start + block_rows)
                        yield file, name.removesuffix("keys"), start, keys


def _dim_of(prefix: str) -> int:
    """The dimension of the rows whose arrays have names with this prefix, such as `group-16/0/`."""
    return int(prefix.removeprefix("group-").partition("/")[0])
