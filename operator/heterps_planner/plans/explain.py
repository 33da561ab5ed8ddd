"""Explanation of a plan: the cost of each alternative, the limits, and the time of each stage.

Pure values for the command line and for JSON. Every alternative is itself an exact optimum, over the schedules that the
alternative allows, so "12 % more expensive" compares best with best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from heterps_planner.model.cost_model import cost_of_training
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.machine import throughput_on_cores
from heterps_planner.plans.plan import Plan, choice_of
from heterps_planner.plans.robust import robust_segments
from heterps_planner.search.path import Stage
from heterps_planner.search.points import Choice, lost_time
from heterps_planner.search.servers import minimise, provision_stages
from heterps_planner.search.sweep import SearchOptions

__all__ = ["Alternative", "Explanation", "StageBudget", "explain"]


@dataclass(frozen=True)
class Alternative:
    """The cheapest plan of a kind."""

    name: str  # for display: "only v100", "without cpu", "first layer on cpu, rest on v100"
    feasible: bool
    cost: float | None  # dollars for all samples
    cost_per_hour: float | None
    throughput: float | None
    extra_percent: float | None  # compared with the explained plan; negative: cheaper


@dataclass(frozen=True)
class StageBudget:
    """Time budget of a stage, in seconds per sample."""

    name: str
    pool: str
    units: int
    throughput: float  # samples per second that the stage alone reaches
    busy_fraction: float  # of the time, at the throughput of the plan
    compute_sequential: float  # the part of computing that more units do not shorten
    compute_parallel: float  # the part that more units shorten, with the units of the plan
    bubble: float  # the wait for other stages in each step
    transfer: float  # overlapped with both
    cost_share: float  # of the price per hour


@dataclass(frozen=True)
class Explanation:
    """The complete explanation of a plan."""

    alternatives: tuple[Alternative, ...]
    complete: bool  # false: time ran out, and alternatives are left out
    binding_limits: tuple[str, ...]
    shadow_prices: dict[str, float]  # dollars per hour saved by one more unit
    bottleneck: str  # name of the slowest stage, "parameterServer", or "machine"
    stages: tuple[StageBudget, ...]

    def to_json(self) -> dict[str, Any]:
        """The explanation as a JSON object."""
        alternatives = [
            {
                "name": a.name,
                "feasible": a.feasible,
                "cost": a.cost,
                "costPerHour": a.cost_per_hour,
                "throughput": a.throughput,
                "extraPercent": a.extra_percent,
            }
            for a in self.alternatives
        ]
        stages = [{_camel(key): value for key, value in asdict(stage).items()} for stage in self.stages]
        return {
            "alternatives": alternatives,
            "complete": self.complete,
            "bindingLimits": list(self.binding_limits),
            "shadowPrices": dict(self.shadow_prices),
            "bottleneck": self.bottleneck,
            "stages": stages,
        }


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def explain(problem: Problem, plan: Plan, should_stop: Callable[[], bool] = lambda: False) -> Explanation:
    """Explain a plan.

    Args:
        problem: the problem that was planned.
        plan: its plan, by any method; alternatives of a plan for one machine are for that machine too.
        should_stop: when it returns True, the remaining alternatives are left out.
    """
    segments = build_segments(problem)
    if plan.robust is not None:
        segments = robust_segments(problem, segments, plan.robust.error, should_stop)
    alternatives, complete = [], True
    for name, choice in _kinds(problem, segments, should_stop):
        if should_stop():  # the choice may not be the cheapest one
            complete = False
            break
        alternatives.append(_alternative(problem, segments, plan, name, choice))
    segments = segments.for_servers(plan.parameter_server.replicas)
    budgets = tuple(_budget(problem, segments, plan, i) for i in range(len(plan.stages)))
    slowest = min(budgets, key=lambda stage: stage.throughput)
    on_pools = plan.throughput if plan.machine is None else plan.machine.throughput_on_pools
    bottleneck = slowest.name
    if plan.throughput < on_pools:
        bottleneck = "machine"
    elif problem.parameter_server is not None and slowest.throughput > plan.throughput * (1 + 1e-9):
        bottleneck = "parameterServer"
    return Explanation(
        alternatives=tuple(alternatives),
        complete=complete,
        binding_limits=plan.binding_limits,
        shadow_prices=dict(plan.shadow_prices),
        bottleneck=bottleneck,
        stages=budgets,
    )


def _kinds(
    problem: Problem, segments: Segments, should_stop: Callable[[], bool]
) -> Iterator[tuple[str, Choice | None]]:
    """Yield the alternatives by name, each with its cheapest plan (None if none exists)."""
    last = segments.num_layers - 1
    for t, pool in enumerate(problem.pools):
        yield f"only {pool.name}", _provisioned(segments, [(0, last, t)])
    if len(problem.pools) > 1:
        optimum = minimise(segments, SearchOptions(should_stop=should_stop))
        used = set() if optimum.choice is None else {stage[2] for stage in optimum.choice.stages}
        for t, pool in enumerate(problem.pools):
            found = optimum  # excluding a pool that the optimum does not use changes nothing
            if t in used:
                without = np.ones(segments.seq_LLT.shape, dtype=bool)
                without[:, :, t] = False
                others = segments.restricted(without)
                found = minimise(others, SearchOptions(should_stop=should_stop, multipliers=optimum.multipliers))
            yield f"without {pool.name}", found.choice
    if last > 0:
        # Erratum 18: [HeterPS] describes this heuristic in both directions; both are shown.
        for a, first in enumerate(problem.pools):
            for b, rest in enumerate(problem.pools):
                if (first.device_type == "CPU") != (rest.device_type == "CPU"):
                    choice = _provisioned(segments, [(0, 0, a), (1, last, b)])
                    yield f"first layer on {first.name}, rest on {rest.name}", choice


def _provisioned(segments: Segments, stages: list[Stage]) -> Choice | None:
    found = provision_stages(segments, stages, [None] * len(stages))
    if not math.isfinite(found.rate[0]):
        return None
    pods = [int(k) for k in found.pods[0]]
    return choice_of(segments, stages, pods[:-1], pods[-1])


def _alternative(problem: Problem, segments: Segments, plan: Plan, name: str, choice: Choice | None) -> Alternative:
    if choice is None:
        return Alternative(name, False, None, None, None, None)
    throughput = choice.throughput
    if plan.machine is not None:
        throughput = throughput_on_cores(problem, choice.stages, choice.pods, throughput, plan.machine.cores)
    cost = cost_of_training(problem.samples, throughput, choice.price) * (1 + lost_time(segments, choice))
    extra = (cost / plan.cost - 1) * 100 if plan.cost > 0 else (0.0 if cost == 0 else None)
    return Alternative(name, True, cost, choice.price, throughput, extra)


def _budget(problem: Problem, segments: Segments, plan: Plan, index: int) -> StageBudget:
    stage = plan.stages[index]
    pool = problem.pool_index(stage.pool)
    first, last, pods = stage.first_layer, stage.last_layer, stage.pods
    total = segments.stage_time(first, last, pool, pods)
    work = segments.work(first, last, pool, pods)
    compute = work.on(pods)
    price = float(segments.price_T[pool]) * pods
    return StageBudget(
        name=stage.name,
        pool=stage.pool,
        units=stage.units,
        throughput=1 / total,
        busy_fraction=min(total * plan.throughput, 1.0),
        compute_sequential=work.sequential,
        compute_parallel=work.parallel / pods,
        bubble=segments.with_bubble(compute, first, last, pool) - compute,
        transfer=segments.transfer(last, pool).on(pods),
        cost_share=price / plan.cost_per_hour if plan.cost_per_hour > 0 else 0.0,
    )
