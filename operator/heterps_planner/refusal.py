"""Why there is no plan: the reachable throughput, the limits in the way, the price of the floor.

Made by the exact machinery, so that "unreachable" is a statement about the problem and not about a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from heterps_planner.cost_model import Segments
from heterps_planner.limits import fastest, limiting_pools
from heterps_planner.plan import (
    COST_CEILING_EXCEEDED,
    THROUGHPUT_FLOOR_UNREACHABLE,
    Infeasible,
    describe_rate,
)
from heterps_planner.problem import Problem
from heterps_planner.sweep import cheapest_at

__all__ = ["explain_infeasible"]


def explain_infeasible(
    problem: Problem,
    segments: Segments,
    method: str,
    should_stop: Callable[[], bool] = lambda: False,
    subject: str = "no plan",
) -> Infeasible:
    """Say why no plan (among the allowed segments) is feasible.

    Args:
        problem: the problem.
        segments: its segments, perhaps restricted to some schedules.
        method: who asks.
        should_stop: ends the search for the best throughput early; the result is then what was reached so far.
        subject: how the message begins.
    """
    floor = problem.min_samples_per_second
    free = replace(segments, ceiling=math.inf)
    if math.isfinite(segments.ceiling):
        at_floor = cheapest_at(free, floor, should_stop).choice
        if at_floor is not None:
            best, _ = fastest(segments, should_stop)
            return Infeasible(
                method,
                COST_CEILING_EXCEEDED,
                best,
                f"{subject} reaches {describe_rate(floor)} for at most {segments.ceiling:.2f} $/h: that takes "
                f"{at_floor.price:.2f} $/h, and the ceiling allows {describe_rate(best)}; raise maxCostPerHour to "
                f"{at_floor.price:.2f} or lower minSamplesPerSecond",
            )
    best, _ = fastest(free, should_stop)
    pools = tuple(problem.pools[t].name for t in limiting_pools(free, best))
    if best == 0:
        message = f"{subject} keeps the limits of the pools, even at the lowest throughput"
    else:
        message = f"{subject} reaches {describe_rate(floor)}: the pools allow {describe_rate(best)}"
    if pools:
        limits = ", ".join(f"{name} ({problem.pools[problem.pool_index(name)].max_units} units)" for name in pools)
        message += f"; limited by {limits}: raise maxUnits of one of them or lower minSamplesPerSecond"
    elif best > 0:
        message += (
            "; no single limit is in the way, the sequential parts of the layers are, or several limits together: "
            "lower minSamplesPerSecond or add faster pools"
        )
    return Infeasible(method, THROUGHPUT_FLOOR_UNREACHABLE, best, message, pools)
