"""Rows on disk: a table of ten times the memory, beside the same table in memory, and beside RocksDB.

    python -m benchmarks.spill [--rounds 3] [--part store|job|both] [--cold] [--models wide deep]

store: one thread, 2 million rows of dimension 16 with row-wise Adagrad, a tenth of them in memory. Each step draws
20,000 ids by a Zipf law of 1.05, pulls their rows and applies a gradient to them. Clock time, of interleaved steps.
RocksDB takes part if `rocksdict` is installed (`pip install rocksdict`): its block cache has the same memory.

job: two workers and a server train the wide network, whose time is that of its rows, and the deep one, whose time is
that of products, on a click log of a million ids (Zipf 1.05). The first epoch creates the rows; the second one counts.

The kernel keeps files in memory that is not used otherwise. With --cold, part `store` makes it forget them before each
step, so that each row comes from the disk of this machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._clicks import CACHE, NETWORKS, TRAIN_ROWS, click_log
from benchmarks._heterps import Moment, Outcome, on_cores
from benchmarks._ratios import ratios, spread
from numpy.typing import NDArray

from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.values import SpilledValues
from heterps_runtime.store.warm import warm_up_server

rocksdict: Any = importlib.import_module("rocksdict") if importlib.util.find_spec("rocksdict") else None

ROWS, DIM, IDS_PER_STEP, STEPS, WARM_UP = 2_000_000, 16, 20_000, 60, 40
RATE = 0.05
SHARE = 0.1  # of the rows in memory
WORKERS, BATCH = 2, 8192
EPOCH = -(-TRAIN_ROWS // BATCH)

Step = Callable[[NDArray[np.int64], NDArray[np.float32], int], None]


class Entrant:
    """A store with all rows."""

    def __init__(self, name: str, step: Step, reads: Callable[[], int], forget: Callable[[], None]) -> None:
        self.name, self.step, self.reads, self.forget = name, step, reads, forget
        self.milliseconds: list[float] = []
        self.rows_read: list[int] = []


def row_store(name: str, space: SpillSpace | None) -> Entrant:
    """The product's store, with a space or in memory."""
    optimizer = SparseOptimizer.from_manifest({"name": "rowwise-adagrad", "learningRate": str(RATE)})
    store = RowStore(DIM, np.float32, optimizer, 0, {0: TableSpec("t", ROWS)}, space)
    for keys in np.array_split(np.random.default_rng(0).permutation(ROWS), 40):
        store.apply([(keys, np.zeros((len(keys), DIM), np.float32))], 1.0, 1)

    def step(keys: NDArray[np.int64], gradients: NDArray[np.float32], number: int) -> None:
        store.pull(keys)
        store.apply([(keys, gradients)], 1.0, number)

    def forget() -> None:
        if isinstance(store._values, SpilledValues):
            forget_file(store._values._file._descriptor)

    return Entrant(name, step, lambda: space.num_read if space else 0, forget)


def forget_file(descriptor: int) -> None:
    """Make the kernel forget what it keeps of a file."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def rocks(folder: Path, memory: int) -> Entrant:
    """RocksDB as a store of rows with their state: many rows are read at once, and written as one batch."""
    options: Any = rocksdict.Options(raw_mode=True)
    block: Any = rocksdict.BlockBasedOptions()
    block.set_block_cache(rocksdict.Cache(memory * 3 // 4))
    block.set_bloom_filter(10, False)
    options.set_block_based_table_factory(block)
    options.set_write_buffer_size(memory // 8)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    db: Any = rocksdict.Rdict(str(folder), options)
    width = DIM + 1
    for keys in np.array_split(np.random.default_rng(0).permutation(ROWS), 40):
        write(db, keys, np.zeros((len(keys), width), np.float32))

    def step(keys: NDArray[np.int64], gradients: NDArray[np.float32], number: int) -> None:
        del number
        names = [key.tobytes() for key in keys]
        values = np.frombuffer(b"".join(db[names]), np.float32).reshape(-1, width).copy()
        values[:, DIM] += np.mean(gradients * gradients, axis=1)
        values[:, :DIM] -= RATE * gradients / np.sqrt(values[:, DIM:])
        write(db, keys, values)

    def forget() -> None:
        for file in folder.glob("*.sst"):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return Entrant("RocksDB", step, lambda: 0, forget)


def write(db: Any, keys: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Write rows as one batch."""
    batch: Any = rocksdict.WriteBatch(raw_mode=True)
    for key, value in zip(keys, values, strict=True):
        batch.put(key.tobytes(), value.tobytes())
    db.write(batch)


def compare_stores(folder: Path, *, cold: bool) -> None:
    """Time interleaved steps of all stores, and print them."""
    sparse = SparseOptimizer.from_manifest({"name": "rowwise-adagrad", "learningRate": str(RATE)})
    dense = DenseOptimizer.from_manifest({"name": "sgd", "learningRate": "1"})
    warm_up_server(sparse, dense, np.float32, "full", rules=False, disk=folder)
    memory = int(SHARE * ROWS * (DIM * 4 + 4))
    entrants = [row_store("in memory", None), row_store("a tenth in memory", SpillSpace(folder, memory))]
    if rocksdict is not None:
        entrants.append(rocks(folder / "rocks", memory))
    weights = np.cumsum(1 / np.arange(1, ROWS + 1) ** 1.05)
    rng = np.random.default_rng(1)
    popular = rng.permutation(ROWS)
    for number in range(2, WARM_UP + STEPS + 2):
        drawn = popular[np.searchsorted(weights, rng.random(IDS_PER_STEP) * weights[-1])]
        keys = np.unique(drawn).astype(np.int64)
        gradients = rng.normal(size=(len(keys), DIM)).astype(np.float32)
        for entrant in entrants:
            if cold:
                entrant.forget()
            before, began = entrant.reads(), time.perf_counter()
            entrant.step(keys, gradients, number)
            if number >= WARM_UP + 2:
                entrant.milliseconds.append(1e3 * (time.perf_counter() - began))
                entrant.rows_read.append(entrant.reads() - before)
    print(f"\n| {ROWS:,} rows{', from disk' if cold else ''} | ms per step, median (min - max) | rows read per step |")
    print("|---|---|---|")
    for entrant in entrants:
        times = spread(entrant.milliseconds, ".2f")
        print(f"| {entrant.name} | {times} | {statistics.median(entrant.rows_read):,.0f} |")


def train(model: str, data: Path, memory: int | None, folder: Path) -> Outcome:
    """Train two epochs with HeterPS, of which the first does not count; the outcome has the bytes of the server."""
    held: list[float] = []

    def remember(moment: Moment) -> None:
        held.append(next(m["totals"]["bytes"] for m in moment.status["members"] if m["name"] == "ps-0"))

    server = None if memory is None else {"spill": {"memory": memory}}
    with on_cores(model, data, folder, 2 * EPOCH, BATCH, WORKERS, server=server) as job:
        return job.measure(2 * EPOCH, remember, skip=EPOCH) | {"serverBytes": held[-1]}


def compare_jobs(model: str, rounds: int) -> None:
    """Train with all rows in memory and with a tenth of them, in turns, and print throughput and loss."""
    data = click_log(model)
    outcomes: dict[str, list[Outcome]] = {"in memory": [], "a tenth in memory": []}
    memory: int | None = None
    for number in range(rounds):
        for name, found in outcomes.items():
            with tempfile.TemporaryDirectory(prefix="heterps-spill-") as folder:
                found.append(train(model, data, memory if name != "in memory" else None, Path(folder)))
            if memory is None:
                memory = int(SHARE * found[0]["serverBytes"])
        figures = ", ".join(f"{name} {found[-1]['samplesPerSecond']:,.0f}" for name, found in outcomes.items())
        print(f"  {model}, round {number + 1}: {figures} samples/s", file=sys.stderr, flush=True)
    print(f"\n| {model} | samples/s, median (min - max) | in memory = 1 | MB of the server | held-out log loss |")
    print("|---|---|---|---|---|")
    for name, found in outcomes.items():
        rates = [o["samplesPerSecond"] for o in found]
        beside = [o["samplesPerSecond"] for o in outcomes["in memory"]]
        memory_used = statistics.median(o["serverBytes"] for o in found) / 1e6
        loss = statistics.median(o["logLoss"] for o in found)
        print(
            f"| {name} | {spread(rates, ',.0f')} | {spread(ratios(rates, beside), '.2f')} | {memory_used:,.0f} "
            f"| {loss:.4f} |"
        )


def main() -> None:
    """Run the comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of jobs; default: 3")
    parser.add_argument("--part", choices=("store", "job", "both"), default="both")
    parser.add_argument("--models", choices=NETWORKS, nargs="+", default=["wide", "deep"], help="default: wide deep")
    parser.add_argument("--cold", action="store_true", help="read rows from the disk, not from the kernel's memory")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if options.part != "job":
        with tempfile.TemporaryDirectory(prefix="spill-", dir=CACHE) as folder:
            compare_stores(Path(folder), cold=options.cold)
    if options.part != "store":
        for model in options.models:
            compare_jobs(model, options.rounds)


if __name__ == "__main__":
    main()
