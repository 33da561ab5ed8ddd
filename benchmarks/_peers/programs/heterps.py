"""HeterPS: a coordinator, a parameter server and workers of one thread, which read parquet through the job's cache.

Settings beside the common ones: `variant`, `log`, `consistency`, and `wire`, the precision of rows in messages.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks._heterps import Moment, on_cores
from benchmarks._peers.programs.protocol import Task, emit, started_as


def main(task: Task) -> None:
    """Train."""
    seen: list[Moment] = []

    def tell(moment: Moment) -> None:
        seen.append(moment)
        if len(seen) == 1:
            emit("begin", time=moment.time)
        else:
            emit("end", time=moment.time, samples=moment.samples - seen[0].samples)

    work = task.folder / "job"
    work.mkdir()
    with on_cores(
        task.variant,
        Path(task.log),
        work,
        task.steps,
        task.batchSize,
        task.workers,
        task.precision,
        task.wire,
        task.consistency,
    ) as job:
        outcome = job.measure(task.steps, tell)
    emit("quality", logLoss=outcome["logLoss"], auc=outcome["auc"])


if __name__ == "__main__":
    main(started_as()[0])
