"""Rows of another job's model, as this job's tables and rules have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from heterps_runtime.checkpoint import CheckpointManifest, Storage, TableMap, iterate_rows
from heterps_runtime.checkpoint.restore import RowBlock
from heterps_runtime.partition.access import Ages
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keyed import LAST_STEP, ROWS, KeyedRows, KeyFilter

__all__ = ["import_rows"]


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
