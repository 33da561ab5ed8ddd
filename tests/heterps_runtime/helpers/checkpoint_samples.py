"""A small job's state for the tests of checkpoints: two tables of one dim, one of another, a dense layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    FileEntry,
    Origin,
    Ownership,
    Storage,
    TableRecord,
    commit,
    dense_arrays,
    iterate_rows,
    new_folder,
    row_arrays,
    take_over,
)
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.checkpoint.manifest import write_manifest
from heterps_runtime.checkpoint.restore import RowBlock

Array = npt.NDArray[Any]
Rows = dict[int, tuple[bytes, dict[str, bytes]]]  # key -> bytes of its row and of its optimizer state

NORMAL = {"distribution": "normal", "mean": "0", "std": "1"}
TABLES = (
    TableRecord(0, "user.weight", num_embeddings=500, dim=4, init=NORMAL),
    TableRecord(1, "item.weight", num_embeddings=300, dim=4, init=NORMAL, padding_idx=0),
    TableRecord(2, "place.weight", num_embeddings=1 << 40, dim=2, init=NORMAL),
)
FINGERPRINT = {
    "model.entrypoint": "shop.model:build",
    "model.arguments": {"width": 8},
    "training.seed": 7,
    "training.optimizer.dense": {"name": "adam", "learningRate": "0.01"},
    "training.precision": "fp32",
}


def make_keys(table: int, ids: npt.ArrayLike) -> Array:
    keys: Array = np.asarray(ids, np.int64) | np.int64(table << 48)
    return keys


def random_groups(seed: int, num_rows: int = 90) -> dict[int, tuple[Array, Array, dict[str, Array]]]:
    """All rows of the job by dim: distinct keys in random order, rows and optimizer state."""
    rng = np.random.default_rng(seed)
    users = make_keys(0, rng.choice(np.arange(500), num_rows, replace=False))
    items = make_keys(1, rng.choice(np.arange(1, 300), num_rows, replace=False))
    places = make_keys(2, rng.choice(1 << 40, num_rows, replace=False))
    groups: dict[int, tuple[Array, Array, dict[str, Array]]] = {}
    for dim, keys in ((4, np.concatenate([users, items])), (2, places)):
        rng.shuffle(keys)
        rows = rng.standard_normal((len(keys), dim)).astype(np.float32)
        state: dict[str, Array] = {
            "sum": rng.random((len(keys), dim)).astype(np.float32),
            "count": rng.random(len(keys)),
        }
        groups[dim] = (keys, rows, state)
    return groups


def dense_state(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((3, 10)).astype(np.float32)
    return {"top.weight": weight, "top.bias": weight[:, 0].copy(), "top.weight::exp_avg": weight * 2}


def owner_of(storage: Storage) -> Ownership:
    """The run that has the checkpoints; the first one, if there is none yet."""
    records = storage.files("owners")
    if not records:
        return take_over(storage, "job", 0.0)
    term, identity = records[-1].removeprefix("owners/").removesuffix(".json").split("-")
    return Ownership(storage, int(term), identity)


def write_checkpoint(
    storage: Storage, step: int, shards: int = 2, *, keep: int | None = None, groups: dict[int, Any] | None = None
) -> CheckpointManifest:
    """Write a valid checkpoint in which rows lie on shards by key; with `keep`, also delete older ones."""
    owner = owner_of(storage)
    folder = new_folder(step, owner.term)
    files = write_state(storage, folder, step, shards, groups)
    manifest = make_manifest(step, folder, files, owner.term)
    if keep is None:
        write_manifest(storage, manifest, owner)
    else:
        commit(storage, manifest, keep, owner)
    return manifest


def write_state(
    storage: Storage, folder: str, step: int, shards: int, groups: dict[int, Any] | None = None
) -> tuple[FileEntry, ...]:
    """Write the state of a step, which is also the seed of its values."""
    files, origin = [], Origin(step, 1)
    for shard in range(shards):
        parts = {}
        for dim, (keys, rows, state) in (random_groups(step) if groups is None else groups).items():
            mask = on_shard(keys, shard, shards)
            parts[dim] = (keys[mask], rows[mask], {name: values[mask] for name, values in state.items()})
        files.append(
            write_tensors(
                storage,
                folder,
                f"rows-{shard}.safetensors",
                row_arrays(parts),
                origin=origin,
                role="rows",
                index=shard,
            )
        )
    dense = dense_arrays(dense_state(step))
    files.append(write_tensors(storage, folder, "dense-0.safetensors", dense, origin=origin, role="dense"))
    buffers = dense_arrays({"norm.num_batches_tracked": np.array(step)}, "buffers")
    files.append(write_tensors(storage, folder, "buffers-0.safetensors", buffers, origin=origin, role="buffers"))
    return tuple(files)


def make_manifest(step: int, folder: str, files: tuple[FileEntry, ...], term: int = 1) -> CheckpointManifest:
    return CheckpointManifest(
        step=step,
        epoch=0,
        seed=7,
        global_batch_size=64,
        num_rows=10_000,
        samples=64 * step,
        fingerprint=FINGERPRINT,
        plan={},
        tables=TABLES,
        files=files,
        term=term,
        lineage=1,
        loss=0.25,
        folder=folder,
    )


def on_shard(keys: Array, shard: int, shards: int) -> npt.NDArray[np.bool_]:
    mine: npt.NDArray[np.bool_] = (keys * np.int64(0x9E3779B1) >> 7) % shards == shard
    return mine


def collect(storage: Storage, manifest: CheckpointManifest, shards: int, block_rows: int = 50) -> list[Rows]:
    """What each of `shards` new shards restores."""
    found = []
    for shard in range(shards):

        def wanted(keys: Array, shard: int = shard) -> npt.NDArray[np.bool_]:
            return on_shard(keys, shard, shards)

        mine: Rows = {}
        for block in iterate_rows(storage, manifest, wanted, block_rows=block_rows):
            assert len(block.keys) <= block_rows
            mine |= as_rows(block)
        found.append(mine)
    return found


def as_rows(block: RowBlock) -> Rows:
    return {
        int(key): (block.rows[i].tobytes(), {name: values[i].tobytes() for name, values in block.state.items()})
        for i, key in enumerate(block.keys)
    }


def all_rows(groups: dict[int, tuple[Array, Array, dict[str, Array]]]) -> Rows:
    rows: Rows = {}
    for dim, (keys, values, state) in groups.items():
        rows |= as_rows(RowBlock(dim, keys, values, state))
    return rows
