"""Method `brute-force`: try every schedule, provision each exactly. The reference for small problems.

It shares the cost model with the exact method, but neither the dynamic programme nor the bounds, and so serves as its
test oracle. [HeterPS], table 2, uses a brute force with provisioning at the floor only (erratum 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from heterps_planner.errors import DeadlineError, TooLargeError
from heterps_planner.methods.base import Found, Task
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.plans.assignments import schedules_from_assignments, stages_of
from heterps_planner.plans.plan import choice_of
from heterps_planner.search.path import Stage
from heterps_planner.search.provisioning import provision

__all__ = ["MAX_SCHEDULES", "Enumeration", "enumerate_schedules", "find"]

MAX_SCHEDULES = 2**24  # some minutes
_CHUNK = 16_384  # schedules per batch


class Enumeration:
    """Result of the enumeration."""

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
        schedules = schedules_from_assignments(segments, assignment)
        rows = np.flatnonzero(np.isfinite(schedules.seq).all(axis=1))
        if len(rows):
            found = provision(schedules.select(rows), segments, result.rate)
            best = int(found.rate.argmin())
            if found.rate[best] < result.rate:
                result.rate = float(found.rate[best])
                result.pods = found.pods[best]
                result.stages = stages_of(assignment[rows[best]])
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
