"""The whole trade-off between throughput and cost, for what-if questions and plots.

Each point is the plan with the least price per hour that reaches its throughput. The frontier is a staircase: the next
step begins just beyond the throughput that the cheapest plan for this step reaches. Large clusters have thousands of
steps: half of the requested points show all steps, the others divide the rest of the range evenly (in ratio).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.plan import Plan, build_plan
from heterps_planner.search.limits import fastest
from heterps_planner.search.points import cost_rate, lowest_throughput
from heterps_planner.search.servers import cheapest_at
from heterps_planner.search.sweep import Multipliers

__all__ = ["MAX_POINTS", "Frontier", "FrontierPoint", "frontier", "price_by_pool"]

MAX_POINTS = 10_000
# The next requested throughput exceeds a point's by more than the tolerance of the floor.
_STEP = 1 + 4e-9


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


@dataclass(frozen=True)
class Frontier:
    """Plans from the cheapest per hour to the fastest; price and throughput grow from point to point."""

    points: tuple[FrontierPoint, ...]  # empty if the floor cannot be reached
    complete: bool  # contains every step of the staircase


def price_by_pool(problem: Problem, plan: Plan) -> dict[str, float]:
    """Dollars per hour that a plan pays for each pool, including parameter servers if the problem charges for them."""
    prices = {pool.name: pool.price_per_unit_hour for pool in problem.pools}
    paid = dict.fromkeys(prices, 0.0)
    for stage in plan.stages:
        paid[stage.pool] += stage.units * prices[stage.pool]
    if problem.parameter_server is not None:
        paid[plan.parameter_server.pool] += plan.parameter_server.units * prices[plan.parameter_server.pool]
    return paid


def frontier(
    problem: Problem,
    max_points: int = 1_000,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Frontier:
    """Return the cheapest plan for every throughput.

    Args:
        problem: the problem; its ceiling is not used, the frontier starts at its floor (0: at one pod per stage).
        max_points: steps beyond this number are thinned out, except the first and the last.
        should_stop: when it returns True, the points found so far are returned.
        progress: called with the finished fraction of the range (of its logarithm).

    Returns:
        The points. `gap` and `lower_bound` of each plan concern its price per hour at its throughput: cheaper plans per
        sample may lie elsewhere on the frontier.

    Raises:
        ProblemError: `max_points` is out of range.
    """
    if not 1 <= max_points <= MAX_POINTS:
        raise ProblemError("frontier.maxPoints", f"must be in 1..{MAX_POINTS}, is {max_points}")
    segments = replace(build_segments(problem), ceiling=math.inf)
    highest, top = fastest(segments, should_stop)
    lowest = lowest_throughput(segments, problem.min_samples_per_second)
    if top is None or highest < lowest * (1 - 1e-9):
        return Frontier((), not should_stop())
    free = replace(problem, min_samples_per_second=0.0)
    stride = 1.0
    points: list[FrontierPoint] = []
    multipliers: Multipliers = []
    tracked: set[int] = set()
    complete, target = True, lowest
    while True:
        if should_stop():
            return Frontier(tuple(points), False)
        # Rounding must not lose the end of the frontier, which a known plan reaches.
        found = cheapest_at(segments, min(target, highest), should_stop, multipliers, tracked)
        if found.choice is None:
            complete = complete and found.finished
            break
        reached = found.choice.throughput
        plan = build_plan(free, segments, found.choice, method="frontier", lower_rate=cost_rate(segments, found.choice))
        point = FrontierPoint(plan.throughput, plan.cost_per_hour, plan.cost, plan)
        if points and point.cost_per_hour <= points[-1].cost_per_hour * (1 + 1e-9):
            points[-1] = point  # equally cheap and faster
        else:
            points.append(point)
        progress(min(math.log(reached / lowest) / math.log(highest / lowest), 1.0) if highest > lowest else 1.0)
        if target >= highest or reached >= highest * (1 - 1e-9):
            break
        target = reached * _STEP
        if len(points) == max_points:
            complete = False
            break
        if len(points) == max_points // 2 and stride == 1.0:
            stride = (highest / reached) ** (1 / (max_points - len(points)))
        if target < reached * stride:
            target = reached * stride
            complete = False
    return Frontier(tuple(points), complete)
