"""Making the newer model of an exported one and a delta.

The new folder has the files that the newer model was exported with, byte for byte. Its model.json comes with the delta,
and has the checksums of all others, which are compared before the older model is replaced.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from heterps_runtime.checkpoint.delta import DELTA_DESCRIPTION, DELTA_VERSION, DOCUMENTS
from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.exported import (
    ExportedModel,
    ExportedTable,
    SparseRows,
    check_files,
    identity_of,
    pieces,
)
from heterps_runtime.checkpoint.format import TensorFile, TensorSpec, create_tensor_file
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION, TENSORS_FILE, publication, table_file
from heterps_runtime.errors import UserError
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError, check_version

__all__ = ["Delta", "apply_delta"]


class Delta:
    """A delta (`delta`), whose files are verified.

    Attributes:
        storage: the folder.
        base: identity of the model that it fits.
        model: identity of the model that it makes.
        steps: of the two models.
        tensors: names of the changed tensors that are no tables.
        tables: name of each changed table -> its file.
    """

    def __init__(self, storage: Storage) -> None:
        """Read the description, and compare the checksums of all files.

        Raises:
            UserError: there is no delta.
            DamagedError: a file is missing, or differs from what was written.
            StorageError: a file cannot be read.
            UnsupportedVersionError: a newer release has written it.
        """
        self.storage = storage
        try:
            document = json.loads(storage.read(DELTA_DESCRIPTION))
            check_version(f"the delta {storage.address}", document["version"], DELTA_VERSION)
            self.base, self.model = str(document["base"]), str(document["model"])
            self.steps = int(document["baseStep"]), int(document["step"])
            self.tensors = tuple(map(str, document["tensors"]))
            self.tables = {str(entry["name"]): str(entry["file"]) for entry in document["tables"]}
        except StorageError as error:
            if not error.missing:
                raise
            raise UserError(
                f"{storage.address}: there is no delta, as {DELTA_DESCRIPTION} is missing; name the folder of one"
            ) from None
        except UnsupportedVersionError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DamagedError(f"{storage.path(DELTA_DESCRIPTION)} is malformed ({error})") from error
        check_files(storage, document, DELTA_DESCRIPTION, {TENSORS_FILE, *self.tables.values()})
        described = f"model/{MODEL_DESCRIPTION}"
        if identity_of(storage.read(described)) != self.model:
            raise DamagedError(f"{storage.path(described)} is not that of the model in {DELTA_DESCRIPTION}", described)


def apply_delta(model: ExportedModel, delta: Delta) -> bool:
    """Replace a model by the one that a delta makes of it.

    Returns:
        Whether the model was replaced; False if it is that one already.

    Raises:
        UserError: the delta was made from another model.
        DamagedError: a file is malformed, or the result is not the newer model; the model is unchanged.
        StorageError: a file cannot be read or written.
    """
    if model.identity == delta.model:
        return False
    if model.identity != delta.base:
        raise UserError(
            f"{delta.storage.address}: this delta fits the model {delta.base} of step {delta.steps[0]}, but "
            f"{model.storage.address} has {model.identity} of step {model.step}; apply the deltas between them first, "
            "or fetch the whole model"
        )
    with publication(model.storage, MODEL_DESCRIPTION) as folder:
        for name in DOCUMENTS:
            (folder / name).write_bytes(delta.storage.read(f"model/{name}"))
        _write_tensors(model, delta, folder)
        by_rows = [table for table in model.tables.values() if table.file is not None]
        if by_rows:
            (folder / "tables").mkdir()
        for table in by_rows:
            _write_rows(model, table, delta, folder)
        ExportedModel(Storage.open(folder, model.storage.work))
    return True


def _write_tensors(model: ExportedModel, delta: Delta, folder: Path) -> None:
    """Write model.safetensors."""
    specs = {name: TensorSpec(*spec) for name, spec in model.tensors.items()}
    arrays = create_tensor_file(folder / TENSORS_FILE, specs)
    with TensorFile(model.storage, TENSORS_FILE) as old, TensorFile(delta.storage, TENSORS_FILE) as new:
        for name, array in arrays.items():
            file = new if name in delta.tensors else old
            spec = file.specs.get(name)
            if spec is None or (spec.dtype, spec.shape) != model.tensors[name]:
                raise DamagedError(
                    f"{delta.storage.path(TENSORS_FILE)} has another {name!r} than the model", TENSORS_FILE
                )
            if not array.shape:
                array[...] = file.read(name)
            for piece in pieces(len(array) if array.shape else 0):
                array[piece] = file.read(name, piece.start, piece.stop)
    for table in model.tables.values():
        if table.file is None and table.name in delta.tables:
            with SparseRows(delta.storage, delta.tables[table.name], table) as changed:
                for start, ids in changed.pieces():
                    rows = changed.at(np.arange(start, start + len(ids)))
                    for name in table.state_names:
                        arrays[name][ids] = rows


def _write_rows(model: ExportedModel, table: ExportedTable, delta: Delta, folder: Path) -> None:
    """Write the ids and rows of a table that is not whole."""
    with ExitStack() as stack:
        old = stack.enter_context(model.rows(table))
        sources = [old]  # of rows; the later ones are newer
        ids = old.ids_at(np.arange(old.count))
        if table.name in delta.tables:
            new = stack.enter_context(SparseRows(delta.storage, delta.tables[table.name], table))
            sources.append(new)
            with TensorFile(delta.storage, delta.tables[table.name]) as file:
                gone = file.read("gone")
            ids = np.union1d(np.setdiff1d(ids, gone, assume_unique=True), new.ids_at(np.arange(new.count)))
        specs = {
            "ids": TensorSpec(np.dtype(np.int64), (len(ids),)),
            "rows": TensorSpec(np.dtype(table.dtype), (len(ids), table.dim)),
        }
        arrays = create_tensor_file(folder / table_file(table.name), specs)
        arrays["ids"][...] = ids
        for piece in pieces(len(ids)):
            rows = arrays["rows"][piece]
            for source in sources:
                positions, there = source.find(ids[piece])
                rows[there] = source.at(positions[there])
