"""Replanning of running jobs: a better plan has to pay for the change.

Changing from the running plan to another costs, once,

- `restart_seconds` in which the whole job, at the new plan's price, loads a checkpoint instead of training, and
- `pod_start_seconds` at its own price for each pod that only the new plan has: it is paid while
  it starts. Pods are told apart by pool only: one of the same pool can take any stage.

The result minimises these costs plus the price of training the remaining samples over all plans, including the running
one without cost of change; so it is exact over staying, other units for the same stages, and other stages. The saving
grows with the remaining samples, the cost of the change does not: the more remain, the more likely a change pays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_planner.errors import DeadlineError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.fields import check_number
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.plan import Infeasible, Plan, build_plan, choice_of
from heterps_planner.plans.refusal import explain_infeasible
from heterps_planner.search.coupling import CoupledJob, Tariff, solve
from heterps_planner.search.points import Choice
from heterps_planner.search.priced_search import PricedJob
from heterps_planner.search.servers import minimise
from heterps_planner.search.sweep import Multipliers, SearchOptions

__all__ = ["METHOD", "Move", "plan_from", "running_choice"]

METHOD = "from-running"
_PROVEN = 1e-8  # smaller relative gaps are rounding; so are savings


@dataclass(frozen=True)
class Move:
    """The decision for a running job."""

    decision: str  # "stay", "provision" (other units for the same stages) or "move" (other stages)
    plan: Plan  # to run from now on; its cost is that of the remaining samples, its gap compares it with a fresh start
    cost: float  # dollars from now on, including the change
    switch_cost: float  # the part of them for the change
    stay_cost: float | None  # dollars from now on without a change; None: the running plan is no longer possible
    lower_bound: float  # dollars; no decision costs less
    gap: float  # (cost - lower bound) / cost
    optimal: bool
    seconds: float = 0.0  # planning time

    @property
    def saving(self) -> float | None:
        """Dollars saved compared with staying; None: staying is not possible."""
        return None if self.stay_cost is None else self.stay_cost - self.cost

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a JSON object."""
        return {
            "decision": self.decision,
            "cost": self.cost,
            "switchCost": self.switch_cost,
            "stayCost": self.stay_cost,
            "saving": self.saving,
            "lowerBound": self.lower_bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "seconds": self.seconds,
            "plan": self.plan.to_json(),
        }


def running_choice(problem: Problem, segments: Segments, running: Plan) -> Choice | None:
    """Price a running plan for the current problem.

    Returns:
        The plan, or None if it is no longer possible: a limit, the floor or the ceiling has changed, a pool or layer
        is gone, or the profile excludes a stage's pool.
    """
    names = [pool.name for pool in problem.pools]
    stages, pods = [], []
    for stage in running.stages:
        layers = tuple(layer.name for layer in problem.layers[stage.first_layer : stage.last_layer + 1])
        if stage.pool not in names or layers != stage.layers:
            return None
        pool = names.index(stage.pool)
        if stage.units % problem.pools[pool].units_per_pod:
            return None
        stages.append((stage.first_layer, stage.last_layer, pool))
        pods.append(stage.units // problem.pools[pool].units_per_pod)
    if stages[-1][1] != len(problem.layers) - 1:
        return None
    servers = 0
    if problem.parameter_server is not None:
        if running.parameter_server.pool != problem.parameter_server.pool:
            return None
        servers = running.parameter_server.units // problem.pools[segments.server_pool].units_per_pod
        if servers < segments.server_least:
            return None
        segments = segments.for_servers(servers)
    if not all(math.isfinite(segments.stage_time(*stage, n)) for stage, n in zip(stages, pods, strict=True)):
        return None
    choice = choice_of(segments, stages, pods, servers)
    need = segments.pods(np.array([choice.throughput]))[0]
    if any(need[stage] > n for stage, n in zip(stages, pods, strict=True)):
        return None  # too little memory, say
    fast = choice.throughput >= problem.min_samples_per_second * (1 - 2 * FLOOR_TOLERANCE)
    return choice if fast and PricedJob(segments, 1.0).allows(choice) else None


def plan_from(
    problem: Problem,
    running: Plan,
    *,
    restart_seconds: float,
    pod_start_seconds: float,
    samples_left: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    multipliers: Multipliers | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Move | Infeasible:
    """Decide whether and how a running job should change its plan.

    If its workers wait for parameter servers, a new plan has as many of them as the cheapest plan afresh. What
    interruptions cost is not counted.

    Args:
        problem: the current problem: prices, limits, measured times and floor.
        running: the running plan.
        restart_seconds: seconds for which a change stops all training.
        pod_start_seconds: paid seconds before a new pod takes part.
        samples_left: remaining samples; None: the problem's `samples`.
        should_stop: called regularly; when it returns True, the best decision so far is returned with its bound.
        multipliers: initial multipliers from a similar problem; replaced by those of this one.
        clock: returns seconds; only differences matter.

    Returns:
        The decision, or the reason why no plan exists.

    Raises:
        ProblemError: a number is out of range.
        DeadlineError: stopped before any feasible plan was found.
    """
    began = clock()
    restart = check_number("restartSeconds", restart_seconds, least=0, most=1e9)
    start = check_number("podStartSeconds", pod_start_seconds, least=0, most=1e9)
    if samples_left is not None:
        problem = replace(problem, samples=check_number("samplesLeft", samples_left, above=0, most=1e30))
    problem = problem.without_interruptions()
    segments = build_segments(problem)
    hours_per_rate = problem.samples / 3600
    stay = running_choice(problem, segments, running)
    stay_cost = None if stay is None else stay.price / stay.throughput * hours_per_rate
    fresh = minimise(segments, SearchOptions(should_stop=should_stop, multipliers=multipliers or ()))
    if multipliers is not None:
        multipliers[:] = fresh.multipliers[-8:]
    if fresh.choice is None and stay is None:
        if not fresh.finished:
            raise DeadlineError("the deadline passed before any plan was found; allow more time")
        return replace(explain_infeasible(problem, segments, METHOD, should_stop, "no plan"), seconds=clock() - began)
    fresh_rate = min(fresh.bound, fresh.rate)
    chosen, once, cost, bound = stay, 0.0, math.inf if stay_cost is None else stay_cost, fresh_rate * hours_per_rate
    if fresh.choice is not None and cost > bound * (1 + _PROVEN):
        job = PricedJob(segments.for_servers(fresh.choice.server_pods), hours_per_rate, restart / 3600)
        tariff = Tariff(segments.limit_T, _pods_by_pool(problem, running), segments.price_T * (start / 3600))
        member = CoupledJob(job, np.arange(segments.num_pools))
        moved = solve([member], tariff, [[fresh.choice]], bound, should_stop)
        bound = min(moved.bound, cost)
        if moved.choices is not None and moved.dollars < cost * (1 - _PROVEN):
            (chosen,), cost = moved.choices, moved.dollars
            once = cost - chosen.price / chosen.throughput * hours_per_rate
    else:
        bound = min(cost, max(bound, 0.0))
    if chosen is None:
        raise DeadlineError("the deadline passed before any plan was found; allow more time")
    gap = 0.0 if cost <= 0 or bound >= cost * (1 - _PROVEN) else (cost - bound) / cost
    decision = "stay" if chosen is stay else "provision" if _same_stages(chosen, problem, running) else "move"
    if decision == "stay" and cost <= fresh_rate * hours_per_rate * (1 + _PROVEN):
        gap = 0.0
    plan = build_plan(
        problem,
        segments,
        chosen,
        method=METHOD,
        lower_rate=fresh_rate,
        ps_pool=running.parameter_server.pool if running.parameter_server.pool in _names(problem) else None,
        ps_replicas=running.parameter_server.replicas if chosen is stay else 0,
    )
    return Move(
        decision, plan, cost, once, stay_cost, cost if gap == 0 else bound, gap, gap == 0.0, seconds=clock() - began
    )


def _names(problem: Problem) -> list[str]:
    return [pool.name for pool in problem.pools]


def _pods_by_pool(problem: Problem, running: Plan) -> np.ndarray:
    """Return a running plan's pods by pool, shape (T,); servers count if the problem charges for them."""
    units = dict.fromkeys(_names(problem), 0)
    servers = running.parameter_server
    taken = [(stage.pool, stage.units) for stage in running.stages]
    for name, count in [*taken, *([(servers.pool, servers.units)] if problem.parameter_server is not None else [])]:
        if name in units:
            units[name] += count
    return np.array([float(units[pool.name] // pool.units_per_pod) for pool in problem.pools])


def _same_stages(choice: Choice, problem: Problem, running: Plan) -> bool:
    names = _names(problem)
    return [(a, b, names[t]) for a, b, t in choice.stages] == [
        (stage.first_layer, stage.last_layer, stage.pool) for stage in running.stages
    ]
