"""Policies that divide a global batch, by name. All of them conserve it and keep the workers' limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heterps_planner.balancing.balancenet import algorithm_1
from heterps_planner.balancing.optimal import divide_equal, divide_optimal
from heterps_planner.balancing.workers import Worker, limits
from heterps_planner.errors import ProblemError

__all__ = ["POLICIES", "divide", "divide_bno", "divide_in_proportion", "divide_random"]

POLICIES = ("optimal", "bno", "equal", "random")


def divide(
    policy: str, workers: Sequence[Worker], total: int, quantum: int = 1, *, seed: int | Sequence[int] = 0
) -> list[int]:
    """Divide by a named policy.

    Args:
        policy: one of `POLICIES`.
        workers: speeds and limits.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.
        seed: seed of the policy `random`.

    Raises:
        ProblemError: the policy is unknown, or the limits allow no division.
    """
    if policy == "optimal":
        return divide_optimal(workers, total, quantum)
    if policy == "bno":
        return divide_bno(workers, total, quantum)
    if policy == "equal":
        return divide_equal(workers, total, quantum)
    if policy == "random":
        return divide_random(workers, total, quantum, seed=seed)
    raise ProblemError("balancing.policy", f"must be one of {', '.join(POLICIES)}, is {policy!r}")


def divide_bno(workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide in proportion to the batch sizes of BalanceNet's Algorithm 1.

    Those add up to B only by accident (`heterps_planner.balancing.balancenet`), and a training job must keep its B.
    OPS, memory used and latency are the measured ones (`Worker.metrics`). One that is not measured for all workers is
    left out: memory and latency then count as the same for all, and OPS is the speed at an even share of the batch.

    Args:
        workers: metrics, limits, and speeds.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: the limits do not allow it.
    """
    limits(workers, total, quantum)
    if total == 0:
        return [0] * len(workers)
    operations = _measured([w.metrics.operations_per_second for w in workers]) or _relative_speeds(workers, total)
    alike = [1.0] * len(workers)
    memory = _measured([w.metrics.memory_bytes for w in workers]) or alike
    latency = _measured([w.metrics.latency_seconds for w in workers]) or alike
    return divide_in_proportion(algorithm_1(operations, memory, latency, total), workers, total, quantum)


def _measured(values: Sequence[float | None]) -> list[float]:
    """The values, or none of them unless all are measured."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _relative_speeds(workers: Sequence[Worker], total: int) -> list[float]:
    """Speeds at an even share of the batch, relative to the fastest."""
    share = total / len(workers)
    times = [w.overhead_seconds + w.seconds_per_sample * share for w in workers]
    # Relative, so that short times do not overflow. If a worker takes no time at all, the speed of the others is 0.
    fastest = min(times)
    return [1.0 if t == fastest else fastest / t for t in times]


def divide_random(
    workers: Sequence[Worker], total: int, quantum: int = 1, *, seed: int | Sequence[int] = 0
) -> list[int]:
    """Divide at random: without limits, all divisions are equally likely, up to rounding.

    Args:
        workers: limits; their speeds are not used.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.
        seed: the same seed gives the same division.

    Raises:
        ProblemError: the limits do not allow it.
    """
    weights = np.random.default_rng(seed).standard_exponential(len(workers))
    return divide_in_proportion(weights.tolist(), workers, total, quantum)


def divide_in_proportion(
    weights: Sequence[float], workers: Sequence[Worker], total: int, quantum: int = 1
) -> list[int]:
    """Divide in proportion to weights, within limits, by largest remainders.

    Args:
        weights: > 0, one for each worker.
        workers: limits; their speeds are not used.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: a weight is not positive, or the limits do not allow it.
    """
    least, most = limits(workers, total, quantum)
    weight_N = np.array(weights, dtype=np.float64)  # noqa: N806
    if weight_N.shape != (len(workers),) or not (np.isfinite(weight_N) & (weight_N > 0)).all():
        raise ProblemError("balancing.weights", f"must be one number > 0 for each worker, are {list(weights)}")
    wanted = total // quantum
    share_N = _clipped_shares(weight_N, np.array(least, np.float64), np.array(most, np.float64), wanted)  # noqa: N806
    counts = np.floor(share_N + 1e-9).astype(np.int64).tolist()
    # Largest remainder first, ties to the first worker; a share at its limit is whole and has no remainder.
    order = np.argsort(-(share_N - counts), kind="stable").tolist()
    left = wanted - sum(counts)
    while left:
        step = 1 if left > 0 else -1
        for i in order if step > 0 else reversed(order):
            if left and least[i] <= counts[i] + step <= most[i]:
                counts[i] += step
                left -= step
    return [count * quantum for count in counts]


def _clipped_shares(
    weight_N: npt.NDArray[np.float64],  # noqa: N803
    low_N: npt.NDArray[np.float64],  # noqa: N803
    high_N: npt.NDArray[np.float64],  # noqa: N803
    wanted: int,
) -> npt.NDArray[np.float64]:
    """The x_i = clip(scale * weight_i, low_i, high_i) that add up to `wanted`."""
    bends = np.unique(np.concatenate([low_N / weight_N, high_N / weight_N]))
    first, last = 0, len(bends) - 1
    while first < last:
        middle = (first + last) // 2
        if np.clip(bends[middle] * weight_N, low_N, high_N).sum() < wanted:
            first = middle + 1
        else:
            last = middle
    before = float(bends[max(first - 1, 0)])
    share_N = np.clip(before * weight_N, low_N, high_N)  # noqa: N806
    free_N = (low_N / weight_N <= before) & (high_N / weight_N > before)  # noqa: N806
    missing = wanted - float(share_N.sum())
    if missing > 0 and free_N.any():
        share_N = share_N + np.where(free_N, weight_N, 0.0) * (missing / float(weight_N[free_N].sum()))  # noqa: N806
    return np.minimum(share_N, high_N)
