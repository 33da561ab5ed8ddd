"""What products in bfloat16 cost in quality: held-out AUC and log loss, bf16 beside fp32 from the same seeds.

    python -m benchmarks.precision_quality [--data flights clicks] [--seeds 5]

- flights: the example's job.
- clicks: a synthetic log, the deep network of `training_speed`, one epoch.

Initial values and the order of rows are the same within a pair. The difference has the standard error of the pairs;
two runs of one precision differ too, since a job in `hybrid` reads rows as they come: `--precision fp32` shows by how
much.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks._quality import CACHE, FLIGHTS, clicks, difference, evaluate, flights, mean
from examples.paper.prepare import ClickLogSpec


def main() -> None:
    """Train pairs, and print their differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=("flights", "clicks"), default=["flights", "clicks"])
    parser.add_argument("--precision", choices=("bf16", "fp16", "tf32", "fp32"), default="bf16", help="beside fp32")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    precision = arguments.precision
    print(f"| data | AUC, fp32 | AUC, {precision} | difference | log loss, difference |")
    print("|---|---|---|---|---|")
    for name in arguments.data:
        if name == "flights":
            job = flights(FLIGHTS / "data" / "train")
        else:
            job = clicks(CACHE / "click-log-quality", ClickLogSpec(seed=11))
        plain: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for seed in range(1, arguments.seeds + 1):
            plain.append(evaluate(job, training={"seed": seed, "precision": "fp32"}))
            changed.append(evaluate(job, training={"seed": seed, "precision": precision}))
            pair = f"{plain[-1]['auc']:.5f} {changed[-1]['auc']:.5f}"
            print(f"  {name}, seed {seed}: {pair}", file=sys.stderr, flush=True)
        print(
            f"| {name} | {mean(plain):.4f} | {mean(changed):.4f} "
            f"| {difference(changed, plain, 'auc')} | {difference(changed, plain, 'logLoss')} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
