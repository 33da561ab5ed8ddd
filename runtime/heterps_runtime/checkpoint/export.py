"""Export a checkpoint to files that plain PyTorch loads.

    OUTPUT/
        model.safetensors         the user's state_dict: dense parameters, buffers, small tables
        tables/NAME.safetensors   each large table: sorted `ids` (n,) and `rows` (n, dim) of the trained rows
        model.json                the contents, how ids are made from values, the job and its metrics
        README.md                 how to load the model without HeterPS

model.json lists the size and checksum of every other file, so that a copy can be verified.

A small table is exported whole: untrained rows get the initial values that training would have read. Memory stays
bounded: tables are laid out on disk and filled in the order of the checkpoint's files. Only the sorted ids of one large
table (8 bytes per row) are held in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.dense import read_dense
from heterps_runtime.checkpoint.errors import CheckpointError
from heterps_runtime.checkpoint.format import TensorSpec, create_tensor_file
from heterps_runtime.checkpoint.manifest import ID_BITS, CheckpointManifest, InitialRows, TableRecord, check_checkpoint
from heterps_runtime.checkpoint.ownership import Ownership
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION, TENSORS_FILE, list_files, publication, table_file
from heterps_runtime.checkpoint.readme import receiver_readme
from heterps_runtime.checkpoint.restore import iterate_keys, iterate_rows
from heterps_runtime.storage import Storage

__all__ = ["DEFAULT_DENSE_LIMIT_BYTES", "export_model"]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
DEFAULT_DENSE_LIMIT_BYTES = 1 << 30  # a table up to this size is exported whole
_VERSION = 1  # of model.json
_CHUNK_ROWS = 65_536
_ID_MASK = (1 << ID_BITS) - 1
_HASHING = {
    "integers": "id modulo num_embeddings, non-negative",
    "strings": "as the integer int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), 'little')",
    "null": "as the empty string",
}


def export_model(
    storage: Storage,
    manifest: CheckpointManifest,
    output: str | Path,
    *,
    owner: Ownership | None,
    initial_rows: InitialRows,
    dense_limit_bytes: int = DEFAULT_DENSE_LIMIT_BYTES,
    metrics: Mapping[str, Any] | None = None,
) -> str:
    """Write the model of a checkpoint for use without HeterPS; returns the path or address of the output.

    The model is built beside `output` and replaces it when complete.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: the checkpoint to export.
        output: a local folder or an address; an older export there is replaced.
        owner: the run's right to the checkpoints, and to their model; None: `output` belongs to no run.
        initial_rows: values of untrained rows. An untrained padding row is zero, as in PyTorch.
        dense_limit_bytes: tables larger than this are exported as ids and rows.
        metrics: figures for model.json, such as the held-out AUC.

    Raises:
        DamagedError: the checkpoint does not match its manifest.
        FencedError: another run has taken the checkpoints over; `output` is unchanged.
        StorageError: a file cannot be read or written; a local `output` is unchanged.
        CheckpointError: the checkpoint lacks a name of the module's `state_dict()`.
    """
    check = _nothing if owner is None else owner.check
    check()
    check_checkpoint(storage, manifest.folder)
    target = Storage.open(output, storage.work)
    with publication(target, MODEL_DESCRIPTION, check) as building:
        (building / "tables").mkdir()
        _Export(storage, manifest, building, initial_rows).write(dense_limit_bytes, metrics or {})
    return target.address


def _nothing() -> None:
    pass


class _Export:
    """One export: its names, its layout, and the passes over the checkpoint's files."""

    def __init__(self, storage: Storage, manifest: CheckpointManifest, folder: Path, initial_rows: InitialRows) -> None:
        self._storage = storage
        self._manifest = manifest
        self._folder = folder
        self._initial_rows = initial_rows
        self._tables = {table.name: table for table in manifest.tables}

    def write(self, dense_limit_bytes: int, metrics: Mapping[str, Any]) -> None:
        buffers = read_dense(self._storage, self._manifest, role="buffers")
        dense = read_dense(self._storage, self._manifest)
        values = {name: value for name, value in dense.items() if "::" not in name} | buffers  # no optimizer state
        names = self._manifest.state_names or {name: name for name in (*values, *self._tables)}
        unknown = sorted(set(names.values()) - set(values) - set(self._tables))
        if unknown:
            raise CheckpointError(f"{self._manifest.folder} holds nothing for {', '.join(unknown)} of the model")
        whole = {
            name: table
            for name, table in self._tables.items()
            if table.num_embeddings * table.dim * np.dtype(table.dtype).itemsize <= dense_limit_bytes
        }
        by_rows = {name: table for name, table in self._tables.items() if name not in whole}
        tensors = self._write_dense(names, values, whole)
        counts = {name: self._write_rows(table) for name, table in by_rows.items()}
        self._describe(names, tensors, [name for name in tensors if names[name] in buffers], by_rows, counts, metrics)

    def _write_dense(
        self, names: Mapping[str, str], values: Mapping[str, Array], whole: Mapping[str, TableRecord]
    ) -> dict[str, TensorSpec]:
        """Write model.safetensors. A tied parameter is written under each of its names, so that any loader finds it."""
        specs = {}
        for name, source in names.items():
            if source in values:
                specs[name] = TensorSpec(values[source].dtype, values[source].shape)
            elif source in whole:
                table = whole[source]
                specs[name] = TensorSpec(np.dtype(table.dtype), (table.num_embeddings, table.dim))
        arrays = create_tensor_file(self._folder / TENSORS_FILE, specs)
        first: dict[str, str] = {}  # source -> the first name under which it is written
        for name in specs:
            source = names[name]
            if source in first:
                arrays[name][...] = arrays[first[source]]
                continue
            first[source] = name
            if source in values:
                arrays[name][...] = values[source]
                continue
            self._fill_initial(whole[source], arrays[name])
            self._fill_trained(whole[source], arrays[name])
        return specs

    def _fill_initial(self, table: TableRecord, out: Array) -> None:
        for start in range(0, table.num_embeddings, _CHUNK_ROWS):
            ids = np.arange(start, min(start + _CHUNK_ROWS, table.num_embeddings), dtype=np.int64)
            out[start : start + len(ids)] = self._initial_rows(table, ids)
            self._storage.work.add(out[start : start + len(ids)].nbytes)
        if table.padding_idx is not None:
            out[table.padding_idx] = 0

    def _fill_trained(self, table: TableRecord, out: Array) -> None:
        for block in iterate_rows(self._storage, self._manifest, _of_table(table), with_state=False):
            out[block.keys & _ID_MASK] = block.rows

    def _write_rows(self, table: TableRecord) -> int:
        """Write the trained rows of a large table, sorted by id; returns their number."""
        keep = _of_table(table)
        parts = [keys[keep(keys)] & _ID_MASK for keys in iterate_keys(self._storage, self._manifest)]
        ids = np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
        specs = {
            "ids": TensorSpec(np.dtype(np.int64), (len(ids),)),
            "rows": TensorSpec(np.dtype(table.dtype), (len(ids), table.dim)),
        }
        arrays = create_tensor_file(self._folder / table_file(table.name), specs)
        arrays["ids"][...] = ids
        for block in iterate_rows(self._storage, self._manifest, keep, with_state=False):
            arrays["rows"][np.searchsorted(ids, block.keys & _ID_MASK)] = block.rows
        return len(ids)

    def _describe(
        self,
        names: Mapping[str, str],
        tensors: Mapping[str, TensorSpec],
        buffers: Sequence[str],
        by_rows: Mapping[str, TableRecord],
        counts: Mapping[str, int],
        metrics: Mapping[str, Any],
    ) -> None:
        tables: list[dict[str, Any]] = []
        for name, table in self._tables.items():
            entry: dict[str, Any] = {
                "name": name,
                "stateDictNames": sorted(n for n, source in names.items() if source == name),
                "numEmbeddings": table.num_embeddings,
                "dim": table.dim,
                "dtype": table.dtype,
                "init": table.init,
            }
            if name in by_rows:
                entry |= {"form": "rows", "file": table_file(name), "numRows": counts[name]}
            else:
                entry |= {"form": "dense", "file": TENSORS_FILE, "numRows": table.num_embeddings}
            tables.append(entry)
        if not by_rows:
            (self._folder / "tables").rmdir()
        readme = receiver_readme(self._manifest, [(t, table_file(t.name)) for t in by_rows.values()])
        (self._folder / "README.md").write_text(readme, encoding="utf-8")
        document = {
            "version": _VERSION,
            "step": self._manifest.step,
            "epoch": self._manifest.epoch,
            "samples": self._manifest.samples,
            "seed": self._manifest.seed,
            "metrics": dict(metrics),
            "hashing": _HASHING,
            "tables": tables,
            "tensors": [
                {"name": name, "dtype": str(spec.dtype), "shape": list(spec.shape)} for name, spec in tensors.items()
            ],
            "buffers": buffers,
            "job": self._manifest.fingerprint,
            "files": list_files(self._folder, self._storage.work),
        }
        (self._folder / MODEL_DESCRIPTION).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _of_table(table: TableRecord) -> Callable[[Ids], npt.NDArray[np.bool_]]:
    def mask(keys: Ids) -> npt.NDArray[np.bool_]:
        of_table: npt.NDArray[np.bool_] = keys >> ID_BITS == table.index
        return of_table

    return mask
