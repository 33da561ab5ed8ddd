"""Plans and refusals: the planner's results, with names instead of indices.

`Plan.to_json` is the plan file; the runtime reads its stages and parameter servers, users read the rest. A problem
without a solution gives `Infeasible`, with the reachable throughput and the limiting pools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heterps_planner.model.cost_model import FLOOR_TOLERANCE, cost_of_training, price_per_hour
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments
from heterps_planner.plans.selection import Selection
from heterps_planner.plans.task import Learned
from heterps_planner.search.limits import ShadowPrices
from heterps_planner.search.path import Stage
from heterps_planner.search.points import Choice, lost_time

__all__ = [
    "COST_CEILING_EXCEEDED",
    "MEMORY_EXCEEDED",
    "NOTHING_FOUND",
    "THROUGHPUT_FLOOR_UNREACHABLE",
    "Contributions",
    "Infeasible",
    "Machine",
    "Plan",
    "PlanStage",
    "Robustness",
    "Servers",
    "build_plan",
    "choice_of",
    "describe_bytes",
    "describe_rate",
]

VERSION = 1
THROUGHPUT_FLOOR_UNREACHABLE = "ThroughputFloorUnreachable"
COST_CEILING_EXCEEDED = "CostCeilingExceeded"
MEMORY_EXCEEDED = "MemoryExceeded"
NOTHING_FOUND = "NothingFound"  # by a search, although plans exist
_PROVEN = 1e-9  # smaller gaps are rounding


@dataclass(frozen=True)
class PlanStage:
    """Consecutive layers on one pool."""

    name: str
    pool: str
    first_layer: int
    last_layer: int
    layers: tuple[str, ...]
    units: int
    pods: int
    throughput: float  # samples per second that this stage alone reaches
    dense_exchange: str = ""  # of the gradients of its dense parameters; empty: that of the pool's device type

    def to_json(self) -> dict[str, Any]:
        """The stage as in a plan file."""
        return {
            "name": self.name,
            "pool": self.pool,
            "firstLayer": self.first_layer,
            "lastLayer": self.last_layer,
            "layers": list(self.layers),
            "units": self.units,
            "pods": self.pods,
            **({"denseExchange": self.dense_exchange} if self.dense_exchange else {}),
        }


@dataclass(frozen=True)
class Servers:
    """The parameter servers. Their units are part of the price only if the problem charges for them."""

    pool: str
    replicas: int
    units: int

    def to_json(self) -> dict[str, Any]:
        """The servers as in a plan file."""
        return {"pool": self.pool, "replicas": self.replicas, "units": self.units}


@dataclass(frozen=True)
class Machine:
    """The machine whose cores all processes of a plan share (`machine`)."""

    cores: float
    busy_cores: float  # cores that the plan would keep busy if available
    throughput_on_pools: float  # samples per second with a core for each unit, as on a cluster

    def to_json(self) -> dict[str, Any]:
        """The part of a plan file."""
        return {
            "cores": self.cores,
            "busyCores": self.busy_cores,
            "throughputOnPools": self.throughput_on_pools,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Machine:
        """Read what `to_json` wrote."""
        return cls(float(value["cores"]), float(value["busyCores"]), float(value["throughputOnPools"]))


@dataclass(frozen=True)
class Contributions:
    """What learning and what search found on the way to a plan (`Learned`), in dollars for all samples."""

    found_by: str  # "learning", "search" or "start"
    found_in_round: int
    num_rounds: int
    num_drawn: int
    num_searched: int
    drawn_cost: float | None  # of the cheapest schedule drawn from the policy; None: none was feasible
    searched_cost: float | None  # of the cheapest one at the end of segment moves

    def to_json(self) -> dict[str, Any]:
        """The part of a plan file."""
        return {
            "foundBy": self.found_by,
            "round": self.found_in_round,
            "rounds": self.num_rounds,
            "learning": {"schedules": self.num_drawn, "cost": self.drawn_cost},
            "search": {"schedules": self.num_searched, "cost": self.searched_cost},
        }

    @classmethod
    def of(cls, learned: Learned, samples: float) -> Contributions:
        """Convert a method's record to dollars."""

        def cost(rate: float) -> float | None:
            return cost_of_training(samples, 1.0, rate) if math.isfinite(rate) else None

        numbers = (learned.num_rounds, learned.num_drawn, learned.num_searched)
        costs = (cost(learned.drawn_rate), cost(learned.searched_rate))
        return cls(learned.found_by, learned.found_in_round, *numbers, *costs)


@dataclass(frozen=True)
class Plan:
    """A schedule with its provision, its price and its optimality gap."""

    method: str
    stages: tuple[PlanStage, ...]
    parameter_server: Servers
    throughput: float  # samples per second, predicted
    cost_per_hour: float  # dollars
    cost: float  # dollars for all samples, with what interruptions are expected to cost
    lower_bound: float  # dollars; no plan that meets floor, limits and ceiling costs less
    gap: float  # (cost - lower bound) / cost
    optimal: bool
    binding_limits: tuple[str, ...] = ()  # pools of which one more pod would make the optimum cheaper
    shadow_prices: dict[str, float] = field(default_factory=dict)  # dollars per hour saved by one more unit
    limits_examined: bool = True  # false: time ran out, and further limits may bind
    robust: Robustness | None = None  # if set, throughput and cost hold in spite of profile errors
    machine: Machine | None = None  # if set, throughput and cost are those that this machine's cores allow
    learned: Contributions | None = None  # if a method with a policy found it
    lost_time: float = 0.0  # seconds that interruptions are expected to cost per second of training
    precision: Selection | None = None  # if it was chosen among several
    dense_exchange: Selection | None = None  # of stages on CPU pools, if it was chosen
    seconds: float = 0.0  # planning time
    feasible: bool = field(default=True, init=False)

    def to_json(self) -> dict[str, Any]:
        """The content of a plan file."""
        document = {
            "version": VERSION,
            "method": self.method,
            "feasible": True,
            "seconds": self.seconds,
            "stages": [stage.to_json() for stage in self.stages],
            "parameterServer": self.parameter_server.to_json(),
            "throughput": self.throughput,
            "costPerHour": self.cost_per_hour,
            "cost": self.cost,
            "lowerBound": self.lower_bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "bindingLimits": list(self.binding_limits),
            "shadowPrices": dict(self.shadow_prices),
        }
        if self.lost_time:
            document["lostTime"] = self.lost_time
        if not self.limits_examined:
            document["limitsExamined"] = False
        if self.precision is not None:
            document |= self.precision.to_json("precision", "precisions")
        if self.dense_exchange is not None:
            document |= self.dense_exchange.to_json("denseExchange", "denseExchanges")
        optional = {"robust": self.robust, "machine": self.machine, "learned": self.learned}
        return document | {name: part.to_json() for name, part in optional.items() if part is not None}


@dataclass(frozen=True)
class Robustness:
    """Guarantees of a plan if the profile is wrong (`robust`)."""

    error: float  # sigma of the logarithm of a measured time, about its relative error
    confidence: float  # probability that the plan keeps the floor
    expected_throughput: float  # samples per second if the profile is right

    def to_json(self) -> dict[str, Any]:
        """The part of a plan file."""
        return {
            "error": self.error,
            "confidence": self.confidence,
            "expectedThroughput": self.expected_throughput,
        }


@dataclass(frozen=True)
class Infeasible:
    """No plan meets the floor (or stays below the ceiling)."""

    method: str
    reason: str  # one of the four reasons above
    best_throughput: float  # reachable samples per second; 0 if the limits allow no plan
    message: str
    limiting_pools: tuple[str, ...] = ()  # a higher limit (or more memory) of any one of these would allow more
    seconds: float = 0.0
    feasible: bool = field(default=False, init=False)

    def to_json(self) -> dict[str, Any]:
        """The refusal as printed by `heterps plan --output json`."""
        return {
            "version": VERSION,
            "method": self.method,
            "feasible": False,
            "seconds": self.seconds,
            "reason": self.reason,
            "bestThroughput": self.best_throughput,
            "limitingPools": list(self.limiting_pools),
            "message": self.message,
        }


def choice_of(segments: Segments, stages: list[Stage], pods: list[int], server_pods: int) -> Choice:
    """Compute throughput and price of stages with given pods (equations (4), (5) and (7) of [HeterPS])."""
    segments = segments.for_servers(server_pods)
    slowest = max(segments.stage_time(*stage, n) for stage, n in zip(stages, pods, strict=True))
    throughput = min(1 / slowest, segments.server_throughput(server_pods))
    prices = [float(segments.price_T[t]) for _, _, t in stages] + [float(segments.price_T[segments.server_pool])]
    return Choice(tuple(stages), tuple(pods), server_pods, throughput, price_per_hour(prices, [*pods, server_pods]))


def build_plan(
    problem: Problem,
    segments: Segments,
    choice: Choice,
    *,
    method: str,
    lower_rate: float,
    shadow: ShadowPrices | None = None,
    ps_pool: str | None = None,
    ps_replicas: int = 0,
) -> Plan:
    """Convert a choice to a plan with names and dollars.

    Args:
        problem: the problem.
        segments: its segments.
        choice: the stages and their pods.
        method: method that found it.
        lower_rate: lower bound of the cost, dollars per hour and (sample per second).
        shadow: what one more unit of each pool saves, if it is of interest.
        ps_pool: pool of the parameter servers if the problem does not charge for them; the first CPU pool by default.
        ps_replicas: number of parameter-server processes; 0: one per charged pod, or 1.
    """
    segments = segments.for_servers(choice.server_pods)
    exact = choice_of(segments, list(choice.stages), list(choice.pods), choice.server_pods)
    stages = []
    for i, ((first, last, pool), pods) in enumerate(zip(exact.stages, exact.pods, strict=True)):
        stages.append(
            PlanStage(
                name=f"stage-{i}",
                pool=problem.pools[pool].name,
                first_layer=first,
                last_layer=last,
                layers=tuple(layer.name for layer in problem.layers[first : last + 1]),
                units=pods * problem.pools[pool].units_per_pod,
                pods=pods,
                throughput=1 / segments.stage_time(first, last, pool, pods),
                dense_exchange=problem.pools[pool].dense_exchange,
            )
        )
    lost = lost_time(segments, exact)
    cost = cost_of_training(problem.samples, exact.throughput, exact.price) * (1 + lost)
    lower = min(cost, cost_of_training(problem.samples, 1.0, lower_rate))
    gap = (cost - lower) / cost if cost > 0 else 0.0
    if gap <= 2 * _PROVEN:
        gap, lower = 0.0, cost
    savings = np.zeros(segments.num_pools) if shadow is None else shadow.saving_T
    prices = {pool.name: float(saving) for pool, saving in zip(problem.pools, savings, strict=True) if saving > 0}
    assert exact.throughput >= problem.min_samples_per_second * (1 - 2 * FLOOR_TOLERANCE), "a plan below the floor"
    return Plan(
        method=method,
        stages=tuple(stages),
        parameter_server=_servers(problem, choice.server_pods, ps_pool, ps_replicas),
        throughput=exact.throughput,
        cost_per_hour=exact.price,
        cost=cost,
        lost_time=lost,
        lower_bound=lower,
        gap=gap,
        optimal=gap == 0.0,
        binding_limits=tuple(prices),
        shadow_prices=prices,
        limits_examined=shadow is None or shadow.complete,
    )


def _servers(problem: Problem, charged_pods: int, pool: str | None, replicas: int) -> Servers:
    """Return the parameter servers of a plan; the runtime needs at least one, charged or not."""
    if problem.parameter_server is not None:
        name = problem.parameter_server.pool
        units = charged_pods * problem.pools[problem.pool_index(name)].units_per_pod
        # More processes than charged pods would use units that are not paid for.
        return Servers(name, min(replicas, charged_pods) if replicas else charged_pods, units)
    if pool is None:
        cpus = [p.name for p in problem.pools if p.device_type == "CPU"]
        pool = cpus[0] if cpus else problem.pools[0].name
    count = max(replicas, 1)
    return Servers(pool, count, count * problem.pools[problem.pool_index(pool)].units_per_pod)


def describe_bytes(value: float) -> str:
    """Format an amount of memory for a message."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} bytes"


def describe_rate(value: float) -> str:
    """Format a throughput for a message."""
    return f"{value:,.0f} samples/s" if value >= 100 or math.isclose(value, 0) else f"{value:,.3g} samples/s"
