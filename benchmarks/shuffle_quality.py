"""What shuffling in windows costs in quality: held-out AUC and log loss, streamed beside fully shuffled.

    python -m benchmarks.shuffle_quality [--data flights clicks] [--seeds 5]

The training data is put in the order of time on purpose, so that a row group holds rows of one time only:

- flights: the example's job, its flights in the order of month and hour.
- clicks: a synthetic log whose popular ids change with time, the deep network of `training_speed`, one epoch.

Both are trained with `access: Cached` (all rows are shuffled) and with `access: Streamed`, in windows of a tenth of the
data and with row groups of several sizes, from the same seeds: initial values are the same, the order of rows is not.
The difference has the standard error of the pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from benchmarks._clicks import click_job
from benchmarks._processes import Processes, pool_document, stage_document
from examples.paper.prepare import ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import FINAL_PHASES, PATH_STATUS, JobPhase

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache" / "benchmarks"
FLIGHTS = ROOT / "examples" / "flights"
ROW_GROUPS = {"flights": (1024, 256), "clicks": (4096, 1024)}  # rows
FLIGHTS_LAYERS = 10
CLICK_ROWS, HELD_OUT_ROWS = 800_000, 200_000
WINDOWS = 10  # of an epoch
WORKERS = 2
PATIENCE_SECONDS = 600


def flights(row_group: int) -> tuple[list[dict[str, Any]], int, int]:
    """Return the example's pool and job with its data in the order of time, its rows, and its last layer."""
    folder = CACHE / f"flights-by-time-{row_group}"
    table = pq.read_table(FLIGHTS / "data" / "train").sort_by([("month", "ascending"), ("hour", "ascending")])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part-0.parquet", row_group_size=row_group)
    manifest = load_manifest(FLIGHTS / "job.yaml")
    job = manifest.job
    job["spec"]["data"] |= {"train": str(folder), "evaluation": str(FLIGHTS / "data" / "test")}
    job["spec"]["pools"] = [{"name": "cpu"}]
    return [pool_document("cpu", "CPU", "cpu", WORKERS, "0.04"), job], table.num_rows, FLIGHTS_LAYERS - 1


def clicks(row_group: int) -> tuple[list[dict[str, Any]], int, int]:
    """Return a pool and a job on a log that changes with time, its rows, and its last layer."""
    log = ClickLogSpec(seed=11, drift=1.0)
    data = write_click_log(
        CACHE / f"click-log-drift-{row_group}", log, CLICK_ROWS, HELD_OUT_ROWS, row_group_rows=row_group, progress=False
    )
    splits = {"train": str(data / "train"), "evaluation": str(data / "held-out")}
    job = click_job("shuffle-quality", "deep", splits, {"globalBatchSize": 4096, "epochs": 1})
    last_layer = job["spec"]["model"]["arguments"]["layers"] - 1
    return [pool_document("cpu", "CPU", "cpu", WORKERS, "0.04"), job], CLICK_ROWS, last_layer


JOBS: dict[str, Callable[[int], tuple[list[dict[str, Any]], int, int]]] = {"flights": flights, "clicks": clicks}


def evaluate(documents: list[dict[str, Any]], last_layer: int, access: str, window: int, seed: int) -> dict[str, Any]:
    """Train once; return the metrics of the held-out data."""
    pool, job = json.loads(json.dumps(documents))
    job["spec"]["training"]["seed"] = seed
    with tempfile.TemporaryDirectory(prefix="heterps-shuffle-", dir=CACHE) as name:
        folder = Path(name)
        job["spec"]["data"] |= {"access": access, "windowRows": window}
        job["spec"]["data"].setdefault("cache", {})["directory"] = str(CACHE / "shuffle-quality-cache")
        (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in (pool, job)))
        (folder / "work").mkdir()
        paths = [ROOT, FLIGHTS]
        with Processes(load_manifest(folder / "job.yaml").run_configuration(folder / "work", paths), folder) as run:
            run.train([stage_document(0, "cpu", 0, last_layer, WORKERS, WORKERS)], 1, "cpu")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                status = run.request("GET", PATH_STATUS)
                if status["phase"] == JobPhase.SUCCEEDED:
                    return dict(status["evaluation"])
                if status["phase"] in FINAL_PHASES:
                    raise SystemExit(f"the job ended as {status['phase']}: {status['error']}")
                run.check()
                time.sleep(0.2)
    raise SystemExit("the job does not end")


def main() -> None:
    """Train pairs, and print their differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=tuple(JOBS), default=list(JOBS))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    print("| data | rows | blocks per window | AUC, all shuffled | AUC, streamed | difference | log loss, difference |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.data:
        shuffled: list[dict[str, Any]] = []
        for row_group in ROW_GROUPS[name]:
            documents, rows, last_layer = JOBS[name](row_group)
            streamed = []
            for seed in range(1, arguments.seeds + 1):
                if len(shuffled) < seed:
                    shuffled.append(evaluate(documents, last_layer, "Cached", rows, seed))
                streamed.append(evaluate(documents, last_layer, "Streamed", rows // WINDOWS, seed))
                pair = f"{shuffled[seed - 1]['auc']:.5f} {streamed[-1]['auc']:.5f}"
                print(f"  {name}, row groups of {row_group}, seed {seed}: {pair}", file=sys.stderr, flush=True)
            print(
                f"| {name} | {rows:,} | {rows // WINDOWS // row_group} | {mean(shuffled):.4f} | {mean(streamed):.4f} "
                f"| {difference(streamed, shuffled, 'auc')} | {difference(streamed, shuffled, 'logLoss')} |",
                flush=True,
            )


def mean(results: list[dict[str, Any]]) -> float:
    """Return the mean AUC."""
    return float(statistics.mean(result["auc"] for result in results))


def difference(streamed: list[dict[str, Any]], shuffled: list[dict[str, Any]], figure: str) -> str:
    """Return the mean of streamed minus shuffled, and its standard error."""
    gaps = [a[figure] - b[figure] for a, b in zip(streamed, shuffled, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.mean(gaps):+.5f} ± {error:.5f}"


if __name__ == "__main__":
    main()
