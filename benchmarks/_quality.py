"""Jobs that are trained from several seeds to compare what settings cost in quality: held-out AUC and log loss."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._clicks import click_job
from benchmarks._processes import Processes, pool_document, stage_document
from examples.paper.prepare import ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import FINAL_PHASES, PATH_STATUS, JobPhase

__all__ = ["CACHE", "CLICK_ROWS", "FLIGHTS", "Job", "clicks", "difference", "evaluate", "flights", "mean"]

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "benchmarks"
FLIGHTS = ROOT / "examples" / "flights"
CLICK_ROWS, HELD_OUT_ROWS = 800_000, 200_000
_FLIGHTS_LAYERS = 10
_WORKERS = 2
_PATIENCE_SECONDS = 600

Metrics = dict[str, Any]


class Job(NamedTuple):
    """A job and its pool."""

    documents: list[dict[str, Any]]  # pool, job
    last_layer: int


def flights(train: Path) -> Job:
    """Return the example's job on training data of one's own."""
    job = load_manifest(FLIGHTS / "job.yaml").job
    job["spec"]["data"] |= {"train": str(train), "evaluation": str(FLIGHTS / "data" / "test")}
    job["spec"]["pools"] = [{"name": "cpu"}]
    return Job([pool_document("cpu", "CPU", "cpu", _WORKERS, "0.04"), job], _FLIGHTS_LAYERS - 1)


def clicks(folder: Path, log: ClickLogSpec, row_group: int | None = None) -> Job:
    """Return a job that trains the deep network of `training_speed` for one epoch of a synthetic log."""
    rows = {} if row_group is None else {"row_group_rows": row_group}
    data = write_click_log(folder, log, CLICK_ROWS, HELD_OUT_ROWS, progress=False, **rows)
    splits = {"train": str(data / "train"), "evaluation": str(data / "held-out")}
    job = click_job("quality", "deep", splits, {"globalBatchSize": 4096, "epochs": 1})
    last_layer = job["spec"]["model"]["arguments"]["layers"] - 1
    return Job([pool_document("cpu", "CPU", "cpu", _WORKERS, "0.04"), job], last_layer)


def evaluate(job: Job, *, data: Mapping[str, Any] | None = None, training: Mapping[str, Any]) -> Metrics:
    """Train once; return the metrics of the held-out data.

    Args:
        job: what to train.
        data: fields of `spec.data` to change.
        training: fields of `spec.training` to change.
    """
    pool, document = json.loads(json.dumps(job.documents))
    document["spec"]["training"] |= training
    document["spec"]["data"] |= data or {}
    document["spec"]["data"].setdefault("cache", {})["directory"] = str(CACHE / "quality-cache")
    with tempfile.TemporaryDirectory(prefix="heterps-quality-", dir=CACHE) as name:
        folder = Path(name)
        (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in (pool, document)))
        (folder / "work").mkdir()
        paths = [ROOT, FLIGHTS]
        with Processes(load_manifest(folder / "job.yaml").run_configuration(folder / "work", paths), folder) as run:
            run.train([stage_document(0, "cpu", 0, job.last_layer, _WORKERS, _WORKERS)], 1, "cpu")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while time.monotonic() < deadline:
                status = run.request("GET", PATH_STATUS)
                if status["phase"] == JobPhase.SUCCEEDED:
                    return dict(status["evaluation"])
                if status["phase"] in FINAL_PHASES:
                    raise SystemExit(f"the job ended as {status['phase']}: {status['error']}")
                run.check()
                time.sleep(0.2)
    raise SystemExit("the job does not end")


def mean(results: list[Metrics]) -> float:
    """Return the mean AUC."""
    return float(statistics.mean(result["auc"] for result in results))


def difference(changed: list[Metrics], plain: list[Metrics], figure: str) -> str:
    """Return the mean of changed minus plain, and its standard error, of pairs from the same seeds."""
    gaps = [a[figure] - b[figure] for a, b in zip(changed, plain, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.mean(gaps):+.5f} ± {error:.5f}"
