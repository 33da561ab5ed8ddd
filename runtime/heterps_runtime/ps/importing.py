"""Rows of another job's model, as this job's tables and rules have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from heterps_runtime.checkpoint import CheckpointManifest, Storage, TableMap, imported_values, iterate_rows
from heterps_runtime.checkpoint.restore import RowBlock
from heterps_runtime.partition.access import Ages
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.dense import DenseStore
from heterps_runtime.store.keyed import LAST_STEP, ROWS, KeyedRows, KeyFilter

__all__ = ["import_dense", "import_rows"]


def import_rows(
    storage: Storage,
    manifest: CheckpointManifest,
    tables: Iterable[Table],
    parts: Mapping[str, KeyedRows],
    mine: KeyFilter,
    earlier_steps: int,
) -> None:
    """Load rows and candidates of another job.

    Args:
        storage: of the other job's checkpoint.
        manifest: of that checkpoint, mapped to the names of this job.
        tables: of this job.
        parts: of a shard, by their names in files.
        mine: which rows belong to that shard.
        earlier_steps: of the other job.

    Raises:
        StorageError, DamagedError: the checkpoint cannot be read.
    """
    mapped = TableMap(manifest, tables)
    for kind in ("group", "candidates"):
        for block in iterate_rows(storage, manifest, kind=kind):
            found = mapped(block)
            part = parts.get(f"{kind}-{found.dim}")
            if part is not None:  # without such a part, this job has no candidates of this dimension
                _load(part, kind, found, mine, earlier_steps)


def import_dense(
    storage: Storage, manifest: CheckpointManifest, pieces: Mapping[str, DensePiece], store: DenseStore, read: set[str]
) -> None:
    """Add dense parameters to a store, with the values of another job's as far as it has them.

    Args:
        storage: of the other job's checkpoint.
        manifest: of that checkpoint, mapped to the names of this job.
        pieces: with initial values.
        store: that gets them.
        read: files whose checksums were compared; those that are read now are added.

    Raises:
        StorageError, DamagedError: the checkpoint cannot be read.
    """
    for name, piece in pieces.items():
        store.add(name, piece.values)
    if pieces:
        all_values = store.snapshot()
        initial = {n: v for n, v in all_values.items() if n.partition("::")[0] in pieces}
        places = {name: piece.place for name, piece in pieces.items()}
        store.load(all_values | imported_values(storage, manifest, initial, places, verified=read))


def _load(part: KeyedRows, kind: str, block: RowBlock, mine: KeyFilter, earlier_steps: int) -> None:
    types = {name.removeprefix("state/"): dtype for name, (dtype, _) in part.column_types.items()}
    mask, state = mine(block.keys), dict(block.state)
    if LAST_STEP in types:  # of a job that did not count, rows are as old as this job
        last = state.setdefault(LAST_STEP, np.full((len(mask), 1), earlier_steps, np.int32))
        rules = {index: spec.rules for index, spec in part.tables.items()}
        ages = Ages.of_rows(rules) if kind == "group" else Ages.of_candidates(rules)
        mask &= ~ages.gone(block.keys, last.reshape(-1), earlier_steps)
    if not mask.any():
        return
    known = {name: values[mask].astype(types[name]) for name, values in state.items() if name in types}
    has_state = block.state or known.keys() == types.keys() - {ROWS}
    rows = block.rows[mask].astype(types.get(ROWS, block.rows.dtype))
    part.load(block.keys[mask], rows, known if has_state else None)
