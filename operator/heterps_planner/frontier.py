"""The whole trade-off between throughput and cost, for what-if questions and plots.

Each point is the plan with the least price per hour that reaches its throughput. The true frontier is a staircase with
perhaps hundreds of steps, so at most `max_points` throughputs are examined, evenly in ratio between the floor and the
highest reachable throughput. Every point is exact; steps between the points may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_planner.cost_model import build_segments
from heterps_planner.errors import ProblemError
from heterps_planner.limits import fastest
from heterps_planner.plan import Plan, build_plan
from heterps_planner.points import lowest_throughput
from heterps_planner.problem import Problem
from heterps_planner.sweep import cheapest_at

__all__ = ["MAX_POINTS", "FrontierPoint", "frontier"]

MAX_POINTS = 1_000


@dataclass(frozen=True)
class FrontierPoint:
    """One plan of the frontier."""

    throughput: float  # samples per second
    cost_per_hour: float  # dollars
    cost: float  # dollars for all samples of the problem
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        """The point as a JSON object."""
        return {
            "throughput": self.throughput,
            "costPerHour": self.cost_per_hour,
            "cost": self.cost,
            "plan": self.plan.to_json(),
        }


def frontier(
    problem: Problem,
    max_points: int = 50,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda fraction: None,
) -> list[FrontierPoint]:
    """Return plans from the cheapest per hour to the fastest; both grow along the list.

    Args:
        problem: the problem; its ceiling is not used, its floor is where the frontier begins (0: at one pod per stage).
        max_points: how many throughputs to examine.
        should_stop: when it returns True, the points found so far are returned.
        progress: told the fraction of the work done.

    Returns:
        The points; empty if the floor cannot be reached. `gap` and `lower_bound` of each plan concern its price per
        hour at its throughput: cheaper plans per sample may lie elsewhere on the frontier.

    Raises:
        ProblemError: `max_points` is out of range.
    """
    if not 1 <= max_points <= MAX_POINTS:
        raise ProblemError("frontier.maxPoints", f"must be in 1..{MAX_POINTS}, is {max_points}")
    segments = replace(build_segments(problem), ceiling=math.inf)
    highest, top = fastest(segments, should_stop)
    lowest = lowest_throughput(segments, problem.min_samples_per_second)
    if top is None or highest < lowest * (1 - 1e-9):
        return []
    points: list[FrontierPoint] = []
    reached = 0.0
    targets = np.geomspace(lowest, max(highest, lowest), max_points) if max_points > 1 else np.array([lowest])
    for i, target in enumerate(targets.tolist()):
        if should_stop():
            break
        progress((i + 1) / len(targets))
        if target <= reached:
            continue
        # Rounding must not lose the end of the frontier, which some plan is known to reach.
        result = cheapest_at(segments, min(target, highest), should_stop)
        if result.choice is None:
            continue
        reached = result.choice.throughput
        lower = result.choice.price / reached
        plan = build_plan(
            replace(problem, min_samples_per_second=0.0), segments, result.choice, method="frontier", lower_rate=lower
        )
        point = FrontierPoint(plan.throughput, plan.cost_per_hour, plan.cost, plan)
        if points and point.cost_per_hour <= points[-1].cost_per_hour * (1 + 1e-9):
            points[-1] = point  # as cheap and faster
        else:
            points.append(point)
    return points
