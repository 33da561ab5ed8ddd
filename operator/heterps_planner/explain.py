"""The reasons for a plan: what each alternative would cost, what limits it, where the time goes.

Pure values for the command line and for JSON. Every alternative is itself an exact optimum, over the schedules that the
alternative allows, so "12 % dearer" compares best with best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_planner.cost_model import Segments, build_segments
from heterps_planner.plan import Plan, choice_of
from heterps_planner.problem import Problem
from heterps_planner.robust import robust_segments
from heterps_planner.sweep import minimise

__all__ = ["Alternative", "Explanation", "StageBudget", "explain"]


@dataclass(frozen=True)
class Alternative:
    """The cheapest plan of a kind."""

    name: str  # for people: "only v100", "without cpu", "first layer on cpu, rest on v100"
    feasible: bool
    cost: float | None  # dollars for all samples
    cost_per_hour: float | None
    throughput: float | None
    extra_percent: float | None  # compared with the plan that is explained; negative: cheaper


@dataclass(frozen=True)
class StageBudget:
    """How a stage spends its time, in seconds per sample."""

    name: str
    pool: str
    units: int
    throughput: float  # samples per second that the stage alone reaches
    busy_fraction: float  # of the time, at the throughput of the plan
    compute_sequential: float  # the part of computing that more units do not shorten
    compute_parallel: float  # the part that they do, as it is with the units of the plan
    transfer: float  # overlapped with computing
    cost_share: float  # of the price per hour


@dataclass(frozen=True)
class Explanation:
    """Everything there is to say about a plan."""

    alternatives: tuple[Alternative, ...]
    binding_limits: tuple[str, ...]
    shadow_prices: dict[str, float]  # dollars per hour saved by one more unit
    bottleneck: str  # name of the slowest stage, or "parameterServer"
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
        plan: its plan, by whatever method.
        should_stop: when it returns True, the remaining alternatives are left out.
    """
    segments = build_segments(problem)
    if plan.robust is not None:
        segments = robust_segments(problem, segments, plan.robust.error, should_stop)
    alternatives = []
    for name, allowed in _kinds(problem, segments):
        if should_stop():
            break
        alternatives.append(_price(problem, segments.restricted(allowed), plan, name))
    budgets = tuple(_budget(problem, segments, plan, i) for i in range(len(plan.stages)))
    slowest = min(budgets, key=lambda stage: stage.throughput)
    servers_bound = problem.parameter_server is not None and slowest.throughput > plan.throughput * (1 + 1e-9)
    return Explanation(
        alternatives=tuple(alternatives),
        binding_limits=plan.binding_limits,
        shadow_prices=dict(plan.shadow_prices),
        bottleneck="parameterServer" if servers_bound else slowest.name,
        stages=budgets,
    )


def _kinds(problem: Problem, segments: Segments) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return the alternatives as masks of allowed segments."""
    shape = segments.seq_LLT.shape
    kinds: list[tuple[str, NDArray[np.bool_]]] = []
    for t, pool in enumerate(problem.pools):
        only = np.zeros(shape, dtype=bool)
        only[0, -1, t] = True
        kinds.append((f"only {pool.name}", only))
    if len(problem.pools) > 1:
        for t, pool in enumerate(problem.pools):
            without = np.ones(shape, dtype=bool)
            without[:, :, t] = False
            kinds.append((f"without {pool.name}", without))
    if len(problem.layers) > 1:
        # Erratum 18: [HeterPS] describes this heuristic both ways round; both are shown.
        for a, first in enumerate(problem.pools):
            for b, rest in enumerate(problem.pools):
                if (first.device_type == "CPU") != (rest.device_type == "CPU"):
                    split = np.zeros(shape, dtype=bool)
                    split[0, 0, a] = True
                    split[1, -1, b] = True
                    kinds.append((f"first layer on {first.name}, rest on {rest.name}", split))
    return kinds


def _price(problem: Problem, segments: Segments, plan: Plan, name: str) -> Alternative:
    found = minimise(segments).choice
    if found is None:
        return Alternative(name, False, None, None, None, None)
    exact = choice_of(segments, list(found.stages), list(found.pods), found.server_pods)
    cost = exact.price / exact.throughput * problem.samples / 3600
    extra = (cost / plan.cost - 1) * 100 if plan.cost > 0 else (0.0 if cost == 0 else None)
    return Alternative(name, True, cost, exact.price, exact.throughput, extra)


def _budget(problem: Problem, segments: Segments, plan: Plan, index: int) -> StageBudget:
    stage = plan.stages[index]
    pool = problem.pool_index(stage.pool)
    first, last, pods = stage.first_layer, stage.last_layer, stage.pods
    total = segments.stage_time(first, last, pool, pods)
    work = segments.work(first, last, pool, pods)
    price = float(segments.price_T[pool]) * pods
    return StageBudget(
        name=stage.name,
        pool=stage.pool,
        units=stage.units,
        throughput=1 / total,
        busy_fraction=min(total * plan.throughput, 1.0),
        compute_sequential=work.sequential,
        compute_parallel=work.parallel / pods,
        transfer=segments.transfer(last, pool).on(pods),
        cost_share=price / plan.cost_per_hour if plan.cost_per_hour > 0 else 0.0,
    )
