"""What the exchange of dense gradients costs on a CPU pool: by parameter servers, and by all-reduce.

    python -m benchmarks.dense_exchange [--batches 64 1024] [--workers 2] [--rounds 3] [--steps 120]

The model has a matrix of 1,024 x 1,024, one of 429 x 1,024, and small parameters, 6 MB in float32, with Adam. Both
exchanges train it in turns, with real processes, one parameter server, and one thread for each worker. With the
smaller batch a step is mostly the exchange. The last two columns compare with the servers of the same round. A machine
with fewer cores than processes makes steps about as long as their processor time; the network is its loopback.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._clicks import CACHE, SEED, click_job, click_log
from benchmarks._heterps import HeterPS
from benchmarks._processes import pool_document, stage_document

from heterps_runtime.contract import DenseExchange

MODEL = {"layers": 7, "hidden": 1024, "embedding_dim": 16}


def run(data: Path, exchange: DenseExchange, batch: int, workers: int, steps: int) -> dict[str, float]:
    """Train with an exchange; return milliseconds per step by the clock, and of processors by role."""
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training: dict[str, Any] = {
        "globalBatchSize": batch * workers,
        "steps": steps,
        "seed": SEED,
        "optimizer": {
            "dense": {"name": "adam", "learningRate": "0.001"},
            "sparse": {"name": "adagrad", "learningRate": "0.05"},
        },
    }
    job = click_job("dense-exchange", "deep", files, training)
    job["spec"]["model"]["arguments"] = MODEL
    pool = pool_document("cpu", "CPU", "cpu", workers, "0.04")
    stage = stage_document(0, "cpu", 0, MODEL["layers"] - 1, workers, workers) | {"denseExchange": exchange}
    with (
        tempfile.TemporaryDirectory(prefix="heterps-exchange-") as folder,
        HeterPS([pool, job], Path(folder), [stage]) as trained,
    ):
        measured = trained.measure(steps)
    used: dict[str, float] = measured["cpuMillisecondsPerStep"]
    servers = sum(spent for name, spent in used.items() if name.startswith("ps"))
    at_work = sum(spent for name, spent in used.items() if name.startswith("worker"))
    step = 1000 * batch * workers / measured["samplesPerSecond"]
    return {"step": step, "workers": at_work, "servers": servers, "all": sum(used.values())}


def spread(values: Sequence[float], digits: int) -> str:
    """Return median, least and largest value."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} - {most:.{digits}f})"


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1024], help="samples of a worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    data = click_log("deep")
    found: dict[tuple[int, DenseExchange], list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for batch in options.batches:
            for exchange in DenseExchange:
                outcome = run(data, exchange, batch, options.workers, options.steps)
                found.setdefault((batch, exchange), []).append(outcome)
                text = f"{batch} samples a worker, {exchange}: {outcome['step']:.1f} ms a step"
                print(f"  round {number + 1}, {text}", file=sys.stderr, flush=True)
    print(
        "| samples of a worker | exchange | ms a step | processor ms of workers | of the server | of all processes "
        "| throughput, ratio | processor time, ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (batch, exchange), outcomes in found.items():
        base = found[batch, DenseExchange.PARAMETER_SERVER]
        columns = [spread([o[name] for o in outcomes], 1) for name in ("step", "workers", "servers", "all")]
        for name, inverse in (("step", True), ("all", False)):
            ratios = [o[name] / b[name] for o, b in zip(outcomes, base, strict=True)]
            columns.append(spread([1 / ratio if inverse else ratio for ratio in ratios], 2))
        print(f"| {batch:,} | `{exchange}` | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
