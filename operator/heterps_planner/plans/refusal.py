"""Why no plan exists: the reachable throughput, the limiting pools, the price of the floor.

It uses the exact method, so that "unreachable" is a statement about the problem and not about a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from heterps_planner.model.memory import least_pods_for_memory
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments
from heterps_planner.plans.plan import (
    COST_CEILING_EXCEEDED,
    MEMORY_EXCEEDED,
    NOTHING_FOUND,
    THROUGHPUT_FLOOR_UNREACHABLE,
    Infeasible,
    describe_bytes,
    describe_rate,
)
from heterps_planner.search.limits import fastest, limiting_pools
from heterps_planner.search.points import Choice
from heterps_planner.search.servers import cheapest_at

__all__ = ["describe_servers", "explain_infeasible", "explain_unlucky_search"]

_RESOLUTION = 1 + 1e-4  # of the memory that is found sufficient
_NOTICEABLE = 1 + 1e-6  # a capacity above the reachable throughput by this factor does not limit it


def explain_unlucky_search(method: str, num_tried: int, other: Choice) -> Infeasible:
    """Return the refusal of a search that found nothing although plans exist.

    Args:
        method: name of the search.
        num_tried: schedules that it tried.
        other: an existing plan.
    """
    message = (
        f"method '{method}' found no plan within floor and limits among the {num_tried:,} schedules it tried, but one "
        f"exists that reaches {describe_rate(other.throughput)} for {other.price:.2f} $/h: use the method 'optimal'"
    )
    return Infeasible(method, NOTHING_FOUND, other.throughput, message)


def explain_infeasible(
    problem: Problem,
    segments: Segments,
    method: str,
    should_stop: Callable[[], bool] = lambda: False,
    subject: str = "no plan",
) -> Infeasible:
    """Return why no plan (among the allowed segments) is feasible.

    Args:
        problem: the problem.
        segments: its segments, possibly restricted to some schedules.
        method: name of the method.
        should_stop: ends the search for the best throughput early; the result is then the best so far.
        subject: start of the message.
    """
    floor = problem.min_samples_per_second
    if segments.least_LLT is not None:
        roomy = segments.without_memory_limits()
        if cheapest_at(roomy, floor, should_stop).choice is not None:
            return _explain_memory(problem, segments, method, should_stop, subject)
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
    at_least = "at least " if should_stop() else ""
    pools = tuple(problem.pools[t].name for t in limiting_pools(free, best, should_stop))
    if best == 0 and not at_least:
        message = f"{subject} keeps the limits of the pools, even at the lowest throughput"
    else:
        message = f"{subject} reaches {describe_rate(floor)}: the pools allow {at_least}{describe_rate(best)}"
    servers = describe_servers(problem, free, best)
    if servers:
        message += f"; {servers}"
    elif pools:
        limits = ", ".join(f"{name} ({problem.pools[problem.pool_index(name)].max_units} units)" for name in pools)
        message += f"; limited by {limits}: raise maxUnits of one of them or lower minSamplesPerSecond"
    elif best > 0 and not at_least:
        message += (
            "; no single limit is in the way, the sequential parts of the layers are, or several limits together: "
            "lower minSamplesPerSecond or add faster pools"
        )
    return Infeasible(method, THROUGHPUT_FLOOR_UNREACHABLE, best, message, pools)


def describe_servers(problem: Problem, segments: Segments, best: float) -> str:
    """Return that a fixed number of parameter servers limits the throughput, and what to do; empty if it does not.

    Args:
        problem: the problem.
        segments: its segments, for a number of servers.
        best: the reachable throughput.
    """
    server, pods = problem.parameter_server, segments.server_most
    if server is None or not math.isfinite(pods) or segments.server_throughput(pods) > best * _NOTICEABLE:
        return ""
    number = f"{pods:.0f} parameter server{'s' * (pods > 1)} on {server.pool} sustain{'s' * (pods == 1)}"
    return (
        f"{number} {describe_rate(best)}: plan with more parameter servers (spec.parameterServer.replicas of a job) or "
        "lower minSamplesPerSecond"
    )


def _explain_memory(
    problem: Problem, segments: Segments, method: str, should_stop: Callable[[], bool], subject: str
) -> Infeasible:
    """Return which pool's memory is insufficient, and how much is missing."""
    floor = problem.min_samples_per_second
    best, _ = fastest(segments, should_stop)
    everything = sum(x.resident_bytes + problem.training_batch_size * x.activation_bytes for x in problem.layers)
    pools, needs = [], []
    for t, pool in enumerate(problem.pools):
        have = pool.memory_bytes_per_pod
        if have is None or not _reaches(problem, segments, t, 2 * everything + 1, should_stop):
            continue
        too_little, enough = have, 2 * everything + 1
        while enough > too_little * _RESOLUTION and not should_stop():
            middle = math.sqrt(too_little * enough)
            if _reaches(problem, segments, t, middle, should_stop):
                enough = middle
            else:
                too_little = middle
        pools.append(pool.name)
        needs.append(
            f"a stage may take {describe_bytes(have)} of a pod of {pool.name} and needs {describe_bytes(enough)}, "
            f"{describe_bytes(enough - have)} more"
        )
    message = f"{subject} reaches {describe_rate(floor)} within the memory of the pods"
    message += f", which allows {describe_rate(best)}: " if best > 0 else ": "
    message += "; or ".join(needs) or "several pools have too little memory"
    message += (
        "; raise memoryPerUnit of the pool (memoryBytesPerPod in a problem file), lower globalBatchSize or "
        "minSamplesPerSecond, or allow more units"
    )
    return Infeasible(method, MEMORY_EXCEEDED, best, message, tuple(pools))


def _reaches(problem: Problem, segments: Segments, pool: int, memory: float, should_stop: Callable[[], bool]) -> bool:
    """Return whether the floor is reachable if the pods of one pool have this much memory."""
    assert segments.least_LLT is not None, "asked only where memory is limited"
    least = segments.least_LLT.copy()
    least[:, :, pool] = least_pods_for_memory(problem, replace(problem.pools[pool], memory_bytes_per_pod=memory))
    wider = replace(segments, least_LLT=least)
    return cheapest_at(wider, problem.min_samples_per_second, should_stop).choice is not None
