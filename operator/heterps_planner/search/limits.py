"""Effect of the pool limits: the highest throughput, the limiting pools, and the value of one more pod.

All results come from the exact method of `sweep`, so they are exact too (within its tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.search.points import Choice, fastest_bound
from heterps_planner.search.provisioning import fastest_provision, schedule_of
from heterps_planner.search.servers import cheapest_at, minimise
from heterps_planner.search.sweep import Multipliers, SearchOptions, SweepResult

__all__ = ["ShadowPrices", "fastest", "limiting_pools", "shadow_prices"]

_RESOLUTION = 1 + 2e-9  # closer throughputs are the same
_NOTICEABLE = 1 + 1e-6  # a throughput higher by this factor counts as an improvement


@dataclass(frozen=True)
class ShadowPrices:
    """The value of one more unit of each pool."""

    saving_T: FloatArray  # noqa: N815  # dollars per hour at the plan's throughput, shape (T,)
    complete: bool  # false: the search was stopped, and savings of 0 may be unknown ones


def fastest(segments: Segments, should_stop: Callable[[], bool] = lambda: False) -> tuple[float, Choice | None]:
    """Find the highest throughput that any plan within the limits (and the ceiling) reaches.

    Bisection over the throughput; each test is an exact search for any plan that reaches it, and a found plan gets all
    the units that help it, so that a few tests suffice.

    Returns:
        The throughput (0 if no plan keeps the limits at all) and a plan that reaches it.
    """
    low, best = 0.0, None
    high = fastest_bound(segments) * _RESOLUTION
    if high == 0:
        return 0.0, None
    theta = 0.0  # cheapest_at raises it to one pod per stage
    just_above = True
    while not should_stop():
        choice = cheapest_at(segments, theta, should_stop).choice
        if choice is None:
            if theta <= low * _RESOLUTION:
                break
            high = theta
        else:
            best = _with_all_units(segments, choice)
            low = best.throughput
        if low * _RESOLUTION >= high:
            break
        # First test whether the current plan is already the best; if not, bisect.
        theta = low * _RESOLUTION if just_above else math.sqrt(low * high)
        just_above = not just_above
    return low, best


def _with_all_units(segments: Segments, choice: Choice) -> Choice:
    """Give the stages of a plan the pods with which it is fastest, unless that breaks the ceiling."""
    stages, segments = list(choice.stages), segments.for_servers(choice.server_pods)
    throughput, pods = fastest_provision(schedule_of(segments, stages, [None] * len(stages)), segments)
    price = float(pods[:-1] @ segments.price_T[[t for _, _, t in stages]]) + pods[-1] * float(
        segments.price_T[segments.server_pool]
    )
    if throughput <= choice.throughput or price > segments.ceiling:
        return choice
    return Choice(choice.stages, tuple(map(int, pods[:-1])), int(pods[-1]), throughput, price)


def limiting_pools(segments: Segments, best: float, should_stop: Callable[[], bool] = lambda: False) -> list[int]:
    """Return the pools that each, with three times its limit, would allow more than `best`.

    Args:
        segments: the problem.
        best: its highest throughput.
        should_stop: when it returns True, pools not yet examined are omitted.
    """
    result: list[int] = []
    for pool in range(segments.num_pools):
        if should_stop():
            break
        wider = segments.with_limit(pool, 3 * float(segments.limit_T[pool]) + 1)
        if cheapest_at(wider, max(best, 0.0) * _NOTICEABLE, should_stop).choice is not None:
            result.append(pool)
    return result


def shadow_prices(
    segments: Segments, choice: Choice, rate: float, should_stop: Callable[[], bool] = lambda: False
) -> ShadowPrices:
    """Return the saving from one more unit of each pool, in dollars per hour at the plan's throughput.

    These are exact differences of optimal costs, not multipliers: the problem is solved again with one more pod. All
    pools are widened together first. A better plan uses the added pods of some pools; these are widened one by one, and
    the others together again, until widening all the rest does not help, so that none of them helps alone.

    Args:
        segments: the problem.
        choice: its optimal plan.
        rate: cost of that plan, dollars per hour and (sample per second), at search prices.
        should_stop: when it returns True, pools not yet examined stay at 0.
    """
    result = np.zeros(segments.num_pools)
    complete = True
    multipliers: Multipliers = []

    def solve(pools: list[int], *, any_plan: bool) -> SweepResult:
        nonlocal multipliers, complete
        wider = segments.limit_T.copy()
        wider[pools] += 1
        options = SearchOptions(rate=rate, should_stop=should_stop, any_plan=any_plan, multipliers=multipliers)
        found = minimise(replace(segments, limit_T=wider), options)
        multipliers = found.multipliers
        complete = complete and found.finished
        return found

    left = list(range(segments.num_pools))
    while left:
        if should_stop():
            return ShadowPrices(result, False)
        better = solve(left, any_plan=len(left) > 1).choice
        if better is None:
            break
        used = np.zeros(segments.num_pools)
        used[segments.server_pool] += better.server_pods
        for (_, _, pool), pods in zip(better.stages, better.pods, strict=True):
            used[pool] += pods
        taken = [pool for pool in left if used[pool] > segments.limit_T[pool]]
        if not taken:  # better by less than the tolerance of the search
            break
        for pool in taken:
            found = solve([pool], any_plan=False)
            if found.finished and found.choice is not None:
                result[pool] = (rate - found.rate) * choice.throughput / float(segments.units_T[pool])
        left = [pool for pool in left if pool not in taken]
    return ShadowPrices(result, complete)
