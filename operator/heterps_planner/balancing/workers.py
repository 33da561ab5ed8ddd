"""A stage's workers, as input of the division of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_planner.errors import ProblemError

__all__ = ["NodeMetrics", "Worker", "finish_time", "limits"]


@dataclass(frozen=True)
class NodeMetrics:
    """What BalanceNet's nodes manager measures of a worker; None: not measured."""

    operations_per_second: float | None = None  # > 0
    memory_bytes: float | None = None  # that it uses, > 0
    latency_seconds: float | None = None  # of the network, > 0


@dataclass(frozen=True)
class Worker:
    """Speed and limits of one worker: a step with b samples takes it o + s * b seconds."""

    overhead_seconds: float  # o: per step, whatever the batch
    seconds_per_sample: float  # s
    least: int = 0  # samples
    most: int | None = None  # samples that fit its memory; None: no limit
    metrics: NodeMetrics = NodeMetrics()  # for the policy `bno`


def finish_time(workers: Sequence[Worker], batches: Sequence[int]) -> float:
    """Return the duration of a step in seconds: that of the slowest worker."""
    return max(w.overhead_seconds + w.seconds_per_sample * b for w, b in zip(workers, batches, strict=True))


def limits(workers: Sequence[Worker], total: int, quantum: int) -> tuple[list[int], list[int]]:
    """Return the least and most quanta of each worker.

    Args:
        workers: speeds and limits.
        total: B, samples.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: `total` cannot be divided among the workers, or a worker's speed is invalid.
    """
    if not workers:
        raise ProblemError("balancing.workers", "must not be empty")
    if quantum < 1:
        raise ProblemError("balancing.quantum", f"must be >= 1, is {quantum}")
    if total < 0 or total % quantum:
        raise ProblemError("balancing.globalBatchSize", f"must be a multiple >= 0 of the quantum {quantum}, is {total}")
    least, most = [], []
    for i, worker in enumerate(workers):
        for name, value in (
            ("overheadSeconds", worker.overhead_seconds),
            ("secondsPerSample", worker.seconds_per_sample),
        ):
            if not math.isfinite(value) or value < 0:
                raise ProblemError(f"balancing.workers[{i}].{name}", f"must be finite and >= 0, is {value!r}")
        cap = total if worker.most is None else min(worker.most, total)
        low, high = -(-max(worker.least, 0) // quantum), cap // quantum
        if low > high:
            raise ProblemError(
                f"balancing.workers[{i}]",
                f"no multiple of {quantum} lies between its least {worker.least} and most {cap} samples",
            )
        least.append(low)
        most.append(high)
    if sum(most) * quantum < total:
        raise ProblemError(
            "balancing.globalBatchSize",
            f"{total} samples do not fit: the workers hold at most {sum(most) * quantum}; lower it or add workers",
        )
    if sum(least) * quantum > total:
        raise ProblemError(
            "balancing.globalBatchSize",
            f"{total} samples are too few: the workers need at least {sum(least) * quantum}; raise it",
        )
    return least, most
