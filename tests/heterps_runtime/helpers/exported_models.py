"""Models of a small job with every form of table, exported with the checkpoint that they are of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterps_runtime.checkpoint import (
    Origin,
    Storage,
    TableRecord,
    dense_arrays,
    export_model,
    row_arrays,
    take_over,
)
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.checkpoint.manifest import write_manifest
from tests.heterps_runtime.helpers.checkpoint_samples import NORMAL, Array, make_keys, make_manifest

TABLES = (
    TableRecord(0, "small.weight", 7, 2, NORMAL),  # whole in model.safetensors, under two names
    TableRecord(1, "wide/x.weight", 1 << 40, 2, NORMAL),
    TableRecord(2, "narrow.weight", 1 << 40, 1, NORMAL, unused_steps=4, period=1),
)
NAMES = {"small.weight": "small.weight", "again.weight": "small.weight", "top.weight": "top.weight", "mean": "mean"}


@dataclass(frozen=True)
class State:
    """What a job has trained: rows of each table by key, with the last step that used them, and other values."""

    rows: tuple[dict[int, tuple[float, int]], ...] = ({}, {}, {})
    weight: tuple[float, ...] = (0.5, 0.25)
    mean: float = 0.0
    step: int = 10
    samples: int = 0
    names: dict[str, str] = field(default_factory=lambda: dict(NAMES))

    def there(self, table: int) -> dict[int, Array]:
        """The rows that have not gone, from 4 steps without use on."""
        dim, goes = TABLES[table].dim, TABLES[table].unused_steps
        return {
            key: np.full(dim, value, np.float32)
            for key, (value, last) in self.rows[table].items()
            if goes is None or self.step - last < goes
        }


def initial_rows(table: TableRecord, ids: Array) -> Array:
    return np.repeat(ids[:, None] + 0.5, table.dim, axis=1).astype(np.float32)


def export(state: State, folder: Path, tables: tuple[TableRecord, ...] = TABLES) -> Path:
    """Write a checkpoint of a state, and export it; returns the folder of the model."""
    storage, origin = Storage.open(folder / "checkpoints"), Origin(state.step, 1)
    owner = take_over(storage, "job", 0.0)
    name = f"step-{state.step:09d}.{owner.term}-00000000"
    groups: dict[int, Any] = {}
    for dim in {table.dim for table in tables}:
        of_dim = [table for table in tables if table.dim == dim]
        mine = [(table, key, *entry) for table in of_dim for key, entry in state.rows[table.index].items()]
        keys = np.array([int(make_keys(table.index, key)) for table, key, _, _ in mine], np.int64)
        rows = np.array([[value] * dim for _, _, value, _ in mine], np.float32).reshape(len(mine), dim)
        last = np.array([last for _, _, _, last in mine], np.int32)
        groups[dim] = (keys, rows, {"last_step": last})
    dense = {"top.weight": np.array([state.weight], np.float32)}
    files = [
        write_tensors(storage, name, f"{role}-0.safetensors", arrays, origin=origin, role=role)
        for role, arrays in (
            ("rows", row_arrays(groups)),
            ("dense", dense_arrays(dense)),
            ("buffers", dense_arrays({"mean": np.array(state.mean, np.float32)}, "buffers")),
        )
    ]
    manifest = replace(
        make_manifest(state.step, name, tuple(files)),
        tables=tables,
        samples=state.samples,
        state_names={n: s for n, s in state.names.items() if s in {"top.weight", "mean", *(t.name for t in tables)}},
    )
    write_manifest(storage, manifest, owner)
    output = folder / "model"
    export_model(storage, manifest, output, owner=owner, initial_rows=initial_rows, dense_limit_bytes=1000)
    return output
