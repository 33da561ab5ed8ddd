"""Shared by several methods."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heterps_planner.errors import DeadlineError
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.plans.task import Found, Method, Task
from heterps_planner.search.servers import minimise
from heterps_planner.search.sweep import SearchOptions, SweepResult

__all__ = ["Found", "Method", "Task", "answer", "best_first_and_rest", "best_homogeneous", "check_deadline"]


def best_homogeneous(task: Task, device_type: str) -> Found:
    """Find the cheapest plan that runs all layers on one pool of a device type."""
    segments = task.segments
    allowed = np.zeros(segments.seq_LLT.shape, dtype=bool)
    for t, pool in enumerate(task.problem.pools):
        allowed[0, -1, t] = pool.device_type == device_type
    return _best_of(task, allowed)


def check_deadline(task: Task, result: SweepResult) -> None:
    """Raise instead of reporting infeasibility if the deadline ended the search.

    Raises:
        DeadlineError: the search was stopped before it found anything.
    """
    if result.choice is None and not result.finished and not math.isfinite(result.rate):
        raise DeadlineError("the deadline passed before any plan that meets the floor was found; allow more time")


def best_first_and_rest(task: Task, first_type: str, rest_type: str) -> Found:
    """Find the cheapest plan with the first layer on a pool of one device type and the rest on a pool of another."""
    segments = task.segments
    allowed = np.zeros(segments.seq_LLT.shape, dtype=bool)
    for t, pool in enumerate(task.problem.pools):
        allowed[0, 0, t] = pool.device_type == first_type
        if segments.num_layers > 1:
            allowed[1, -1, t] = pool.device_type == rest_type
    return _best_of(task, allowed)


def _best_of(task: Task, allowed: NDArray[np.bool_]) -> Found:
    """Find the cheapest plan whose stages are among the allowed segments, shape (L, L, T)."""
    segments = task.segments.restricted(allowed)
    result = minimise(segments, SearchOptions(should_stop=task.should_stop))
    check_deadline(task, result)
    task.progress(1.0)
    return Found(result.choice, segments=segments)


def answer(evaluator: Evaluator, *, stopped: bool) -> Found:
    """Return the best plan that a search has evaluated.

    Args:
        evaluator: the search's evaluator.
        stopped: whether the deadline ended the search.

    Raises:
        DeadlineError: the search was stopped before it found any plan.
    """
    if stopped and evaluator.best is None:
        raise DeadlineError(
            f"the deadline passed after {evaluator.num_evaluated} schedules, none of them feasible; allow more time"
        )
    return evaluator.found()
