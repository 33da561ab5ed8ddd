"""Speed of the storage engine compared with numpy and torch: `python -m benchmarks.store [--threads N]`.

One thread, float32, dimension 16, a table of one million trained rows; batches of 25,600 distinct rows, as in a click
log's batch of 4,096 samples with 26 fields. Contenders alternate. Times are CPU times of the thread, and the best round
counts: on a shared machine the best is the code's capability, and the median (also printed) the actual result.

With `--threads N`, a store of N threads is compared with one of one thread, in batches of 204,800 rows, by the wall
clock: N idle cores are needed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from heterps_runtime.partition.access import NO_RULES, TableRules
from heterps_runtime.store.half import decode, encode
from heterps_runtime.store.initial import TableSpec, initial_rows
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.lookup import Bags, bag_forward, gather, scatter_add
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.team import ALONE, Team

DIM = 16
BATCH_ROWS = 25_600  # distinct rows of a batch
BATCH_IDS = 106_496  # 4,096 samples x 26 fields
THREADS_ROWS = 204_800  # distinct rows of a batch with --threads
NUM_BATCHES = 8  # used in turn, so that no contender finds its rows in the cache

# Nothing goes, but each step looks at a part of the rows.
RULES = {
    "eviction": TableRules(unused_steps=10**6, candidate_unused_steps=10**6),
    "admission": TableRules(min_steps=2, candidate_unused_steps=10**6),
    "both": TableRules(min_steps=2, unused_steps=10**6, candidate_unused_steps=10**6),
}

Contender = Callable[[int], Any]  # takes the number of the batch


def store_of(name: str, num_rows: int, rules: TableRules = NO_RULES, team: Team = ALONE) -> RowStore:
    """Return a store that has trained all `num_rows` rows."""
    optimizer = SparseOptimizer.from_manifest({"name": name, "learningRate": "0.05"})
    store = RowStore(DIM, np.float32, optimizer, 0, {0: TableSpec("t", num_rows, rules=rules)}, team=team)
    for part in np.array_split(np.random.default_rng(0).permutation(num_rows), 40):
        for _ in range(rules.min_steps):
            store.apply([(part, np.ones((len(part), DIM), np.float32))], 1.0, 1)
    return store


def torch_optimizer(name: str, weight: torch.Tensor) -> torch.optim.Optimizer:
    """Return the usual PyTorch optimizer for `nn.Embedding(sparse=True)`."""
    classes: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    optimizer: torch.optim.Optimizer = classes[name]([weight], lr=0.05)
    return optimizer


def row_cases(num_rows: int) -> dict[str, tuple[int, dict[str, Contender]]]:
    """Pull and apply: name -> (elements per call, contenders)."""
    rng = np.random.default_rng(1)
    ids = [rng.choice(num_rows, BATCH_ROWS, replace=False) for _ in range(NUM_BATCHES)]
    keys = ids  # of table 0
    tensors = [torch.from_numpy(i) for i in ids]
    grads = rng.normal(size=(BATCH_ROWS, DIM)).astype(np.float32)
    grads_tensor = torch.from_numpy(grads)
    table = rng.normal(size=(num_rows, DIM)).astype(np.float32)
    weight = torch.from_numpy(table)
    sums = np.zeros((num_rows, 1), np.float32)
    stores = {name: store_of(name, num_rows) for name in ("sgd", "adagrad", "rowwise-adagrad", "adam", "ftrl")}
    store = stores["rowwise-adagrad"]

    def numpy_rowwise(b: int) -> None:
        sums[ids[b]] += (grads**2).mean(1, keepdims=True)
        table[ids[b]] -= 0.05 * grads / (np.sqrt(sums[ids[b]]) + 1e-10)

    cases: dict[str, tuple[int, dict[str, Contender]]] = {
        "pull": (
            BATCH_ROWS,
            {
                "heterps": lambda b: store.pull(keys[b]),
                "numpy": lambda b: table[ids[b]],  # no hash index: the row number is the id
                "torch": lambda b: weight.index_select(0, tensors[b]),
            },
        ),
        "pull, rows not yet trained": (
            BATCH_ROWS,
            {
                "heterps": lambda b: initial_rows(b, "t", ids[b], DIM),
                "numpy": lambda b: rng.standard_normal((BATCH_ROWS, DIM), np.float32),
                "torch": lambda b: torch.randn(BATCH_ROWS, DIM),
            },
        ),
        "apply rowwise-adagrad": (
            BATCH_ROWS,
            {"heterps": lambda b: store.apply([(keys[b], grads)], 1e-4, 2), "numpy": numpy_rowwise},
        ),
        "apply rowwise-adagrad, 2 pushes": (
            2 * BATCH_ROWS,
            {"heterps": lambda b: store.apply([(keys[b], grads), (keys[b - 1], grads)], 1e-4, 2)},
        ),
    }

    for text, rules in RULES.items():
        ruled = store_of("rowwise-adagrad", num_rows, rules)

        def ruled_step(b: int, ruled: RowStore = ruled) -> None:
            ruled.apply([(keys[b], grads)], 1e-4, 2 + b)
            ruled.evict(2 + b)

        cases[f"apply rowwise-adagrad, {text}"] = BATCH_ROWS, {"heterps": ruled_step}

    def torch_step(name: str) -> Contender:
        parameter = torch.nn.Parameter(torch.randn(num_rows, DIM))
        optimizer = torch_optimizer(name, parameter)

        def step(b: int) -> None:
            parameter.grad = torch.sparse_coo_tensor(
                tensors[b][None], grads_tensor, parameter.shape, check_invariants=False
            )
            optimizer.step()

        return step

    def heterps_step(name: str) -> Contender:
        return lambda b: stores[name].apply([(keys[b], grads)], 1e-4, 2)

    for name in ("sgd", "adagrad", "adam", "ftrl"):
        contenders = {"heterps": heterps_step(name)}
        if name != "ftrl":
            contenders["torch"] = torch_step(name)
        cases[f"apply {name}"] = BATCH_ROWS, contenders
    return cases


def worker_cases() -> dict[str, tuple[int, dict[str, Contender]]]:
    """Work of a worker on a batch: name -> (elements per call, contenders)."""
    rng = np.random.default_rng(2)
    ids = [
        np.minimum(rng.zipf(1.3, BATCH_IDS), 10**6) + 10**6 * rng.integers(0, 26, BATCH_IDS) for _ in range(NUM_BATCHES)
    ]
    deduplicate = UniqueKeys()
    pairs = [deduplicate(i) for i in ids]
    num_unique = max(len(unique) for unique, _ in pairs)
    inverses = [inverse for _, inverse in pairs]
    tensors = [torch.from_numpy(i) for i in inverses]
    rows = rng.normal(size=(num_unique, DIM)).astype(np.float32)
    grads = rng.normal(size=(BATCH_IDS, DIM)).astype(np.float32)
    out, accumulator = np.empty_like(grads), np.zeros_like(rows)
    offsets = np.arange(0, BATCH_IDS, 26)
    as_tensor = {name: torch.from_numpy(a) for name, a in (("rows", rows), ("grads", grads), ("offsets", offsets))}
    halves = {p: encode(grads, p).data for p in ("fp16", "bf16")}
    torch_halves = {"fp16": as_tensor["grads"].half(), "bf16": as_tensor["grads"].bfloat16()}
    return {
        "unique keys": (
            BATCH_IDS,
            {
                "heterps": lambda b: deduplicate(ids[b]),
                "numpy": lambda b: np.unique(ids[b], return_inverse=True),
                "torch": lambda b: torch.unique(torch.from_numpy(ids[b]), return_inverse=True),
            },
        ),
        "gather": (
            BATCH_IDS,
            {
                "heterps": lambda b: gather(rows, inverses[b]),
                "numpy": lambda b: np.take(rows, inverses[b], 0, out, "clip"),
                "torch": lambda b: as_tensor["rows"].index_select(0, tensors[b]),
            },
        ),
        "scatter-add": (
            BATCH_IDS,
            {
                "heterps": lambda b: scatter_add(grads, inverses[b], accumulator),
                "numpy": lambda b: np.add.at(accumulator, inverses[b], grads),
                "torch": lambda b: torch.zeros_like(as_tensor["rows"]).index_add_(0, tensors[b], as_tensor["grads"]),
            },
        ),
        "bags of 26, sum": (
            BATCH_IDS,
            {
                "heterps": lambda b: bag_forward(rows, Bags(inverses[b], offsets)),
                "torch": lambda b: torch.nn.functional.embedding_bag(
                    tensors[b], as_tensor["rows"], as_tensor["offsets"].int(), mode="sum"
                ),
            },
        ),
        "encode fp16 (elements)": (
            grads.size,
            {
                "heterps": lambda b: encode(grads, "fp16"),
                "numpy": lambda b: grads.astype(np.float16),
                "torch": lambda b: as_tensor["grads"].half(),
            },
        ),
        "decode fp16 (elements)": (
            grads.size,
            {
                "heterps": lambda b: decode(halves["fp16"], "fp16"),
                "numpy": lambda b: halves["fp16"].view(np.float16).astype(np.float32),
                "torch": lambda b: torch_halves["fp16"].float(),
            },
        ),
        "encode bf16 (elements)": (
            grads.size,
            {"heterps": lambda b: encode(grads, "bf16"), "torch": lambda b: as_tensor["grads"].bfloat16()},
        ),
        "decode bf16 (elements)": (
            grads.size,
            {"heterps": lambda b: decode(halves["bf16"], "bf16"), "torch": lambda b: torch_halves["bf16"].float()},
        ),
    }


def threads_cases(num_rows: int, threads: int) -> dict[str, tuple[int, dict[str, Contender]]]:
    """Pull and apply by one thread and by several: name -> (rows per call, contenders)."""
    rng = np.random.default_rng(3)
    keys = [rng.choice(num_rows, THREADS_ROWS, replace=False) for _ in range(NUM_BATCHES)]
    grads = rng.normal(size=(THREADS_ROWS, DIM)).astype(np.float32)
    cases: dict[str, tuple[int, dict[str, Contender]]] = {}
    stores = {number: store_of("rowwise-adagrad", num_rows, team=Team(number)) for number in (1, threads)}

    def pull(store: RowStore) -> Contender:
        return lambda b: store.pull(keys[b])

    def apply(store: RowStore, pushes: int) -> Contender:
        return lambda b: store.apply([(keys[b - i], grads) for i in range(pushes)], 1e-4, 2)

    cases["pull"] = THREADS_ROWS, {f"{n}": pull(store) for n, store in stores.items()}
    for pushes in (1, 2):
        name = f"apply rowwise-adagrad, {pushes} pushes"
        cases[name] = pushes * THREADS_ROWS, {f"{n}": apply(store, pushes) for n, store in stores.items()}
    return cases


def print_threads(num_rows: int, threads: int, num_rounds: int) -> None:
    """Print how much faster several threads are, each round beside one of a single thread."""
    print(f"million rows per second, and the ratio: median (min - max) of {num_rounds} rounds; {num_rows:,} rows")
    print(f"{'':34}{'1 thread':>12}{f'{threads} threads':>12}{'ratio':>24}")
    for case, (size, contenders) in threads_cases(num_rows, threads).items():
        seconds = measure(contenders, num_rounds, time.perf_counter)
        one, several = seconds["1"], seconds[f"{threads}"]
        ratios = [a / b for a, b in zip(one, several, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
        speeds = "".join(f"{size / 1e6 / statistics.median(found):>12.1f}" for found in (one, several))
        print(f"{case:34}{speeds}{ratio:>24}", flush=True)


def measure(
    contenders: dict[str, Contender], num_rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, list[float]]:
    """Return the seconds of each call, contenders in turn, after one uncounted call each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for r in range(-1, num_rounds):
        for name, call in contenders.items():
            start = clock()
            call(r % NUM_BATCHES)
            if r >= 0:
                seconds[name].append(clock() - start)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=40, help="timed calls per contender")
    parser.add_argument("--threads", type=int, default=1, help="compare a store of so many threads with one of one")
    arguments = parser.parse_args()
    if arguments.threads > 1:
        print_threads(arguments.rows, arguments.threads, arguments.rounds)
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Sparse invariant checks")  # torch.optim.Adagrad's own tensors
    print(f"million per CPU second, best (median) of {arguments.rounds} calls; {arguments.rows:,} rows of {DIM} floats")
    print(f"{'':34}{'heterps':>18}{'numpy':>18}{'torch':>18}")
    for case, (size, contenders) in (row_cases(arguments.rows) | worker_cases()).items():
        seconds = measure(contenders, arguments.rounds)
        cells = ""
        for name in ("heterps", "numpy", "torch"):
            cell = "-"
            if name in seconds:
                best, median = (size / 1e6 / f(seconds[name]) for f in (min, statistics.median))
                cell = f"{best:.1f} ({median:.1f})"
            cells += f"{cell:>18}"
        print(f"{case:34}{cells}", flush=True)


if __name__ == "__main__":
    main()
