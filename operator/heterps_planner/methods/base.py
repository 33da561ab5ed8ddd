"""The interface of all methods, and what they share.

A method is a function `(Task) -> Found`. `planning.plan` wraps it: measures the time, adds the lower bound of the exact
method and the shadow prices, and explains a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from heterps_planner.cost_model import Segments
from heterps_planner.errors import DeadlineError
from heterps_planner.points import Choice
from heterps_planner.problem import Problem
from heterps_planner.sweep import SweepResult, minimise

__all__ = ["Found", "Method", "Task", "best_homogeneous", "check_deadline"]


@dataclass(frozen=True)
class Task:
    """What a method gets."""

    problem: Problem
    segments: Segments
    seed: int = 0  # methods that draw random numbers draw them from this
    should_stop: Callable[[], bool] = field(default=lambda: False)  # true once the deadline has passed
    progress: Callable[[float], None] = field(default=lambda fraction: None)  # told the fraction of work done


@dataclass(frozen=True)
class Found:
    """What a method found."""

    choice: Choice | None  # None: nothing
    lower_rate: float | None = None  # a lower bound on the cost rate of all plans, if the method proves one
    segments: Segments | None = None  # the restricted problem, if the method looks at a part of the schedules only


Method = Callable[[Task], Found]


def best_homogeneous(task: Task, device_type: str) -> Found:
    """Find the cheapest plan that runs all layers on one pool of a device type."""
    best: SweepResult | None = None
    num_layers = task.segments.num_layers
    candidates = [t for t, pool in enumerate(task.problem.pools) if pool.device_type == device_type]
    union = np.zeros((num_layers, num_layers, task.segments.num_pools), dtype=bool)
    for i, pool in enumerate(candidates):
        union[0, -1, pool] = True
        allowed = np.zeros_like(union)
        allowed[0, -1, pool] = True
        result = minimise(task.segments.restricted(allowed), should_stop=task.should_stop)
        if result.choice is not None and (best is None or result.rate < best.rate):
            best = result
        task.progress((i + 1) / len(candidates))
    return Found(None if best is None else best.choice, segments=task.segments.restricted(union))


def check_deadline(task: Task, result: SweepResult) -> None:
    """Refuse to call a problem infeasible only because the time was up.

    Raises:
        DeadlineError: the search was stopped before it found anything.
    """
    if result.choice is None and not result.finished and not math.isfinite(result.rate):
        raise DeadlineError("the deadline passed before any plan that meets the floor was found; allow more time")
