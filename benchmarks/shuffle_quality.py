"""What shuffling in windows costs in quality: held-out AUC and log loss, streamed beside fully shuffled.

    python -m benchmarks.shuffle_quality [--data flights clicks] [--seeds 5]

The training data is put in the order of time on purpose, so that a row group holds rows of one time only:

- flights: the example's job, its flights in the order of month and hour, in row groups of 1,024.
- clicks: a synthetic log whose popular ids change with time, the deep network of `training_speed`, one epoch.

Both are trained with `access: Cached` (all rows are shuffled) and with `access: Streamed`, in windows of a tenth of the
data, from the same seeds: initial values are the same, the order of rows is not. The difference has the standard error
of the pairs.
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
from benchmarks._clicks import build_arguments
from benchmarks._processes import Processes, pool_document, stage_document
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import FINAL_PHASES, PATH_STATUS, JobPhase

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache" / "benchmarks"
FLIGHTS = ROOT / "examples" / "flights"
ROW_GROUP = 1024
FLIGHTS_LAYERS = 10
CLICK_ROWS, HELD_OUT_ROWS = 800_000, 200_000
WINDOWS = 10  # of an epoch
WORKERS = 2
PATIENCE_SECONDS = 600


def flights() -> tuple[list[dict[str, Any]], int, int]:
    """Return the example's pool and job with its data in the order of time, its rows, and its last layer."""
    folder = CACHE / "flights-by-time"
    table = pq.read_table(FLIGHTS / "data" / "train").sort_by([("month", "ascending"), ("hour", "ascending")])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part-0.parquet", row_group_size=ROW_GROUP)
    manifest = load_manifest(FLIGHTS / "job.yaml")
    job = manifest.job
    job["spec"]["data"] |= {"train": str(folder), "evaluation": str(FLIGHTS / "data" / "test")}
    job["spec"]["pools"] = [{"name": "cpu"}]
    return [pool_document("cpu", "CPU", "cpu", WORKERS, "0.04"), job], table.num_rows, FLIGHTS_LAYERS - 1


def clicks() -> tuple[list[dict[str, Any]], int, int]:
    """Return a pool and a job on a log that changes with time, its rows, and its last layer."""
    log = ClickLogSpec(seed=11, drift=1.0)
    data = write_click_log(
        CACHE / "click-log-drift", log, CLICK_ROWS, HELD_OUT_ROWS, row_group_rows=ROW_GROUP, progress=False
    )
    arguments = build_arguments("deep")
    job = {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": "shuffle-quality"},
        "spec": {
            "image": "ghcr.io/heterps/runtime:0.1.0",
            "model": {
                "entrypoint": "examples.paper.clicks.ctrdnn:build",
                "arguments": arguments,
                "loss": "torch.nn.functional:binary_cross_entropy_with_logits",
                "embeddingInit": {"distribution": "normal", "mean": "0", "std": "0.05"},
            },
            "data": {
                "format": "parquet",
                "train": str(data / "train"),
                "evaluation": str(data / "held-out"),
                "label": LABEL,
                "dense": list(NUMBERS),
                "sparse": list(FIELDS),
            },
            "training": {
                "globalBatchSize": 4096,
                "epochs": 1,
                "consistency": "hybrid",
                "maxStaleness": 4,
                "optimizer": {
                    "dense": {"name": "adagrad", "learningRate": "0.003"},
                    "sparse": {"name": "adagrad", "learningRate": "0.05"},
                },
            },
            "checkpoint": {"everySteps": 1_000_000, "keep": 1},
            "pools": [{"name": "cpu"}],
        },
    }
    return [pool_document("cpu", "CPU", "cpu", WORKERS, "0.04"), job], CLICK_ROWS, arguments["layers"] - 1


JOBS: dict[str, Callable[[], tuple[list[dict[str, Any]], int, int]]] = {"flights": flights, "clicks": clicks}


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
    print("| data | rows, windows | AUC, all shuffled | AUC, streamed | difference | log loss, difference |")
    print("|---|---|---|---|---|---|")
    for name in arguments.data:
        documents, rows, last_layer = JOBS[name]()
        found: dict[str, list[dict[str, Any]]] = {"Cached": [], "Streamed": []}
        for seed in range(1, arguments.seeds + 1):
            for access, results in found.items():
                results.append(evaluate(documents, last_layer, access, rows // WINDOWS, seed))
                print(f"  {name}, seed {seed}, {access}: {results[-1]}", file=sys.stderr, flush=True)
        auc = {access: [r["auc"] for r in results] for access, results in found.items()}
        print(
            f"| {name} | {rows:,}, {WINDOWS} | {statistics.mean(auc['Cached']):.4f} "
            f"| {statistics.mean(auc['Streamed']):.4f} | {difference(found, 'auc')} | {difference(found, 'logLoss')} |",
            flush=True,
        )


def difference(found: dict[str, list[dict[str, Any]]], figure: str) -> str:
    """Return the mean of streamed minus shuffled, and its standard error."""
    pairs = zip(found["Streamed"], found["Cached"], strict=True)
    gaps = [streamed[figure] - shuffled[figure] for streamed, shuffled in pairs]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.mean(gaps):+.5f} ± {error:.5f}"


if __name__ == "__main__":
    main()
