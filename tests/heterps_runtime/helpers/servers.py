"""A parameter server without sockets that trains and writes checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    CheckpointWriter,
    Origin,
    Ownership,
    Storage,
    TableRecord,
    commit,
    new_folder,
    take_over,
)
from heterps_runtime.config import RunConfig
from heterps_runtime.partition.access import rules_of
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.jobs import configuration
from tests.heterps_runtime.helpers.store_reference import all_rows

PATIENCE_SECONDS = 60
TABLES = [Table(0, "small", 1 << 20, 3, None), Table(1, "large", 1 << 20, 8, None)]
Rows = dict[int, list[list[float]]]


class Server:
    """A server that trains and writes checkpoints, as a job with one server does.

    Attributes:
        newest: the newest valid checkpoint, as the coordinator knows it.
        lineage: as in a generation.
    """

    def __init__(self, folder: Path, servers: int = 1, index: int = 0, rules: Sequence[dict[str, Any]] = ()) -> None:
        document = configuration(folder / "work")
        document["job"]["spec"]["model"]["tables"] = list(rules)
        self.config = RunConfig.from_json(document)
        self.storage = Storage.open(folder / "checkpoints")
        self.owner: Ownership = take_over(self.storage, "job", 0.0)
        self.writer = CheckpointWriter(self.storage)
        self.woken = threading.Event()
        self.shard = Shard(self.config, index)
        self.newest: CheckpointManifest | None = None
        self.lineage = 1
        self.servers = servers
        self.restore(None)

    def restore(self, manifest: CheckpointManifest | None) -> None:
        self.shard.begin_generation(self.servers)
        self.shard.reset(self.storage, manifest)
        self.shard.define(TABLES, {"weight": DensePiece(0, (4,), np.zeros(4))}, {})
        self.newest = manifest

    def train(self, small: Any, large: Any = ()) -> None:
        step = self.shard.committed
        chunks = []
        for dim, table, ids in ((3, 0, small), (8, 1, large)):
            keys = make_keys(table, np.asarray(ids, np.int64))
            chunks.append((dim, keys, np.random.default_rng(step).normal(size=(len(keys), dim))))
        self.shard.push(step, "worker-0-0", Gradients(tuple(chunks), {"weight": np.ones(4)}, {}))
        self.shard.commit_dense(step, 1)
        self.shard.commit_rows(step, 1)

    def write(self, *, valid: bool = True, during: Any = lambda: None) -> CheckpointManifest:
        """Write a checkpoint; it becomes valid, or the coordinator never hears of it."""
        folder, origin = new_folder(self.shard.committed, self.owner.term), Origin(self.shard.committed, self.lineage)
        newest = self.newest.folder if self.newest else None
        part = self.shard.snapshot(self.lineage, folder, newest, self.woken.set)
        during()
        written = self.writer.write(folder, part.files)
        written.add_done_callback(lambda _: self.woken.set())
        while not written.done():
            if not self.shard.copy_rows():
                assert self.woken.wait(PATIENCE_SECONDS)
                self.woken.clear()
        part.over(written.result())
        rules = rules_of(TABLES, self.config.tables)
        records = tuple(
            TableRecord(t.index, t.name, t.num_embeddings, t.dim, {}, "float64").with_rules(rules[t.index])
            for t in TABLES
        )
        manifest = CheckpointManifest(
            step=origin.step, epoch=0, seed=0, global_batch_size=1, num_rows=1, samples=1, fingerprint={}, plan={},
            tables=records, files=(*part.earlier, *written.result()), term=self.owner.term, lineage=origin.lineage,
            folder=folder,
        )  # fmt: skip
        if valid:
            commit(self.storage, manifest, 2, self.owner)
            self.newest = manifest
        return manifest

    def rows(self) -> Rows:
        return rows_of(self.shard)


def rows_of(shard: Shard) -> Rows:
    """Rows and their state by key; and those of candidates, by -1 - key."""
    found: Rows = {}
    for store in shard.stores.values():
        for part in (store, store.candidates):
            if part is None:
                continue
            chunk = all_rows(part)
            for i, key in enumerate(chunk.keys.tolist()):
                values = [chunk.rows[i].tolist(), *(state[i].tolist() for state in chunk.state.values())]
                found[key if part is store else -1 - key] = values
    return found


def restored(server: Server, manifest: CheckpointManifest, servers: int = 1) -> Rows:
    """The rows that some servers restore."""
    found: Rows = {}
    for index in range(servers):
        shard = Shard(server.config, index)
        shard.begin_generation(servers)
        shard.reset(server.storage, manifest)
        shard.define(TABLES, {}, {})
        mine = rows_of(shard)
        assert not mine.keys() & found.keys()
        found |= mine
    return found
