"""Checkpoints: how long a parameter server stands still for one, how much it writes, and what training loses.

    python -m benchmarks.checkpoint [--rows 20000000] [--rounds 3] [--folder .cache/benchmarks]

A server with rows of dimension 16 and row-wise Adagrad applies steps as fast as it can, first alone and then while it
writes a checkpoint, in the loop of `heterps_runtime.ps.server`: after each step, it copies some rows for the thread
that writes. Rows are drawn as in click logs: the i-th most frequent with a probability in proportion to 1 / i. The
first checkpoint has all rows; then a share of the rows changes, and the next one has those and what changed meanwhile.

A stall is what the server's thread does for the checkpoint at a time: begin it, or copy some rows. For comparison, the
time in which all rows are copied at once, as they had to be if they did not change meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.restore import CACHE, DIM, configuration

from heterps_runtime.checkpoint import CheckpointWriter, RowFile, Storage
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.warm import warm_up_server

STEP_ROWS = 20_000
SPREAD = 2_654_435_761  # neighbours in frequency are not neighbours in memory
CHANGED = (0.02, 0.2)


class Server:
    """A server that trains a table, and writes its rows."""

    def __init__(self, folder: Path, rows: int) -> None:
        config = configuration(folder)
        warm_up_server(
            SparseOptimizer.from_manifest(config.sparse_optimizer),
            DenseOptimizer.from_manifest(config.dense_optimizer),
            "float32",
            "full",
            rules=False,
        )
        self.rows = rows
        self.shard = Shard(config, 0)
        self.shard.begin_generation(1)
        self.shard.define([Table(0, "table", rows, DIM, None)], {}, {})
        self.writer = CheckpointWriter(Storage.open(folder / "checkpoints"))
        self.woken = threading.Event()
        self.newest: str | None = None
        self.random = np.random.default_rng(1)

    def step(self, keys: np.ndarray | None = None) -> float:
        """Apply a step; return its seconds."""
        if keys is None:
            ranks = self.rows ** self.random.random(STEP_ROWS)
            keys = ranks.astype(np.int64) * SPREAD % self.rows
        gradients = np.full((len(keys), DIM), 0.01, np.float32)
        began, step = time.perf_counter(), self.shard.committed
        self.shard.push(step, "worker", Gradients(((DIM, keys, gradients),), {}, {}))
        self.shard.commit_dense(step, 1)
        self.shard.commit_rows(step, 1)
        return time.perf_counter() - began

    def change(self, share: float) -> None:
        """Change a share of the rows, at random."""
        keys = self.random.permutation(self.rows)[: int(share * self.rows)]
        for start in range(0, len(keys), 1 << 20):
            self.step(keys[start : start + (1 << 20)])


@dataclass
class Written:
    """A checkpoint."""

    rows: int
    bytes: int
    seconds: float
    steps: list[float] = field(default_factory=list)  # seconds of each step during it
    stalls: list[float] = field(default_factory=list)  # seconds of each piece of work for it


def write(server: Server, *, train: bool) -> Written:
    """Write a checkpoint while training goes on, or stands still."""
    folder = f"step-{server.shard.committed:09d}.1-00000000"
    began = time.perf_counter()
    part = server.shard.snapshot(1, folder, server.newest, server.woken.set)
    parts = [part for file in part.files if isinstance(file, RowFile) for part in file.parts]
    found = Written(sum(part.total for part in parts), 0, 0.0)
    found.stalls.append(time.perf_counter() - began)
    done = server.writer.write(folder, part.files)
    done.add_done_callback(lambda _: server.woken.set())
    while not done.done():
        if train:
            found.steps.append(server.step())
        stalled = time.perf_counter()
        more = server.shard.copy_rows()
        found.stalls.append(time.perf_counter() - stalled)
        if not more and not train:
            server.woken.wait()
            server.woken.clear()
    found.seconds = time.perf_counter() - began
    part.over(done.result())
    found.bytes = sum(entry.bytes for entry in done.result())
    server.newest = folder
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=CACHE, help="where to write")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[tuple[Written, float]]] = {}
    copies = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="heterps-checkpoint-", dir=arguments.folder) as name:
            server = Server(Path(name), arguments.rows)
            server.change(1.0)
            [store] = server.shard.stores.values()
            began = time.perf_counter()
            chunk = store.new_chunk(len(store))
            store.copy(np.arange(len(store), dtype=np.int32), chunk)
            copies.append(time.perf_counter() - began)
            del chunk
            for title, share in (("all", 1.0), *((f"{share:.0%}", share) for share in CHANGED)):
                if share < 1:
                    server.change(share)
                alone = statistics.median(server.step() for _ in range(200))
                results.setdefault(title, []).append((write(server, train=True), alone))
            write(server, train=False)  # what has changed meanwhile
            server.change(CHANGED[0])
            results.setdefault("2 %, without training", []).append((write(server, train=False), 0.0))
            server.writer.close()
            payload = store.row_nbytes
    print(
        "| changed rows | rows written | bytes / their payload | seconds | longest stall (ms) | step during / alone |"
    )
    print("|---|---|---|---|---|---|")
    for title, found in results.items():
        rows, size = (statistics.median(getattr(w, name) for w, _ in found) for name in ("rows", "bytes"))
        seconds = statistics.median(w.seconds for w, _ in found)
        longest = [1000 * max(w.stalls) for w, _ in found]
        ratios = [statistics.median(w.steps) / alone for w, alone in found if w.steps]
        slower = f"{statistics.median(ratios):.2f}" if ratios else ""
        print(
            f"| {title} | {rows:,.0f} | {size / (rows * payload):.3f} | {seconds:.2f} "
            f"| {statistics.median(longest):.1f} ({min(longest):.1f} - {max(longest):.1f}) | {slower} |"
        )
    print(f"\nall rows at once: {1000 * statistics.median(copies):,.0f} ms")


if __name__ == "__main__":
    main()
