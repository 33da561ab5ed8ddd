"""The number of parameter servers, where stages wait for them: branch and bound over that number.

A stage waits `w / m` seconds per sample for m servers (`Segments.wait_LLT`), and m servers sustain `m / server_par`
samples per second. More servers cost more and shorten all stages, so no single number is the right one for a
throughput. For a range of numbers, a bound follows from stages that wait as for the largest number, while servers are
paid as for the smallest or for the throughput, whichever is more: the same problem without waits, which `sweep` solves
exactly. A range of one number is solved exactly by it. So the range with the lowest bound is halved (in ratio) until no
range can hold a better plan than the best known one. If cost per sample hardly depends on the size of a plan, many
numbers are almost equally good: after `_MOST_SOLVED` problems the best plan so far is returned with its bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from heterps_planner.model.cost_model import SLACK
from heterps_planner.model.segments import Segments
from heterps_planner.search import interruptions, sweep
from heterps_planner.search.path import Stage
from heterps_planner.search.points import least_rate, search_prices
from heterps_planner.search.provisioning import Provisioned, provision, schedule_of
from heterps_planner.search.sweep import CLOSE, DEFAULT_OPTIONS, Multipliers, SearchOptions, SweepResult

__all__ = ["MAX_SERVERS", "cheapest_at", "minimise", "provision_stages"]

MAX_SERVERS = 1024  # as in the schema of a job
_MOST_SOLVED = 64  # more than to find one of 1024 numbers by halving, three times over


Solution = TypeVar("Solution")


def _best_number(
    segments: Segments,
    throughput: float,
    solve: Callable[[Segments, float], tuple[Solution, float, float]],
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Solution, float]:
    """Solve a problem for the best number of servers.

    Args:
        segments: with waits.
        throughput: that any solution has to reach, in samples per second.
        solve: given segments without waits and the value to beat, returns a solution, its value (infinite if there
            is none) and a lower bound on the values of all solutions.
        should_stop: when it returns True, the best solution so far is returned.

    Returns:
        The solution, and a lower bound on the values of all solutions.
    """
    least = max(math.ceil(throughput * (1 - SLACK) * segments.server_par), 1)
    most = max(int(min(segments.limit_T[segments.server_pool], MAX_SERVERS)), least)
    # The least number is most often the best one, so it gives a good value to beat.
    best, value, proven = solve(segments.with_servers(least, least), math.inf)
    bounds = [proven]
    num_solved = 1
    ranges: list[tuple[float, int, int]] = [(0.0, least + 1, most)] if least < most else []
    while ranges:
        bound, low, high = heapq.heappop(ranges)
        if bound >= value * (1 - CLOSE):
            break
        if should_stop() or num_solved == _MOST_SOLVED:
            bounds.append(bound)
            break
        num_solved += 1
        found, reached, bound = solve(segments.with_servers(low, high), value)
        if low == high:
            bounds.append(bound)
            if reached < value:
                best, value = found, reached
        elif bound < value * (1 - CLOSE):
            middle = math.isqrt(low * high)
            heapq.heappush(ranges, (bound, low, middle))
            heapq.heappush(ranges, (bound, middle + 1, high))
    return best, min([value, *bounds])


def minimise(segments: Segments, options: SearchOptions = DEFAULT_OPTIONS) -> SweepResult:
    """Find the cheapest plan per sample, with the best number of servers; arguments and result as `sweep.minimise`."""
    if segments.wait_LLT is None:
        return interruptions.minimise(segments, options)
    options = replace(options, any_plan=False)  # bounds are needed

    def solve(fixed: Segments, value: float) -> tuple[SweepResult, float, float]:
        nonlocal options
        found = interruptions.minimise(fixed, replace(options, rate=min(options.rate, value)))
        options = replace(options, multipliers=found.multipliers)
        return found, math.inf if found.choice is None else found.rate, found.bound

    best, bound = _best_number(segments, segments.floor, solve, options.should_stop)
    if options.should_stop():
        return replace(best, bound=max(bound, least_rate(segments, search_prices(segments))), finished=False)
    return replace(best, bound=bound)


def cheapest_at(
    segments: Segments,
    throughput: float,
    should_stop: Callable[[], bool] = lambda: False,
    multipliers: Multipliers | None = None,
    tracked: set[int] | None = None,
) -> SweepResult:
    """Find the plan with the least price per hour that reaches a throughput, with the best number of servers.

    Arguments and result are those of `sweep.cheapest_at`.
    """
    if segments.wait_LLT is None:
        return sweep.cheapest_at(segments, throughput, should_stop, multipliers, tracked)

    def solve(fixed: Segments, value: float) -> tuple[SweepResult, float, float]:
        found = sweep.cheapest_at(fixed, throughput, should_stop, multipliers, tracked)
        price = math.inf if found.choice is None else found.choice.price
        return found, price, price if found.finished else 0.0

    best, _ = _best_number(segments, throughput, solve, should_stop)
    return replace(best, finished=best.finished and not should_stop())


def provision_stages(segments: Segments, stages: list[Stage], fixed: list[int | None]) -> Provisioned:
    """Find the cheapest pods per sample of one schedule, with the best number of servers.

    Args:
        segments: the problem.
        stages: the stages in order.
        fixed: pods per stage; None leaves them open.
    """

    def solve(numbered: Segments, value: float) -> tuple[Provisioned, float, float]:
        found = provision(schedule_of(numbered, stages, fixed), numbered, value)
        return found, float(found.rate[0]), float(found.rate[0])

    if segments.wait_LLT is None:
        return solve(segments, math.inf)[0]
    return _best_number(segments, segments.floor, solve)[0]
