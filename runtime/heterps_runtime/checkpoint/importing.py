"""A model to begin with: the values of another job's checkpoint, or of its exported model, as a checkpoint of step 0.

From then on it is a checkpoint like any other: members restore it at the start, and again if the job fails before its
next one. Tables and parameters are found by their names; what the other model does not have begins with its initial
values, and so do rows that it has never trained. The optimizers' state is taken over if the job says so, with the
number of steps that it is of: Adam's moments are worth nothing without it. An exported model has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.dense import dense_arrays, read_dense, read_pieces
from heterps_runtime.checkpoint.errors import DamagedError, ImportedModelError, ShapeError
from heterps_runtime.checkpoint.exported import ExportedModel, differ
from heterps_runtime.checkpoint.format import FileEntry, Origin, TensorFile, write_tensors
from heterps_runtime.checkpoint.manifest import (
    ID_BITS,
    MAX_TABLES,
    CheckpointManifest,
    InitialRows,
    TableRecord,
    find_latest,
)
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION, TENSORS_FILE
from heterps_runtime.checkpoint.restore import RowBlock, iterate_rows
from heterps_runtime.checkpoint.rows import row_arrays
from heterps_runtime.partition.pieces import Place
from heterps_runtime.partition.tables import Table
from heterps_runtime.storage import Storage

__all__ = ["TableMap", "import_values", "imported_values"]

Array = npt.NDArray[Any]

_TABLE_TYPES = ("float32", "float64")
_FILE_ROWS = 1 << 20  # of a file: they are collected in memory
_START = Origin(0, 0)
_ID_MASK = np.int64((1 << ID_BITS) - 1)


def import_values(
    source: Storage,
    path: str,
    target: Storage,
    folder: str,
    like: CheckpointManifest,
    *,
    with_state: bool,
    initial_rows: Callable[[int], InitialRows],
) -> CheckpointManifest:
    """Copy the values of an exported model, or of the newest valid checkpoint at a path.

    Args:
        source: the storage of the other job's checkpoints, or of its model.
        path: its path or address, for messages.
        target: the storage of this job's checkpoints.
        folder: for the files.
        like: a manifest with this job's settings.
        with_state: take over the optimizers' state, too.
        initial_rows: the values of rows that a job with this seed has never trained.

    Returns:
        The manifest of step 0, not written yet.

    Raises:
        ImportedModelError: there is neither, the model is damaged, or its state is of other optimizers or missing.
        StorageError: a file cannot be read or written.
    """
    if source.size(MODEL_DESCRIPTION) is not None:
        if with_state:
            raise ImportedModelError(
                f"model.initFrom.optimizerState: Keep needs checkpoints, but {path} is an exported model, which has no "
                "state of optimizers; use Reset, or name the checkpoint.path of the job that has trained it"
            )
        try:
            return _import_model(ExportedModel(source), path, target, folder, like, initial_rows)
        except DamagedError as error:
            raise _unusable(path, error, "export it again") from error
    manifest, skipped = find_latest(source)
    if manifest is None:
        why = "".join(f"; {name}: {reason}" for name, reason in skipped)
        raise ImportedModelError(
            f"model.initFrom.path: {path} has no valid checkpoint and no exported model{why}; name the checkpoint.path "
            "of a job that has one, or the folder of a model"
        )
    if with_state:
        _check_optimizers(manifest, like)
    try:
        return _import_checkpoint(source, manifest, path, target, folder, like, with_state)
    except DamagedError as error:
        raise _unusable(path, error, "name another checkpoint.path, or the folder of a model") from error


def _unusable(path: str, error: DamagedError, fix: str) -> ImportedModelError:
    return ImportedModelError(f"model.initFrom.path: {path} cannot be used: {error}; {fix}")


def _import_checkpoint(
    source: Storage,
    manifest: CheckpointManifest,
    path: str,
    target: Storage,
    folder: str,
    like: CheckpointManifest,
    with_state: bool,
) -> CheckpointManifest:
    if any(not 0 <= table.index < MAX_TABLES for table in manifest.tables):
        raise DamagedError(f"{manifest.folder} has tables that no key can be of")
    for kind in ("group", "candidates"):
        manifest.ages(kind)  # whose error is this checkpoint's, and must not become one of the checkpoint made of it
    entries: list[FileEntry] = []
    kinds = ("group", "candidates") if with_state else ("group",)
    for file in manifest.files_of("rows"):  # each by itself: a row may be in several, and the last is valid
        added = file.added
        for kind in kinds:
            blocks = iterate_rows(source, manifest, files=[file], with_state=with_state, kind=kind)
            for dim, keys, rows, state in _collected(blocks):
                number = len(entries)
                arrays = row_arrays({dim: (keys, rows, state)}, kind)
                entry = _write(target, folder, f"rows-{number}", arrays, "rows", number)
                entries.append(replace(entry, added=added))
                added = None if added is None else 0
    for role in ("dense", "buffers"):
        values = {n: v for n, v in read_dense(source, manifest, role=role).items() if with_state or "::" not in n}
        if values:
            entries.append(_write(target, folder, f"{role}-imported", dense_arrays(values, role), role, 0))
    return replace(
        like,
        step=0,
        tables=manifest.tables,
        files=tuple(entries),
        lineage=_START.lineage,
        folder=folder,
        imported_from=f"{path}/{manifest.folder}",
        earlier_steps=manifest.step + manifest.earlier_steps if with_state else 0,
    )


def _import_model(
    model: ExportedModel,
    path: str,
    target: Storage,
    folder: str,
    like: CheckpointManifest,
    initial_rows: Callable[[int], InitialRows],
) -> CheckpointManifest:
    if len(model.tables) > MAX_TABLES or any(table.dtype not in _TABLE_TYPES for table in model.tables.values()):
        raise DamagedError(f"{model.storage.path(MODEL_DESCRIPTION)} has tables that no job trains")
    tables = tuple(
        TableRecord(index, table.name, table.num_embeddings, table.dim, dict(table.init), table.dtype)
        for index, table in enumerate(model.tables.values())
    )
    draw = initial_rows(model.seed)
    for table in tables:
        try:
            draw(table, np.empty(0, np.int64))
        except ValueError as error:
            where = model.storage.path(MODEL_DESCRIPTION)
            raise DamagedError(f"{where} has no initial values of {table.name!r} ({error})") from error
    entries: list[FileEntry] = []
    for dim, keys, rows, state in _collected(block for table in tables for block in _trained(model, table, draw)):
        number = len(entries)
        entries.append(_write(target, folder, f"rows-{number}", row_arrays({dim: (keys, rows, state)}), "rows", number))
    with TensorFile(model.storage, TENSORS_FILE) as file:
        values = {name: file.read(name) for name in model.values}
    buffers = model.buffers
    for role, names in (("dense", values.keys() - buffers), ("buffers", values.keys() & buffers)):
        if names:
            arrays = dense_arrays({name: values[name] for name in sorted(names)}, role)
            entries.append(_write(target, folder, f"{role}-imported", arrays, role, 0))
    files = tuple(entries)
    return replace(like, step=0, tables=tables, files=files, lineage=_START.lineage, folder=folder, imported_from=path)


def _trained(model: ExportedModel, record: TableRecord, draw: InitialRows) -> Iterator[RowBlock]:
    """The rows of a table, without those of a whole one that have their initial values."""
    table = model.tables[record.name]
    with model.rows(table) as stored:
        for start, ids in stored.pieces():
            rows = stored.at(np.arange(start, start + len(ids)))
            if table.file is None:
                trained = differ(rows, draw(record, ids))
                ids, rows = ids[trained], rows[trained]
            yield RowBlock(record.dim, (record.index << ID_BITS) | ids, rows, {})


def _check_optimizers(theirs: CheckpointManifest, ours: CheckpointManifest) -> None:
    for kind in ("dense", "sparse"):
        field = f"training.optimizer.{kind}"
        their_name, our_name = (_named(one.fingerprint.get(field)) for one in (theirs, ours))
        if their_name != our_name:
            raise ImportedModelError(
                f"model.initFrom.optimizerState: Keep needs the optimizers of {theirs.folder}, in which {field} is "
                f"{their_name}, but it is {our_name} in this job; use Reset, or the same optimizer"
            )


def _named(optimizer: Any) -> Any:
    return optimizer.get("name") if isinstance(optimizer, Mapping) else None


def _write(target: Storage, folder: str, name: str, arrays: Mapping[str, Array], role: str, index: int) -> FileEntry:
    return write_tensors(target, folder, f"{name}.safetensors", arrays, origin=_START, role=role, index=index)


def _collected(blocks: Iterable[RowBlock]) -> Iterator[tuple[int, Array, Array, dict[str, Array]]]:
    """Yield (dim, keys, rows, state) of about `_FILE_ROWS` rows."""
    waiting: dict[int, list[RowBlock]] = {}
    for block in blocks:
        parts = waiting.setdefault(block.dim, [])
        parts.append(block)
        if sum(len(part.keys) for part in parts) >= _FILE_ROWS:
            yield _joined(waiting.pop(block.dim))
    yield from map(_joined, waiting.values())


def _joined(parts: list[RowBlock]) -> tuple[int, Array, Array, dict[str, Array]]:
    form = {name: values.shape[1:] for name, values in parts[0].state.items()}
    if any({name: values.shape[1:] for name, values in part.state.items()} != form for part in parts):
        raise DamagedError(f"the rows of {parts[0].dim} elements have different state")
    keys, rows = np.concatenate([p.keys for p in parts]), np.concatenate([p.rows for p in parts])
    return parts[0].dim, keys, rows, {n: np.concatenate([p.state[n] for p in parts]) for n in parts[0].state}


class TableMap:
    """The tables of an imported model in this job: keys of the one become keys of the other.

    Args:
        manifest: of the imported values.
        tables: of this job's model.

    Raises:
        ImportedModelError: tables of one name have other sizes.
    """

    def __init__(self, manifest: CheckpointManifest, tables: Iterable[Table]) -> None:
        self._index = np.full(1 << 16, -1, dtype=np.int64)  # by index in the imported model
        here = {table.name: table for table in tables}
        for there in manifest.tables:
            table = here.get(there.name)
            if table is None:
                continue
            for size, mine, its in (
                ("num_embeddings", table.num_embeddings, there.num_embeddings),
                ("embedding_dim", table.dim, there.dim),
            ):
                if mine != its:
                    raise ImportedModelError(
                        f"model.initFrom.path: table {there.name!r} has {size} {its} in {manifest.imported_from}, but "
                        f"{mine} in this model; give the table another name to begin it anew"
                    )
            self._index[there.index] = table.index

    def __call__(self, block: RowBlock) -> RowBlock:
        """The rows of a block of which this job has the tables."""
        tables = self._index[block.keys >> ID_BITS]
        known = tables >= 0
        keys = (tables[known] << ID_BITS) | (block.keys[known] & _ID_MASK)
        return RowBlock(block.dim, keys, block.rows[known], {n: values[known] for n, values in block.state.items()})


def imported_values(
    storage: Storage,
    manifest: CheckpointManifest,
    initial: Mapping[str, Array],
    places: Mapping[str, Place] | None = None,
    *,
    role: str = "dense",
    verified: set[str] | None = None,
) -> dict[str, Array]:
    """The imported values of parameters, with their state if it is imported, or of buffers.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: of the imported values.
        initial: name -> initial value, with the state as in `read_dense`.
        places: of the values in their parameters, by name of the parameter; None: these are whole.
        role: "dense" or "buffers".
        verified: see `read_pieces`.

    Returns:
        name -> value, with the shape and type of the initial one, for those that the imported model has.

    Raises:
        ImportedModelError: a parameter has another shape.
        DamagedError: a file does not match the manifest.
        StorageError: a file cannot be read.
    """
    if places is None:
        places = {name: Place.whole(value.shape) for name, value in initial.items() if "::" not in name}
    try:
        found = read_pieces(storage, manifest, places, role=role, verified=verified, partly=True)
    except ShapeError as error:
        raise ImportedModelError(
            f"model.initFrom.path: {error.name!r} has the shape {list(error.theirs)} in {manifest.imported_from}, but "
            f"{list(error.ours)} in this model; give the layer another name to begin it anew"
        ) from error
    return {
        name: value.reshape(initial[name].shape).astype(initial[name].dtype)
        for name, value in found.items()
        if name in initial
    }
