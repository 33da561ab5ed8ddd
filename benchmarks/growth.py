"""Growth of a store: memory per row, and what a step takes while the index grows.

    python -m benchmarks.growth [--rows 50000000] [--dim 16] [--optimizer rowwise-adagrad]

Each step adds 25,600 rows. Memory is what the process has beyond that before the first step. Times are those of the
thread on a processor, since other processes of a shared machine would be seen as stalls. They contain what the kernel,
or the host of a virtual machine, takes to provide memory: a step needs two to five pages of 2 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from heterps_runtime.profiler.memory import anonymous_bytes
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.warm import warm_up_server

STEP_ROWS = 25_600
SPREAD = 2_654_435_761  # odd: distinct ids in an order without meaning


def page_milliseconds() -> float:
    """Return what a page of 2 MiB takes to be provided, the median of 9."""
    pages = Slab(np.uint8, (2 << 20,), 9)
    seconds = []
    for page in range(9):
        began = time.thread_time()
        pages.populate(page + 1)
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds) * 1e3


def memory() -> int:
    """Return the bytes of memory that this process has."""
    found = anonymous_bytes()
    assert found is not None, "the kernel of Linux tells"
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--optimizer", default="rowwise-adagrad")
    arguments = parser.parse_args()
    optimizer = SparseOptimizer.from_manifest({"name": arguments.optimizer, "learningRate": "0.05"})
    warm_up_server(
        optimizer, DenseOptimizer.from_manifest({"name": "sgd", "learningRate": "0.1"}), np.float32, "full", rules=False
    )
    store = RowStore(arguments.dim, np.float32, optimizer, 0, {0: TableSpec("table", 1 << 40)})
    grads = np.ones((STEP_ROWS, arguments.dim), np.float32)
    print(
        f"dimension {arguments.dim}, {arguments.optimizer}: a row with its state and key has {store.row_nbytes} bytes"
    )
    print("| rows | memory per row, bytes | / its payload | step, ms: median | worst | worst - median | 2 MiB, ms |")
    print("|---|---|---|---|---|---|---|")
    before = memory()
    next_line = first_line = max(STEP_ROWS, arguments.rows // 50)
    seconds: list[float] = []
    while len(store) < arguments.rows:
        keys = (np.arange(len(store), len(store) + STEP_ROWS) * SPREAD) % (1 << 40)
        began = time.thread_time()
        store.apply([(keys, grads)], 1.0, 1)
        seconds.append(time.thread_time() - began)
        if len(store) >= next_line:
            per_row = (memory() - before) / len(store)
            median, worst = statistics.median(seconds) * 1e3, max(seconds) * 1e3
            print(
                f"| {len(store):,} | {per_row:.1f} | {per_row / store.row_nbytes:.3f} | {median:.1f} | {worst:.1f} "
                f"| {worst - median:.1f} | {page_milliseconds():.1f} |",
                flush=True,
            )
            seconds.clear()
            next_line = min(arguments.rows, len(store) * 2) if len(store) < arguments.rows else first_line


if __name__ == "__main__":
    main()
