"""Training speed of HeterPS on this machine's cores, and the parts of its time. `benchmarks.peers` has other systems.

    python -m benchmarks.training_speed [--model deep wide fields] [--rounds 5] [--steps 70] [--precision fp32 bf16]
                                        [--consistency hybrid sync] [--warmup 20 0] [--wire full fp16]
                                        [--output table|json]

Two workers of one thread and one parameter server: the real processes, reading parquet through the job's own cache.
Throughput is measured by the coordinator's commits. Start-up and the first steps do not count.

With several values of an option all of its variants are measured in turns: rounds are interleaved and ratios are taken
within a round, since a shared machine changes its speed within minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._clicks import NETWORKS, click_log
from benchmarks._heterps import Outcome, on_cores
from benchmarks._ratios import ratios, spread

WORKERS = 2
BATCH = 4096  # per worker
WARMUP = 20  # the default of training.stalenessWarmupSteps


class Variant(NamedTuple):
    """A way of training."""

    precision: str
    consistency: str
    warmup: int  # training.stalenessWarmupSteps
    wire: str

    def __str__(self) -> str:
        """Its name in tables."""
        name = f"{self.consistency}, {self.precision}"
        if self.warmup != WARMUP and self.consistency != "sync":
            name += f", exact for {self.warmup} steps"
        return name + (f", {self.wire} in messages" if self.wire != "full" else "")


def compare(model: str, steps: int, rounds: int, variants: list[Variant]) -> dict[Variant, list[Outcome]]:
    """Train in every way, `rounds` times; return outcomes by variant, one per round."""
    data = click_log(model)
    outcomes: dict[Variant, list[Outcome]] = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant, found in outcomes.items():
            with (
                tempfile.TemporaryDirectory(prefix="heterps-speed-") as folder,
                on_cores(model, data, Path(folder), steps, BATCH * WORKERS, WORKERS, **variant._asdict()) as job,
            ):
                found.append(job.measure(steps))
        figures = ", ".join(f"{variant}: {o[-1]['samplesPerSecond']:,.0f}" for variant, o in outcomes.items())
        print(f"  {model}, round {number + 1}: {figures} samples/s", file=sys.stderr, flush=True)
    return outcomes


def print_table(model: str, outcomes: dict[Variant, list[Outcome]]) -> None:
    """Print the comparison with the first variant, and the parts of each one's time."""
    print(
        f"\n| {model} | samples/s, median (min - max) | the first / this, median (min - max) "
        "| samples per processor second | held-out log loss |"
    )
    print("|---|---|---|---|---|")
    [first, *_] = outcomes.values()
    for variant, rounds in outcomes.items():
        rates = [o["samplesPerSecond"] for o in rounds]
        beside = "1" if rounds is first else spread(ratios([o["samplesPerSecond"] for o in first], rates), ".2f")
        per_cpu = statistics.median(o["samplesPerCpuSecond"] for o in rounds)
        loss = statistics.median(o["logLoss"] for o in rounds)
        print(f"| {variant} | {spread(rates, ',.0f')} | {beside} | {per_cpu:,.0f} | {loss:.4f} |")
    for variant, rounds in outcomes.items():
        print_parts(str(variant), rounds)


def print_parts(name: str, outcomes: list[Outcome]) -> None:
    """Print the parts of a variant's time."""
    cpu = [o["cpuMillisecondsPerStep"] for o in outcomes]
    medians = {role: statistics.median(c[role] for c in cpu) for role in cpu[0]}
    print(f"{name}, processor time, ms per step: " + ", ".join(f"{role} {ms:.1f}" for role, ms in medians.items()))
    members = sorted({name for o in outcomes for name in o["millisecondsPerStep"]})
    for member in members:
        rounds = [o["millisecondsPerStep"].get(member, {}) for o in outcomes]
        names = {name for activities in rounds for name in activities}
        medians = {name: statistics.median(a.get(name, 0.0) for a in rounds) for name in names}
        parts = sorted(((ms, name) for name, ms in medians.items() if ms >= 0.05), reverse=True)
        print(f"{member}, ms per step: " + ", ".join(f"{name} {ms:.1f}" for ms, name in parts))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(NETWORKS), nargs="+", default=["deep"], help="default: deep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), nargs="+", default=["fp32"], help="default: fp32"
    )
    parser.add_argument("--consistency", choices=("hybrid", "sync"), nargs="+", default=["hybrid"], help="of rows")
    parser.add_argument(
        "--warmup", type=int, nargs="+", default=[WARMUP], help="first steps of hybrid that read no stale rows"
    )
    parser.add_argument(
        "--wire", choices=("full", "fp16", "bf16"), nargs="+", default=["full"], help="rows in messages"
    )
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    chosen = itertools.product(options.precision, options.consistency, options.warmup, options.wire)
    variants = [Variant(*one) for one in chosen if one[1] == "hybrid" or one[2] == options.warmup[0]]
    report: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "steps": options.steps, "batchPerWorker": BATCH}
    for model in options.model:
        outcomes = compare(model, options.steps, options.rounds, variants)
        report[model] = {str(variant): rounds for variant, rounds in outcomes.items()}
        if options.output == "table":
            print_table(model, outcomes)
    if options.output == "json":
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
