"""Entry point of the planner: plans a problem with a named method.

Every plan, by any method, is compared with the exact optimum: it carries the optimum's lower bound, so its gap shows
the cost of the method, and the optimum's binding limits and shadow prices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.methods import METHODS, Task
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.plan import Contributions, Infeasible, Plan, build_plan
from heterps_planner.plans.refusal import explain_infeasible, explain_unlucky_search
from heterps_planner.plans.robust import check_error, robust_segments, robustness
from heterps_planner.search.limits import shadow_prices
from heterps_planner.search.points import cost_rate
from heterps_planner.search.servers import cheapest_at, minimise
from heterps_planner.search.sweep import SearchOptions

__all__ = ["allowance", "check_servers", "deadline_test", "plan"]

_LEAST_ALLOWANCE = 1.0  # seconds; the reasons of small plans must not depend on how busy a machine is


def deadline_test(deadline: float | None, clock: Callable[[], float]) -> Callable[[], bool]:
    """Return a function that returns whether a deadline on a clock has passed."""
    if deadline is None:
        return lambda: False
    end = deadline
    return lambda: clock() >= end


def allowance(should_stop: Callable[[], bool], seconds: float, clock: Callable[[], float]) -> Callable[[], bool]:
    """Return a time limit for what accompanies a plan: as long as the plan took, and at least a second.

    Args:
        should_stop: the time limit of everything.
        seconds: that the plan took.
        clock: returns seconds.
    """
    end = clock() + max(seconds, _LEAST_ALLOWANCE)
    return lambda: should_stop() or clock() >= end


def check_servers(problem: Problem, ps_pool: str | None, ps_replicas: int) -> None:
    """Check the parameter-server arguments of a caller.

    Raises:
        ProblemError: unknown pool, or a negative number.
    """
    if ps_pool is not None and ps_pool not in (names := [pool.name for pool in problem.pools]):
        raise UnknownNameError("parameterServer.pool", "pool", ps_pool, names)
    if ps_replicas < 0:
        raise ProblemError("parameterServer.replicas", f"must be >= 0, is {ps_replicas}")


def plan(
    problem: Problem,
    method: str = "optimal",
    *,
    seed: int = 0,
    robust: float = 0.0,
    deadline: float | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
    ps_pool: str | None = None,
    ps_replicas: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Plan | Infeasible:
    """Plan a problem.

    Args:
        problem: the problem.
        method: a name in `methods.METHODS`.
        seed: seed for methods that draw random numbers.
        robust: relative error of the measured times with which the plan still keeps the floor (`robust`); 0.1: 10 %.
        deadline: time on `clock` at which to stop; the best plan so far is returned with its bound.
        progress: called with the fraction of the work done.
        ps_pool: pool of the parameter servers if the problem does not charge any (default: the first CPU pool).
        ps_replicas: parameter-server processes; 0: derived from the charged units, or 1.
        clock: returns seconds; only differences matter.

    Returns:
        The plan, or the reason why none exists.

    Raises:
        UnknownNameError: no such method or pool.
        ProblemError: a negative number of servers, or an error that is out of range.
        TooLargeError: the method cannot handle this size.
        DeadlineError: the deadline passed before any plan was found.
    """
    if method not in METHODS:
        raise UnknownNameError("scheduling.method", "method", method, METHODS)
    check_servers(problem, ps_pool, ps_replicas)
    check_error(robust)
    began = clock()
    should_stop = deadline_test(deadline, clock)
    segments = robust_segments(problem, build_segments(problem), robust, should_stop)
    if segments.wait_LLT is not None and method != "optimal":
        # Only the exact method searches for the number of servers; the others plan stages for its number.
        exact = minimise(segments, SearchOptions(should_stop=should_stop)).choice
        if exact is not None:
            segments = segments.for_servers(exact.server_pods)
    found = METHODS[method](Task(problem, segments, seed, should_stop, progress))
    if found.choice is None:
        if found.num_tried is not None and (other := cheapest_at(segments, segments.floor, should_stop).choice):
            refusal = explain_unlucky_search(method, found.num_tried, other)
            return replace(refusal, seconds=clock() - began)
        subject = "no plan" if found.segments is None else f"no plan of method '{method}'"
        subject += f" with a margin for a profile error of {robust:.0%}" if robust else ""
        refusal = explain_infeasible(problem, found.segments or segments, method, should_stop, subject)
        return replace(refusal, seconds=clock() - began)
    rate = cost_rate(segments, found.choice)
    if found.lower_rate is None:
        yardstick = minimise(segments, SearchOptions(rate=rate, should_stop=should_stop))
        best, lower = yardstick.choice or found.choice, yardstick.bound
    else:
        best, lower = found.choice, found.lower_rate
    shadow = shadow_prices(segments, best, cost_rate(segments, best), allowance(should_stop, clock() - began, clock))
    result = build_plan(
        problem,
        segments,
        found.choice,
        method=method,
        lower_rate=lower,
        shadow=shadow,
        ps_pool=ps_pool,
        ps_replicas=ps_replicas,
    )
    if found.learned is not None:
        result = replace(result, learned=Contributions.of(found.learned, problem.samples))
    if robust:
        result = replace(result, robust=robustness(problem, found.choice, robust))
    return replace(result, seconds=clock() - began)
