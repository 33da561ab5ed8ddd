"""Speed of a worker's feed: batches read, ids made unique and tensors laid out, by size of the batch and threads.

    python -m benchmarks.feed [--batch 8192 65536] [--threads 1 2] [--servers 4] [--rounds 3]

The feed prepares batches of the click log of `training_speed` for a worker that takes each as soon as it is ready, so
its time per batch is the least that a step of a worker can take, however fast its device is. Nothing else runs. A
worker on a core has one thread, one on a card two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch
from benchmarks._clicks import CACHE, SEED, TRAIN_ROWS, click_job, click_log
from benchmarks._processes import pool_document

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.worker.main import open_data
from heterps_runtime.worker.model import UserModel
from heterps_runtime.worker.steps.feed import Feed
from heterps_runtime.worker.steps.runs import Prepared
from heterps_runtime.worker.steps.source import BatchSource

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
SAMPLES = 1_500_000  # of a round


def configuration(batch: int) -> RunConfig:
    """Return the configuration of a job with batches of this size."""
    data = click_log("deep")
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    job = click_job("feed", "deep", files, {"globalBatchSize": batch, "steps": 1, "seed": SEED})
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.yaml"
        parts = [pool_document("cpu", "CPU", "cpu", 1, "0.04"), job]
        path.write_text("---\n".join(json.dumps(part) + "\n" for part in parts))
        return RunConfig.from_json(load_manifest(path).run_configuration(Path(name), [ROOT]))


def seconds_per_batch(source: BatchSource, model: UserModel, batch: int, threads: int, servers: int) -> float:
    """Return the seconds between two batches of a feed whose batches are taken at once."""
    module = model.stage(0, len(model.layered.layers) - 1, CPU)
    whole, steps = TRAIN_ROWS // batch, max(12, SAMPLES // batch)
    warm = steps // 6

    def prepare(number: int) -> Prepared:
        step = number // whole * (whole + 1) + number % whole  # not the smaller batch at the end of an epoch
        mine = [MicroBatch(0, 0, batch, (0,))]
        return source.prepare(step, step + 1, mine, module, training=True, num_servers=servers)

    ready = threading.Semaphore(0)
    feed = Feed(prepare, 0, steps, ready.release, threads)
    taken, began = 0, 0.0
    while taken < steps:
        ready.acquire()
        while feed.take() is not None:
            feed.prepare_next()
            taken += 1
            if taken == warm:
                began = time.perf_counter()
    ended = time.perf_counter()
    feed.close()
    return (ended - began) / (steps - warm)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| batch | threads | ms per batch, median (min - max) | samples/s |")
    print("|---|---|---|---|")
    for batch in options.batch:
        config = configuration(batch)
        data = open_data(config)
        model = UserModel.build(config, data.train.schema.features)
        source = BatchSource(config, data, model.layered.tables, CPU)
        found: dict[int, list[float]] = {threads: [] for threads in options.threads}
        for _ in range(options.rounds):
            for threads, seconds in found.items():
                seconds.append(seconds_per_batch(source, model, batch, threads, options.servers))
        for threads, seconds in found.items():
            middle = statistics.median(seconds)
            spread = f"{1e3 * middle:.1f} ({1e3 * min(seconds):.1f} - {1e3 * max(seconds):.1f})"
            print(f"| {batch:,} | {threads} | {spread} | {batch / middle:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
