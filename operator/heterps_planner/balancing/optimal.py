"""The division whose slowest worker finishes first: min over b of max_i (o_i + s_i b_i) subject to sum b_i = B."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heterps_planner.balancing.workers import Worker, limits

__all__ = ["divide_equal", "divide_optimal"]

FloatArray = npt.NDArray[np.float64]


def divide_optimal(workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide `total` samples so that the slowest worker finishes as early as possible.

    Water-filling with fractional quanta gives the finish time T; each worker gets the whole quanta that end by T, and
    the few that remain go one by one to the worker that finishes first with one more. This is exact: quanta are
    assigned in order of their end times, which respects each worker's own order, until B is reached.

    Args:
        workers: speeds and limits.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: the limits do not allow it.
    """
    least, most = limits(workers, total, quantum)
    wanted = total // quantum
    low_N = np.array(least, dtype=np.float64)  # noqa: N806
    high_N = np.array(most, dtype=np.float64)  # noqa: N806
    start_N = np.array([w.overhead_seconds for w in workers])  # noqa: N806
    pace_N = np.array([w.seconds_per_sample for w in workers]) * quantum  # noqa: N806
    time = _water_level(start_N, pace_N, low_N, high_N, wanted)
    counts = np.floor(_filled(time, start_N, pace_N, low_N, high_N)).astype(np.int64).tolist()
    return [count * quantum for count in _adjusted(counts, wanted, start_N, pace_N, least, most)]


def divide_equal(workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide `total` samples as evenly as the limits allow; the first workers get the remainder.

    Args:
        workers: limits; their speeds are not used.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: the limits do not allow it.
    """
    same = [Worker(0.0, 1.0, w.least, w.most) for w in workers]
    return divide_optimal(same, total, quantum)


def _filled(
    time: float,
    start_N: FloatArray,  # noqa: N803
    pace_N: FloatArray,  # noqa: N803
    low_N: FloatArray,  # noqa: N803
    high_N: FloatArray,  # noqa: N803
) -> FloatArray:
    """Return the quanta that each worker completes by a time, including fractions, within its limits."""
    spare_N = time - start_N  # noqa: N806
    # Compare first: the quotient may overflow.
    full_N = np.where(pace_N > 0, spare_N >= high_N * pace_N, spare_N >= 0)  # noqa: N806
    safe_N = np.where(full_N | (pace_N == 0) | (spare_N <= 0), 1.0, pace_N)  # noqa: N806
    part_N = np.where(pace_N > 0, np.minimum(np.maximum(spare_N, 0.0) / safe_N, high_N), 0.0)  # noqa: N806
    return np.where(full_N, high_N, np.maximum(part_N, low_N))


def _water_level(
    start_N: FloatArray,  # noqa: N803
    pace_N: FloatArray,  # noqa: N803
    low_N: FloatArray,  # noqa: N803
    high_N: FloatArray,  # noqa: N803
    wanted: int,
) -> float:
    """Return the earliest time by which `wanted` quanta are completed, including fractions."""
    # Between two neighbouring times of this list, the sum of `_filled` is linear.
    bends = np.unique(np.concatenate([start_N + pace_N * low_N, start_N + pace_N * high_N]))
    first, last = 0, len(bends) - 1  # at `last` every worker is full
    while first < last:
        middle = (first + last) // 2
        if _filled(bends[middle], start_N, pace_N, low_N, high_N).sum() < wanted:
            first = middle + 1
        else:
            last = middle
    if first == 0:
        return float(bends[0])
    before, after = float(bends[first - 1]), float(bends[first])
    filled_N = _filled(before, start_N, pace_N, low_N, high_N)  # noqa: N806
    # Workers that take no time fill up at once when their overhead ends, at `after`.
    filling_N = (pace_N > 0) & (start_N + pace_N * low_N <= before) & (start_N + pace_N * high_N >= after)  # noqa: N806
    if not filling_N.any():
        return after
    with np.errstate(over="ignore"):
        rate = float((1 / pace_N[filling_N]).sum())
    return min(after, before + (wanted - float(filled_N.sum())) / rate)


def _adjusted(
    counts: list[int],
    wanted: int,
    start_N: FloatArray,  # noqa: N803
    pace_N: FloatArray,  # noqa: N803
    least: list[int],
    most: list[int],
) -> list[int]:
    """Add missing quanta where they end earliest; remove surplus quanta where they end latest."""
    start, pace = start_N.tolist(), pace_N.tolist()
    missing = wanted - sum(counts)
    if missing == 0:
        return counts
    sign, bound = (1, most) if missing > 0 else (-1, least)
    left = abs(missing)

    def end(i: int) -> float:
        return float(start[i] + pace[i] * (counts[i] + (sign > 0)))

    queue = [(sign * end(i), i) for i in range(len(counts)) if counts[i] != bound[i]]
    heapq.heapify(queue)
    while left:
        _, i = heapq.heappop(queue)
        moved = min(left, abs(bound[i] - counts[i])) if pace[i] == 0 else 1
        counts[i] += sign * moved
        left -= moved
        if counts[i] != bound[i]:
            heapq.heappush(queue, (sign * end(i), i))
    return counts
