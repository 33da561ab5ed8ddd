"""Another plan for a running job: how long training stands still, in place and by a restart from a checkpoint.

    python -m benchmarks.stages [--rounds 5] [--change stages servers] [--rows 0 2000000] [--model deep] [--way ...]

A network trains on a click log in two stages, with one worker each and one server. Then it gets a plan of three
stages, or of two servers, which takes half of the rows and dense parameters to the new one. In place, the plan is
submitted and the new process is started, as the controller does (docs/decisions/0064-stages-in-place.md and
0066-servers-in-place.md). By a restart, the job saves a checkpoint and ends, and new processes go on with the new plan.
The pause lasts from the last commit of the old plan to the first of the new one, as seen by looking at the coordinator
every few milliseconds. So it has a step in it, of about 0.1 s in the deep network.

With `--rows`, the job begins with a model whose tables have so many rows more, of ids that no sample has, by
`spec.model.initFrom`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._clicks import CACHE, NETWORKS, click_job, click_log
from benchmarks._heterps import HeterPS
from benchmarks._processes import Processes, pool_document, stage_document
from benchmarks._ratios import spread
from examples.paper.clicks.parts import NUM_IDS

from heterps_runtime.checkpoint import CheckpointManifest, Origin, Storage, TableRecord, row_arrays
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.checkpoint.manifest import new_folder, write_manifest
from heterps_runtime.checkpoint.ownership import take_over
from heterps_runtime.contract import PATH_PLAN, PATH_SHUTDOWN, PATH_STATUS, PATH_STOP
from heterps_runtime.store.initial import ID_BITS

BATCH, WARM_UP = 2048, 60  # steps before the change
STAGES = 2  # before it
ENDLESS = 1_000_000
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 120.0
TABLES = ("user.table.weight", "item.table.weight", "context.table.weight")


def stages(model: str, number: int) -> list[dict[str, Any]]:
    """Return stages of about as many layers, with one worker each."""
    last_layer, first, found = NETWORKS[model].layers - 1, 0, []
    for index in range(number):
        last = (index + 1) * last_layer // number
        found.append(stage_document(index, "cpu", first, last, 1, 1))
        first = last + 1
    return found


@dataclass(frozen=True)
class Change:
    """The stages and servers that follow two stages with one server, and the role and place of the new process."""

    title: str
    stages: int
    servers: int
    new: tuple[str, ...]


CHANGES = {
    "stages": Change("2 stages become 3", 3, 1, ("worker", "--stage", "2", "--index", "0")),
    "servers": Change("1 server becomes 2", STAGES, 2, ("ps", "--index", "1")),
}


@dataclass(frozen=True)
class Trained:
    """What trains: one of NETWORKS, its click log, and how many rows more its tables have."""

    model: str
    data: Path
    rows: int


def with_rows(folder: Path, model: str, rows: int) -> Path:
    """Write a checkpoint of another job, whose tables have many rows together; return its folder."""
    dim, storage, name = NETWORKS[model].dim, Storage.open(folder / "first"), new_folder(1, 1)
    ids = np.arange(NUM_IDS - rows // len(TABLES), NUM_IDS, dtype=np.int64)
    keys = np.concatenate([ids + (table << ID_BITS) for table in range(len(TABLES))])
    arrays = row_arrays({dim: (keys, np.zeros((len(keys), dim), np.float32), {})})
    entry = write_tensors(storage, name, "rows-0.safetensors", arrays, origin=Origin(1, 1), role="rows", index=0)
    manifest = CheckpointManifest(
        step=1, epoch=0, seed=0, global_batch_size=1, num_rows=1, samples=1, fingerprint={}, plan={},
        tables=tuple(TableRecord(i, table, NUM_IDS, dim, {}) for i, table in enumerate(TABLES)), files=(entry,), term=1,
        lineage=1, folder=name,
    )  # fmt: skip
    write_manifest(storage, manifest, take_over(storage, "first", time.time()))
    return folder / "first"


def documents(trained: Trained, folder: Path) -> list[dict[str, Any]]:
    """Return the pool and the job."""
    files = {
        "train": str(trained.data / "train"),
        "evaluation": str(trained.data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training = {"globalBatchSize": BATCH, "steps": ENDLESS, "microBatches": 4, "precision": "fp32", "seed": 17}
    job = click_job("stages", trained.model, files, training)
    if trained.rows:
        job["spec"]["model"]["initFrom"] = {"path": str(with_rows(folder, trained.model, trained.rows))}
    return [pool_document("cpu", "CPU", "cpu", 4, "0.04"), job]


def next_commit(job: Processes, after: int, number: int, servers: int = 1) -> tuple[float, float, int]:
    """Wait for a commit under a plan with numbers of stages and servers.

    Args:
        job: that trains.
        after: steps that were committed before.
        number: of stages.
        servers: of the plan; all of them are ready.

    Returns:
        When the last commit before it was seen, when it was, and the committed steps.
    """
    last, deadline = time.monotonic(), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        status = job.request("GET", PATH_STATUS)
        now, committed = time.monotonic(), status["committedSteps"]
        if committed > after:
            ready = sum(m.get("role") == "ps" and m["state"] == "ready" for m in status["members"])
            if len(status["stages"]) == number and ready == servers and status["running"]:
                return last, now, committed
            last, after = now, committed
        job.check()
        time.sleep(LOOK_SECONDS)
    raise SystemExit("the job does not get on")


def warm_up(job: Processes) -> int:
    """Wait until training is steady; return the committed steps."""
    committed = 0
    while committed < WARM_UP:
        _, _, committed = next_commit(job, committed, STAGES)
    return committed


def in_place(change: Change, trained: Trained, folder: Path) -> float:
    """Return the pause of a change in place, in seconds."""
    with HeterPS(documents(trained, folder), folder, stages(trained.model, STAGES)) as job:
        committed = warm_up(job)
        servers = {"pool": "cpu", "replicas": change.servers, "units": change.servers}
        plan = {"stages": stages(trained.model, change.stages), "parameterServer": servers, "revision": 2}
        job.request("PUT", PATH_PLAN, plan)
        job.start(*change.new, "--pool", "cpu")
        last, first, _ = next_commit(job, committed, change.stages, change.servers)
    return first - last


def by_restart(change: Change, trained: Trained, folder: Path) -> float:
    """Return the pause of a change by a restart, in seconds."""
    with HeterPS(documents(trained, folder), folder, stages(trained.model, STAGES)) as job:
        committed = warm_up(job)
        job.request("POST", PATH_STOP)
        stopped, deadline = time.monotonic(), time.monotonic() + PATIENCE_SECONDS
        while (status := job.request("GET", PATH_STATUS))["phase"] != "Stopped":
            if status["committedSteps"] > committed:
                stopped, committed = time.monotonic(), status["committedSteps"]
            if time.monotonic() > deadline:
                raise SystemExit("the job does not stop")
            time.sleep(LOOK_SECONDS)
        job.request("POST", PATH_SHUTDOWN)
        for process in job.started:
            process.wait(timeout=PATIENCE_SECONDS)
    again = folder / "again"
    again.mkdir()
    with Processes(json.loads((folder / "config.json").read_text()), again) as job:
        job.train(stages(trained.model, change.stages), change.servers, "cpu")
        _, first, _ = next_commit(job, committed, change.stages, change.servers)
    return first - stopped


WAYS = {"in place": in_place, "by a restart": by_restart}


def main() -> None:
    """Measure both ways in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--change", nargs="+", choices=CHANGES, default=list(CHANGES), help="default: all")
    parser.add_argument("--rows", nargs="+", type=int, default=[0], help="of the first model; default: 0")
    parser.add_argument("--model", choices=("deep", "wide"), default="deep", help="default: deep")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    options = parser.parse_args()
    data = click_log(options.model)
    found: dict[tuple[str, int, str], list[float]] = {
        (change, rows, way): [] for change in options.change for rows in options.rows for way in options.way
    }
    for number in range(options.rounds):
        for (name, rows, way), pauses in found.items():
            with tempfile.TemporaryDirectory(prefix="heterps-stages-") as folder:
                pauses.append(WAYS[way](CHANGES[name], Trained(options.model, data, rows), Path(folder)))
            text = f"  round {number + 1}: {CHANGES[name].title} {way}, {rows:,} rows more: {pauses[-1]:.2f} s"
            print(text, file=sys.stderr, flush=True)
    print("| change | rows more | way | seconds without a step, median (min - max) |")
    print("|---|---|---|---|")
    for (name, rows, way), pauses in found.items():
        print(f"| {CHANGES[name].title} | {rows:,} | {way} | {spread(pauses, '.2f')} |")


if __name__ == "__main__":
    main()
