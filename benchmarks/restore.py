"""Restoring rows: what one parameter server takes to read its part of a checkpoint.

    python -m benchmarks.restore [--rows 20000000] [--rounds 3]

A checkpoint of rows of dimension 16 with row-wise Adagrad is written as one, two and four servers do. Then the first
of some servers verifies and loads its files, as in a job; the others would do so at the same time, on their own
machines. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks._processes import pool_document

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.checkpoint import CheckpointManifest, Origin, Storage, TableRecord, row_arrays, verify_file
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.config import RunConfig
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import slot_map
from heterps_runtime.store.keys import shard_of
from heterps_runtime.store.optimizers import SparseOptimizer

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
DIM = 16
FOLDER = "step"
MANIFEST = """
apiVersion: heterps.io/v1alpha1
kind: HeterPSJob
metadata: {name: restore}
spec:
  model: {entrypoint: "none:none"}
  data: {train: none, label: label, sparse: [id]}
  training: {globalBatchSize: 8, steps: 1}
  pools: [{name: cpu}]
"""


def configuration(folder: Path) -> RunConfig:
    """Return the configuration of a job, of which a server reads its optimizers only."""
    (folder / "job.yaml").write_text(json.dumps(pool_document("cpu", "CPU", "cpu", 1, "0.04")) + "\n---" + MANIFEST)
    return RunConfig.from_json(load_manifest(folder / "job.yaml").run_configuration(folder / "work", []))


def write(storage: Storage, config: RunConfig, rows: int, servers: int) -> CheckpointManifest:
    """Write the rows of a checkpoint as a number of servers do."""
    keys = np.random.default_rng(5).permutation(rows)
    columns = SparseOptimizer.from_manifest(config.sparse_optimizer).state_columns(DIM)
    shards = shard_of(keys, slot_map(servers))
    entries = []
    for server in range(servers):
        own = keys[shards == server]
        state = {name: np.ones((len(own), count), np.float32) for name, count in columns.items()}
        arrays = row_arrays({DIM: (own, np.ones((len(own), DIM), np.float32), state)})
        name = f"rows-{server}.safetensors"
        entries.append(write_tensors(storage, FOLDER, name, arrays, origin=Origin(1, 1), role="rows", index=server))
    return CheckpointManifest(
        step=1,
        epoch=0,
        seed=0,
        global_batch_size=1,
        num_rows=1,
        samples=1,
        fingerprint={},
        plan={},
        tables=(TableRecord(0, "table", rows, DIM, {}),),
        files=tuple(entries),
        term=1,
        lineage=1,
        folder=FOLDER,
    )


def restore(
    storage: Storage, config: RunConfig, manifest: CheckpointManifest, servers: int
) -> tuple[int, int, float, float]:
    """Restore the first of a number of servers; return files read, rows, seconds and processor seconds."""
    shard = Shard(config, 0)
    shard.begin_generation(servers)
    began, used = time.perf_counter(), time.process_time()
    files = shard.files_to_verify(manifest)
    for entry in files:
        verify_file(storage, FOLDER, entry, manifest.origin)
    shard.reset(storage, manifest)
    shard.define([Table(0, "table", manifest.tables[0].num_embeddings, DIM, None)], {}, {})
    return len(files), shard.num_rows, time.perf_counter() - began, time.process_time() - used


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    print("| written by | read by | files that one reads | its rows | seconds | processor seconds | rows per second |")
    print("|---|---|---|---|---|---|---|")
    for written, readers in ((1, (1, 2)), (2, (2,)), (4, (4, 8, 3))):
        with tempfile.TemporaryDirectory(prefix="heterps-restore-", dir=CACHE) as name:
            config, storage = configuration(Path(name)), Storage.open(Path(name) / "checkpoint")
            manifest = write(storage, config, arguments.rows, written)
            for number in readers:
                restore(storage, config, manifest, number)  # compiles
                rounds = [restore(storage, config, manifest, number) for _ in range(arguments.rounds)]
                files, rows = rounds[0][:2]
                seconds, processor = (statistics.median(r[i] for r in rounds) for i in (2, 3))
                print(
                    f"| {written} | {number} | {files} | {rows:,} | {seconds:.2f} | {processor:.2f} "
                    f"| {rows / seconds:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
