"""What each of several parameter servers holds and does of a deep model's dense parameters, and how long steps take.

    python -m benchmarks.dense_servers [--servers 1 2 4] [--rounds 3] [--steps 200] [--also DIRECTORY]

The model has a matrix of 1,024 x 1,024, one of 429 x 1,024, and small parameters: 18 MB with Adam's state. Batches are
small, so that a step is mostly the exchange of these parameters between two workers and the servers. The processes are
real. On a machine with fewer cores than processes, more servers cannot make steps much shorter: then look at the
processor time of the busiest server, which bounds the steps where each server has a core of its own.

`--also` measures another version of the runtime in turns with this one: a directory with its `heterps_runtime`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._clicks import CACHE, SEED, click_job, click_log
from benchmarks._heterps import HeterPS
from benchmarks._processes import pool_document, stage_document

from heterps_runtime.checkpoint.format import TensorFile
from heterps_runtime.storage import Storage

WORKERS = 2
BATCH = 64  # of a worker
MODEL = {"layers": 7, "hidden": 1024, "embedding_dim": 16}


@contextmanager
def runtime_of(directory: Path | None) -> Iterator[None]:
    """Let processes that are started meanwhile run the runtime of a directory; None: this one."""
    before = os.environ.get("PYTHONPATH")
    if directory is not None:
        os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{before or ''}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def run(data: Path, servers: int, steps: int) -> dict[str, Any]:
    """Train on a number of servers; return bytes of dense parameters and processor time by server, and times."""
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    adam = {"name": "adam", "learningRate": "0.001"}
    training = {
        "globalBatchSize": BATCH * WORKERS,
        "steps": steps,
        "seed": SEED,
        "optimizer": {"dense": adam, "sparse": {"name": "adagrad", "learningRate": "0.05"}},
    }
    job = click_job("dense-servers", "deep", files, training)
    job["spec"]["model"]["arguments"] = MODEL
    pool = pool_document("cpu", "CPU", "cpu", WORKERS, "0.04")
    stage = stage_document(0, "cpu", 0, MODEL["layers"] - 1, WORKERS, WORKERS)
    with tempfile.TemporaryDirectory(prefix="heterps-dense-") as folder:
        with HeterPS([pool, job], Path(folder), [stage], servers) as trained:
            measured = trained.measure(steps)
        held = bytes_of_servers(Path(folder, "work", "checkpoints"), servers)
    seconds = measured["millisecondsPerStep"]
    waits = [seconds[name].get("wait-dense", 0.0) for name in sorted(seconds) if name.startswith("worker")]
    processor = [measured["cpuMillisecondsPerStep"][f"ps-{index}"] for index in range(servers)]
    return {
        "bytes": held,
        "step": 1000 * BATCH * WORKERS / measured["samplesPerSecond"],
        "wait": statistics.mean(waits),
        "busiest": max(processor),
        "all": sum(processor),
    }


def bytes_of_servers(checkpoints: Path, servers: int) -> list[int]:
    """Return the bytes of dense parameters and their state that each server has saved."""
    storage, held = Storage.open(checkpoints), [0] * servers
    for path in checkpoints.glob("step-*/dense-ps-*.safetensors"):
        with TensorFile(storage, path.relative_to(checkpoints).as_posix()) as file:
            held[int(path.stem.rpartition("-")[2])] += sum(spec.num_bytes for spec in file.specs.values())
    return held


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--also", type=Path, help="a directory with another version of heterps_runtime")
    options = parser.parse_args()
    data = click_log("deep")
    versions = {"this": None} | ({"other": options.also.resolve()} if options.also else {})
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for servers in options.servers:
            for version, directory in versions.items():
                with runtime_of(directory):
                    outcome = run(data, servers, options.steps)
                found.setdefault((servers, version), []).append(outcome)
                text = f"{servers} servers, {version}: {outcome['step']:.1f} ms a step"
                print(f"  round {number + 1}, {text}", file=sys.stderr, flush=True)
    print(
        "| servers | runtime | MB on each server | ms a step, median (min - max) "
        "| of it, a worker waits for parameters | processor ms of the busiest server (min - max) | of all servers |"
    )
    print("|---|---|---|---|---|---|---|")
    for (servers, version), outcomes in found.items():
        held = ", ".join(f"{size / 1e6:.1f}" for size in outcomes[0]["bytes"])
        columns = {name: [outcome[name] for outcome in outcomes] for name in ("step", "wait", "busiest", "all")}
        step, wait, busiest, total = map(statistics.median, columns.values())
        steps, most = columns["step"], columns["busiest"]
        print(
            f"| {servers} | {version} | {held} | {step:.1f} ({min(steps):.1f} - {max(steps):.1f}) | {wait:.1f} "
            f"| {busiest:.1f} ({min(most):.1f} - {max(most):.1f}) | {total:.1f} |"
        )


if __name__ == "__main__":
    main()
