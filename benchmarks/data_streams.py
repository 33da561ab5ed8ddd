"""Streamed data: what is read, and what it costs, beside the same data in memory.

    python -m benchmarks.data_streams [--rows 10000000] [--rounds 3] [--steps 150] [--model deep|wide] [--without-s3]

A click log is read in blocks by 4 workers, with a cache of a twentieth of its size, in windows of half the cache:

- reading: an epoch by each of the four workers, each with a cache of its own, as on four machines. Rows read beside the
  rows of its share.
- training: jobs of real processes, interleaved; ratios are taken within a round. `memory` has all rows in the cache
  before it starts (`access: Cached`); `local` and `s3` start with an empty one (`access: Streamed`), and so does
  `small`, with a twentieth of the data. Time to the first step counts from the start of the worker processes.

The object store is versitygw, as `make cluster-build` builds it, on this machine's loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._clicks import LOSS, click_job
from benchmarks._processes import Processes, pool_document, stage_document
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, ClickLogSpec, write_click_log
from tests.cluster.object_store import ObjectStore

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import PATH_STATUS
from heterps_runtime.data import DataSpec, open_dataset
from heterps_runtime.partition.allocation import even_split

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "benchmarks"
WORKERS = 4
BATCH = 4096  # of all workers
ROW_GROUP = 8192  # rows: a window of 1/40 of the data has 30 of them
SKIP = 15  # steps before speed counts
SEED = 17
ROW_BYTES = 8 * len(FIELDS) + 4 * len(NUMBERS) + 4  # in the cache
PATIENCE_SECONDS = 300
STORE = "127.0.0.1:7471"
COLUMNS = {"format": "parquet", "label": LABEL, "dense": list(NUMBERS), "sparse": list(FIELDS)}


class Setting(NamedTuple):
    """Where a job's data comes from."""

    access: str
    train: str
    variables: dict[str, str]


class Outcome(NamedTuple):
    """What a job has shown."""

    samples_per_second: float
    first_step_seconds: float
    rows_read: float  # per row trained on, by all workers


def data_document(train: str, access: str, rows: int, cache: Path) -> dict[str, Any]:
    """Return `spec.data`: a cache of a twentieth of the data, a window of half of it."""
    return {
        "train": train,
        "access": access,
        "windowRows": rows // 40,
        "cache": {"directory": str(cache), "maxBytes": rows // 20 * ROW_BYTES if access == "Streamed" else "100Gi"},
    }


def read_epoch(train: str, rows: int) -> list[tuple[float, float]]:
    """Read an epoch as each worker does; return rows read per row of its share, and rows of its share per second."""
    found = []
    sizes = even_split(BATCH, WORKERS)
    for worker in range(WORKERS):
        start = sum(sizes[:worker])
        with tempfile.TemporaryDirectory(prefix="heterps-stream-", dir=CACHE) as folder:
            document = COLUMNS | data_document(train, "Streamed", rows, Path(folder))
            dataset = open_dataset(DataSpec.from_manifest(document, LOSS, folder), "train")
            order = dataset.training_order(BATCH, SEED)
            began, share = time.monotonic(), 0
            for step in range(order.batches.per_epoch):
                size = order.batches.size(step)
                stop = start + sizes[worker]
                own = (start, stop) if size == BATCH else (start * size // BATCH, stop * size // BATCH)
                dataset.read_ahead(order, step, *own, order.batches.per_epoch)
                dataset.batch(order.rows(step, *own), dataset.schema.features)
                share += own[1] - own[0]
            found.append((dataset.rows_read / share, share / (time.monotonic() - began)))
            dataset.forget()
    return found


def train(variant: str, setting: Setting, rows: int, steps: int, cache: Path) -> Outcome:
    """Run a job up to `steps`."""
    with tempfile.TemporaryDirectory(prefix="heterps-stream-", dir=CACHE) as name, _environment(setting.variables):
        folder = Path(name)
        data = data_document(setting.train, setting.access, rows, cache)
        job = click_job("data-streams", variant, data, {"globalBatchSize": BATCH, "steps": steps, "seed": SEED})
        documents = [pool_document("cpu", "CPU", "cpu", WORKERS, "0.04"), job]
        (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in documents))
        (folder / "work").mkdir()
        configuration = load_manifest(folder / "job.yaml").run_configuration(folder / "work", [HERE.parent])
        last_layer = job["spec"]["model"]["arguments"]["layers"] - 1
        with Processes(configuration, folder) as processes:
            began = time.monotonic()
            processes.train([stage_document(0, "cpu", 0, last_layer, WORKERS, WORKERS)], 1, "cpu")
            first, _ = _await(processes, 1)
            start, before = _await(processes, SKIP)
            end, after = _await(processes, steps - 1)
            read = sum(m.get("totals", {}).get("rows-read", 0.0) for m in after["members"])
            return Outcome(
                (after["samples"] - before["samples"]) / (end - start), first - began, read / after["samples"]
            )


def _await(processes: Processes, step: int) -> tuple[float, dict[str, Any]]:
    """Return when a commit of `step` or later was seen, and the status then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        status: dict[str, Any] = processes.request("GET", PATH_STATUS)
        if status["error"]:
            raise SystemExit(f"the job failed: {status['error']}")
        if status["committedSteps"] >= step:
            return time.monotonic(), status
        processes.check()
        time.sleep(0.02)
    raise SystemExit(f"no commit of step {step} within {PATIENCE_SECONDS} s")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside the block."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def compare(variant: str, rows: int, rounds: int, steps: int, *, s3: bool) -> dict[str, list[Outcome]]:
    """Run all settings in each round."""
    train_folder = str(_log(rows) / "train")
    settings = {
        "memory": Setting("Cached", train_folder, {}),
        "local": Setting("Streamed", train_folder, {}),
        "small": Setting("Streamed", str(_log(rows // 20) / "train"), {}),
    }
    outcomes: dict[str, list[Outcome]] = {}
    with ExitStack() as stack:
        if s3:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heterps-store-", dir=CACHE)))
            store = stack.enter_context(ObjectStore(folder, STORE))
            shutil.copytree(train_folder, store.bucket("clicks") / "train")
            address = f"s3://clicks/train?endpoint_override={STORE}&scheme=http&region=us-east-1"
            settings["s3"] = Setting("Streamed", address, store.variables)
        cached = CACHE / "data-streams-cached"
        for number in range(rounds):
            for name, setting in settings.items():
                with tempfile.TemporaryDirectory(prefix="heterps-stream-", dir=CACHE) as cold:
                    if name == "memory" and not number:
                        train(variant, setting, rows, SKIP + 1, cached)  # which fills the cache
                    cache = cached if name == "memory" else Path(cold)
                    # The small one has the same cache and window: only its data is smaller.
                    outcomes.setdefault(name, []).append(train(variant, setting, rows, steps, cache))
                print(f"  round {number + 1}, {name}: {outcomes[name][-1]}", file=sys.stderr, flush=True)
        shutil.rmtree(cached, ignore_errors=True)
    return outcomes


def _log(rows: int) -> Path:
    return write_click_log(
        CACHE / f"click-log-{rows}",
        ClickLogSpec(seed=11),
        rows,
        row_group_rows=ROW_GROUP,
        progress=sys.stderr.isatty(),
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return median (least - greatest)."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} - {max(values):,.{digits}f})"


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--model", choices=("deep", "wide"), default="deep")
    parser.add_argument("--without-s3", action="store_true", help="the object store is not built")
    arguments = parser.parse_args()
    rows = arguments.rows
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"{rows:,} rows of {ROW_BYTES} bytes, batches of {BATCH:,}")
    read = read_epoch(str(_log(rows) / "train"), rows)
    print("\n| worker, one epoch | rows read / rows of its share | rows of its share per second, alone |")
    print("|---|---|---|")
    for worker, (ratio, rate) in enumerate(read):
        print(f"| {worker} | {ratio:.3f} | {rate:,.0f} |")
    outcomes = compare(arguments.model, rows, arguments.rounds, arguments.steps, s3=not arguments.without_s3)
    print(
        f"\n| {arguments.model} | samples/s, median (min - max) | / memory, within a round | start to first step, s "
        "| rows read per sample |\n|---|---|---|---|---|"
    )
    for name, rounds in outcomes.items():
        rates = [o.samples_per_second for o in rounds]
        ratios = [a / b.samples_per_second for a, b in zip(rates, outcomes["memory"], strict=True)]
        print(
            f"| {name} | {spread(rates, 0)} | {spread(ratios)} | {spread([o.first_step_seconds for o in rounds], 1)} "
            f"| {spread([o.rows_read for o in rounds])} |"
        )


if __name__ == "__main__":
    main()
