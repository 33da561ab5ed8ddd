"""Method `brute-force`: try every schedule, provision each exactly. The yardstick for small problems.

It shares the cost model with the exact method, but neither the dynamic programme nor the bounds, and so serves as its
test oracle. [HeterPS], table 2, uses a brute force with provisioning at the floor only (erratum 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heterps_planner.cost_model import FloatArray, Segments
from heterps_planner.errors import DeadlineError, TooLargeError
from heterps_planner.methods.base import Found, Task
from heterps_planner.path import Stage
from heterps_planner.plan import choice_of
from heterps_planner.provisioning import Schedules, provision

__all__ = ["MAX_SCHEDULES", "Enumeration", "enumerate_schedules", "find"]

MAX_SCHEDULES = 2**24  # some minutes
_CHUNK = 16_384  # schedules at once


class Enumeration:
    """Result of trying all schedules."""

    def __init__(self) -> None:
        self.rate = math.inf
        self.stages: list[Stage] = []
        self.pods: FloatArray = np.zeros(0)
        self.finished = True
        self.num_schedules = 0


def enumerate_schedules(
    segments: Segments,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Enumeration:
    """Find the cheapest of all T^L schedules.

    Raises:
        TooLargeError: there are more than MAX_SCHEDULES.
    """
    num_layers, num_pools = segments.num_layers, segments.num_pools
    total = num_pools**num_layers
    if total > MAX_SCHEDULES:
        raise TooLargeError(
            f"brute-force would have to try {num_pools}^{num_layers} schedules, more than {MAX_SCHEDULES}; "
            "use the method 'optimal', which finds the same plan"
        )
    result = Enumeration()
    weights = num_pools ** np.arange(num_layers - 1, -1, -1, dtype=np.int64)
    for start in range(0, total, _CHUNK):
        codes = np.arange(start, min(start + _CHUNK, total), dtype=np.int64)
        assignment = (codes[:, None] // weights) % num_pools  # (n, L)
        schedules, first, last = _stages(segments, assignment)
        possible = np.isfinite(schedules.seq).all(axis=1)
        rows = np.flatnonzero(possible)
        if len(rows):
            part = Schedules(*(getattr(schedules, name)[rows] for name in Schedules.__dataclass_fields__))
            found = provision(part, segments, result.rate)
            best = int(found.rate.argmin())
            if found.rate[best] < result.rate:
                result.rate = float(found.rate[best])
                result.pods = found.pods[best]
                row = rows[best]
                count = int((schedules.least[row, :num_layers] > 0).sum())
                result.stages = [
                    (int(first[row, i]), int(last[row, i]), int(schedules.pool[row, i])) for i in range(count)
                ]
        result.num_schedules += len(codes)
        progress(result.num_schedules / total)
        if should_stop() and result.num_schedules < total:
            result.finished = False
            break
    return result


def find(task: Task) -> Found:
    """Find the cheapest plan by trying all schedules.

    Raises:
        TooLargeError: there are more than MAX_SCHEDULES.
        DeadlineError: the deadline passed before any plan was found.
    """
    result = enumerate_schedules(task.segments, task.should_stop, task.progress)
    if not result.stages:
        if not result.finished:
            raise DeadlineError(
                f"the deadline passed after {result.num_schedules} schedules, none of them feasible; allow more time"
            )
        return Found(None)
    pods = [int(n) for n in result.pods]
    choice = choice_of(task.segments, result.stages, pods[: len(result.stages)], pods[-1])
    return Found(choice, result.rate if result.finished else None)


def _stages(segments: Segments, assignment: NDArray[np.int64]) -> tuple[Schedules, NDArray[np.intp], NDArray[np.intp]]:
    """Turn layer -> pool assignments into padded stages, the parameter servers being the last one."""
    n, num_layers = assignment.shape
    begins = np.ones((n, num_layers), dtype=bool)
    begins[:, 1:] = assignment[:, 1:] != assignment[:, :-1]
    number = begins.cumsum(axis=1) - 1  # stage of each layer
    rows = np.broadcast_to(np.arange(n)[:, None], (n, num_layers))
    first = np.zeros((n, num_layers), dtype=np.intp)
    last = np.zeros((n, num_layers), dtype=np.intp)
    pool = np.zeros((n, num_layers), dtype=np.intp)
    exists = np.arange(num_layers) <= number[:, -1:]
    columns = np.broadcast_to(np.arange(num_layers), (n, num_layers))
    first[rows[begins], number[begins]] = columns[begins]
    last[rows, number] = columns  # the last layer of a stage is written last
    pool[rows, number] = assignment
    server_least = 1.0 if segments.server_par else float(segments.server_pods)
    server_most = math.inf if segments.server_par else float(segments.server_pods)

    def column(values: FloatArray, server: float) -> FloatArray:
        return np.hstack([np.where(exists, values, 0.0), np.full((n, 1), server)])

    schedules = Schedules(
        seq=column(segments.seq_LLT[first, last, pool], 0.0),
        par=column(segments.par_LLT[first, last, pool], segments.server_par),
        send_seq=column(segments.send_seq_LT[last, pool], 0.0),
        send_par=column(segments.send_par_LT[last, pool], 0.0),
        pool=np.hstack([pool, np.full((n, 1), segments.server_pool, dtype=np.intp)]),
        least=column(np.ones((n, num_layers)), server_least),
        most=np.hstack([np.where(exists, np.inf, 0.0), np.full((n, 1), server_most)]),
    )
    return schedules, first, last
