"""Training speed on one CUDA card: HeterPS's plans on cores, on the card and on both, beside plain PyTorch on the card.

    python -m benchmarks.accelerator [--model deep|wide] [--batch 8192 65536] [--precision fp32 tf32 bf16 fp16]
                                     [--rounds 3] [--steps 60] [--servers 4] [--cores 8] [--output table|json]

All train the same network on the same batches in the same order (`benchmarks.peers` has the details):

- `card`: one HeterPS worker on the card, with parameter servers on cores.
- `cores`: HeterPS workers on cores, one core each, with the same servers.
- `cores + card`: lookups on as many workers on cores, all other layers on the card.
- `PyTorch`: one process on the card, with the tables in the card's memory. No other entrant is bound to that memory.

The card's utilisation is what nvidia-smi reports while the steps are timed: the share of time in which a kernel runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks._clicks import CACHE, NETWORKS, SEED, click_job, click_log
from benchmarks._heterps import HeterPS, Outcome
from benchmarks._peers.data import write_task
from benchmarks._peers.entrants import SINGLE
from benchmarks._peers.running import run_entrant
from benchmarks._processes import pool_document, stage_document

_LOOKUP_LAYERS = 4  # three lookups and the concatenation


class Entrant(NamedTuple):
    """A way of training."""

    name: str  # card | cores | cores + card | PyTorch
    batch: int
    precision: str


@contextmanager
def utilisation() -> Iterator[list[float]]:
    """Sample the card's utilisation, 0 to 1, ten times a second."""
    readings: list[float] = []
    if shutil.which("nvidia-smi") is None:
        yield readings
        return
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
    process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = process.stdout

    def read() -> None:
        for line in lines:
            if line.strip().isdigit():
                readings.append(int(line) / 100)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield readings
    finally:
        process.terminate()
        process.wait()
        reader.join()


def documents(entrant: Entrant, variant: str, data: Path, steps: int, cores: int) -> list[dict[str, Any]]:
    """Return the pools and the job."""
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training = {
        "globalBatchSize": entrant.batch,
        "steps": steps,
        "precision": entrant.precision,
        "seed": SEED,
        "microBatches": 2 if entrant.name == "cores + card" else 1,
    }
    job = click_job("accelerator", variant, files, training)
    job["spec"]["pools"] = [{"name": "cpu"}, {"name": "card"}]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [
        pool_document("cpu", "CPU", "cpu", 2 * cores, "0.04"),
        pool_document("card", "GPU", "nvidia.com/gpu", 1, "2.42", device),
        job,
    ]


def stages_of(entrant: Entrant, variant: str, cores: int) -> list[dict[str, Any]]:
    """Return the stages of the plan."""
    last = NETWORKS[variant].layers - 1
    if entrant.name == "card":
        return [stage_document(0, "card", 0, last, 1, 1)]
    if entrant.name == "cores":
        return [stage_document(0, "cpu", 0, last, cores, cores)]
    return [
        stage_document(0, "cpu", 0, _LOOKUP_LAYERS - 1, cores, cores),
        stage_document(1, "card", _LOOKUP_LAYERS, last, 1, 1),
    ]


def measure(entrant: Entrant, variant: str, data: Path, steps: int, servers: int, cores: int, folder: Path) -> Outcome:
    """Train with an entrant."""
    with utilisation() as readings:
        if entrant.name == "PyTorch":
            device = "cuda" if torch.cuda.is_available() else "cpu"
            task = write_task(variant, steps, entrant.batch, 1) | {"precision": entrant.precision}
            outcome = run_entrant(replace(SINGLE, settings={**SINGLE.settings, "device": device}), task, folder)
        else:
            found = documents(entrant, variant, data, steps, cores)
            with HeterPS(found, folder, stages_of(entrant, variant, cores), servers) as job:
                outcome = job.measure(steps)
    busy = [r for r in readings if r > 0]
    return outcome | {"utilisation": statistics.mean(busy) if busy else 0.0}


def print_table(outcomes: dict[Entrant, list[Outcome]]) -> None:
    """Print throughput, the ratio to PyTorch round by round, and the parts of the card's worker."""
    print("\n| batch | precision | plan | samples/s, median (min - max) | PyTorch = 1 | card busy | log loss |")
    print("|---|---|---|---|---|---|---|")
    for entrant, rounds in outcomes.items():
        rates = [o["samplesPerSecond"] for o in rounds]
        beside = outcomes.get(entrant._replace(name="PyTorch"), [])
        ratios = [a / b["samplesPerSecond"] for a, b in zip(rates, beside, strict=False)]
        ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
        busy = statistics.median(o["utilisation"] for o in rounds)
        loss = statistics.median(o["logLoss"] for o in rounds)
        print(
            f"| {entrant.batch:,} | {entrant.precision} | {entrant.name} | {statistics.median(rates):,.0f} "
            f"({min(rates):,.0f} - {max(rates):,.0f}) | {ratio} | {busy:.0%} | {loss:.4f} |"
        )
    for entrant, rounds in outcomes.items():
        for member, activities in rounds[-1].get("millisecondsPerStep", {}).items():
            parts = sorted(((ms, name) for name, ms in activities.items() if ms >= 0.05), reverse=True)
            if member in ("ps-0", "worker-0-0", "worker-1-0"):
                text = ", ".join(f"{name} {ms:.1f}" for ms, name in parts)
                print(f"{entrant.batch:,} {entrant.precision} {entrant.name}: {member}, ms per step: {text}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("deep", "wide"), default="deep")
    parser.add_argument("--batch", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), nargs="+", default=["fp32"])
    parser.add_argument("--plans", nargs="+", default=["card", "cores", "cores + card", "PyTorch"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--cores", type=int, default=8, help="workers on cores")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    data = click_log(options.model)
    outcomes: dict[Entrant, list[Outcome]] = {
        Entrant(name, batch, precision): []
        for batch in options.batch
        for precision in options.precision
        for name in options.plans
    }
    for number in range(options.rounds):
        for entrant, found in outcomes.items():
            with tempfile.TemporaryDirectory(prefix="heterps-accelerator-") as folder:
                found.append(
                    measure(entrant, options.model, data, options.steps, options.servers, options.cores, Path(folder))
                )
            rate = found[-1]["samplesPerSecond"]
            print(f"  round {number + 1}, {' '.join(map(str, entrant))}: {rate:,.0f} samples/s", file=sys.stderr)
    if options.output == "json":
        print(json.dumps([{**e._asdict(), "rounds": rounds} for e, rounds in outcomes.items()], indent=1))
    else:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
        print(f"{options.model}, {options.servers} servers, {options.cores} workers on cores, {name}")
        print_table(outcomes)


if __name__ == "__main__":
    main()
