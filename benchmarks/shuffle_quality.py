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
import sys
from typing import Any

import pyarrow.parquet as pq
from benchmarks._quality import CACHE, CLICK_ROWS, FLIGHTS, Job, clicks, difference, evaluate, flights, mean
from examples.paper.prepare import ClickLogSpec

ROW_GROUPS = {"flights": (1024, 256), "clicks": (4096, 1024)}  # rows
WINDOWS = 10  # of an epoch


def job_of(name: str, row_group: int) -> tuple[Job, int]:
    """Return a job on data that changes with time, in the order of time, and the rows of the data."""
    if name == "clicks":
        log = ClickLogSpec(seed=11, drift=1.0)
        return clicks(CACHE / f"click-log-drift-{row_group}", log, row_group), CLICK_ROWS
    folder = CACHE / f"flights-by-time-{row_group}"
    table = pq.read_table(FLIGHTS / "data" / "train").sort_by([("month", "ascending"), ("hour", "ascending")])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part-0.parquet", row_group_size=row_group)
    return flights(folder), table.num_rows


def main() -> None:
    """Train pairs, and print their differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=tuple(ROW_GROUPS), default=list(ROW_GROUPS))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    print("| data | rows | blocks per window | AUC, all shuffled | AUC, streamed | difference | log loss, difference |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.data:
        shuffled: list[dict[str, Any]] = []
        for row_group in ROW_GROUPS[name]:
            job, rows = job_of(name, row_group)
            window = {"access": "Streamed", "windowRows": rows // WINDOWS}
            streamed = []
            for seed in range(1, arguments.seeds + 1):
                if len(shuffled) < seed:
                    shuffled.append(evaluate(job, training={"seed": seed}))
                streamed.append(evaluate(job, data=window, training={"seed": seed}))
                pair = f"{shuffled[seed - 1]['auc']:.5f} {streamed[-1]['auc']:.5f}"
                print(f"  {name}, row groups of {row_group}, seed {seed}: {pair}", file=sys.stderr, flush=True)
            print(
                f"| {name} | {rows:,} | {rows // WINDOWS // row_group} | {mean(shuffled):.4f} | {mean(streamed):.4f} "
                f"| {difference(streamed, shuffled, 'auc')} | {difference(streamed, shuffled, 'logLoss')} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
