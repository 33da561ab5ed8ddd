"""What changed from one exported model to another, for programs that serve the first and want the second.

    DELTA/
        model.safetensors         the parameters and buffers that have changed, whole; no tables
        tables/NAME.safetensors   each table that has changed: sorted `ids` (n,) and `rows` (n, dim) of rows that are
                                  new or have changed, and sorted `gone` (m,), the ids that have no row any more
        model/                    model.json and README.md of the newer model
        delta.json                the identities of both models (`base`, `model`), and the contents

A delta fits one model only, and makes another one of it: `base` and `model` are the SHA-256 of their model.json. So
deltas form chains, and a program sees which one is next.

Rows are compared bit for bit. A table that is whole in model.safetensors has changed rows, too; none of them is gone.
Memory stays bounded, but for the ids of a table and of its changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.exported import ExportedModel, Rows, differ, pieces
from heterps_runtime.checkpoint.format import TensorFile, TensorSpec, create_tensor_file
from heterps_runtime.checkpoint.publishing import (
    MODEL_DESCRIPTION,
    TENSORS_FILE,
    list_files,
    publication,
    table_file,
)
from heterps_runtime.errors import UserError
from heterps_runtime.storage import Storage

__all__ = ["DELTA_DESCRIPTION", "DELTA_VERSION", "DOCUMENTS", "TableDelta", "write_delta"]

DELTA_DESCRIPTION = "delta.json"
DELTA_VERSION = 1
DOCUMENTS = (MODEL_DESCRIPTION, "README.md")  # of the newer model, in the folder `model`

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableDelta:
    """What changed in a table.

    Attributes:
        name: of the parameter in the user's module.
        rows: number of rows that are new or have changed.
        gone: number of ids that have no row any more.
    """

    name: str
    rows: int
    gone: int


def write_delta(before: ExportedModel, after: ExportedModel, output: Storage) -> tuple[list[TableDelta], list[str]]:
    """Write what changed between two models of one module; an older delta at `output` is replaced.

    Returns:
        The tables, and the names of the other tensors, that have changed.

    Raises:
        UserError: it is one model, or the two do not have the same tables and tensors.
        DamagedError: a file is malformed.
        StorageError: a file cannot be read or written.
    """
    _check_alike(before, after)
    with publication(output, DELTA_DESCRIPTION) as folder:
        (folder / "model").mkdir()
        for name in DOCUMENTS:
            (folder / "model" / name).write_bytes(after.storage.read(name))
        tensors = _write_tensors(before, after, folder)
        (folder / "tables").mkdir()
        tables = [change for name in after.tables if (change := _write_table(before, after, name, folder))]
        document = {
            "version": DELTA_VERSION,
            "base": before.identity,
            "model": after.identity,
            "baseStep": before.step,
            "step": after.step,
            "tensors": tensors,
            "tables": [
                {"name": t.name, "file": table_file(t.name), "numRows": t.rows, "numGone": t.gone} for t in tables
            ],
            "files": list_files(folder, output.work),
        }
        (folder / DELTA_DESCRIPTION).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return tables, tensors


def _check_alike(before: ExportedModel, after: ExportedModel) -> None:
    """Check that the models differ, but not in their tables and tensors."""
    if before.identity == after.identity:
        raise UserError(f"{before.storage.address} and {after.storage.address} are the same model; there is no delta")
    where = f"from {before.storage.address} to {after.storage.address}"
    for kind, one, other in (
        ("table", _forms(before), _forms(after)),
        ("tensor", dict(before.tensors), dict(after.tensors)),
    ):
        differing = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        if differing:
            raise UserError(
                f"there is no delta {where}: {kind} {differing[0]!r} differs in form, shape or type, or only one of "
                "them has it; give the server the whole model"
            )


def _forms(model: ExportedModel) -> dict[str, Any]:
    return {t.name: (t.state_names, t.num_embeddings, t.dim, t.dtype, t.file) for t in model.tables.values()}


def _write_tensors(before: ExportedModel, after: ExportedModel, folder: Path) -> list[str]:
    """Write the changed tensors that are no tables; returns their names."""
    values = after.values
    with TensorFile(before.storage, TENSORS_FILE) as old, TensorFile(after.storage, TENSORS_FILE) as new:
        changed = [name for name in values if differ(old.read(name)[None], new.read(name)[None]).any()]
        arrays = create_tensor_file(folder / TENSORS_FILE, {name: TensorSpec(*values[name]) for name in changed})
        for name in changed:
            arrays[name][...] = new.read(name)
    return changed


def _write_table(before: ExportedModel, after: ExportedModel, name: str, folder: Path) -> TableDelta | None:
    """Write the changes of a table; returns None if there are none."""
    table = after.tables[name]
    with before.rows(before.tables[name]) as old, after.rows(table) as new:
        positions, gone = _changed(old, new), _missing(old, new)
        if not len(positions) and not len(gone):
            return None
        ids, rows = (np.dtype(np.int64), (len(positions),)), (np.dtype(table.dtype), (len(positions), table.dim))
        specs = {"ids": TensorSpec(*ids), "rows": TensorSpec(*rows), "gone": TensorSpec(np.dtype(np.int64), gone.shape)}
        arrays = create_tensor_file(folder / table_file(name), specs)
        arrays["gone"][...] = gone
        for piece in pieces(len(positions)):
            arrays["ids"][piece] = new.ids_at(positions[piece])
            arrays["rows"][piece] = new.at(positions[piece])
    return TableDelta(name, len(positions), len(gone))


def _changed(old: Rows, new: Rows) -> Ids:
    """The positions (n,) of the new rows that the old ones lack, or have with other bits."""
    found = [np.empty(0, np.int64)]
    for start, ids in new.pieces():
        positions, there = old.find(ids)
        changed = ~there
        here = start + np.flatnonzero(there)
        changed[there] = differ(old.at(positions[there]), new.at(here))
        found.append(start + np.flatnonzero(changed))
    return np.concatenate(found)


def _missing(old: Rows, new: Rows) -> Ids:
    """The old ids (n,) that have no new row."""
    return np.concatenate([np.empty(0, np.int64), *(ids[~new.find(ids)[1]] for _, ids in old.pieces())])
