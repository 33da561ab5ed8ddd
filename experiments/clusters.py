"""Clusters of 2 to 64 pools for the four models of the paper: the problems of all experiments.

T counts all pools, the CPU pool included. Two pools are the paper's cluster: 480 cores and 32 V100. Each further pool
is another generation of accelerators; after the last device, they repeat as other offers of a cloud: spot capacity and
other regions, each with its own price and limit. A price alone does not make a new type (erratum 21): without limits
the cheapest of equal cards would always win.

Limits are "loose" (4 servers of 8 cards or 10 of 48 cores of each device, as in the paper; 1 to 3 servers in further
regions) or "tight": pools of the cheapest plan have too few units for it, and so have the pools of the next cheapest
plans, until several limits bind. The floor is the profile's, the same for all T.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np

from experiments.devices import CPU_CORES, DEVICES, add_pool, load_profile
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.search.limits import shadow_prices
from heterps_planner.search.points import Choice
from heterps_planner.search.sweep import cheapest_at, minimise

__all__ = [
    "FLOOR_OF_CLUSTER",
    "FLOOR_OF_PROFILE",
    "MODELS",
    "PAPER_MODELS",
    "POOL_COUNTS",
    "Limits",
    "cluster",
    "fits",
    "paper_case",
    "unlimited",
]

Limits = Literal["loose", "tight"]

PAPER_MODELS = ("matchnet", "ctrdnn", "2emb", "nce")  # the four of section 6.2
MODELS = (*PAPER_MODELS, "ctrdnn-8", "ctrdnn-12", "ctrdnn-20", "ctrdnn1", "ctrdnn2")
POOL_COUNTS = (2, 4, 16, 32, 64)
MAX_POOLS = 64
# In cards, in cores: the paper's servers.
_UNITS_PER_SERVER = (8, 48)
_LOOSE_SERVERS = (4, 10)
# Order in which devices join: the first few differ most, so that small T has real choices.
_PREFERRED = ("t4", "a100-40", "graviton3", "l4", "p100", "h100")
_PAPERS = ("xeon-6271c", "v100")  # in every cluster
# Tight limits: the first pool offers at most this share of the cheapest plan's units, the least share that still
# reaches the floor. Then pools of the current cheapest plan lose one unit more than it leaves: they bind.
_SHARES = (0.5, 0.65, 0.8, 0.9)
_ROUNDS = 8
_ENOUGH = 3  # binding limits
_UNLIMITED = 10**6
#: Floor of a profile, as a part of what the whole cluster reaches.
FLOOR_OF_CLUSTER = 0.5
#: Floor of the paper's own cases, as a part of the profile's floor, the same for all models: 40 % of what the whole
#: cluster reaches. The paper gives no floors. All 480 cores reach 37 to 58 % of it.
FLOOR_OF_PROFILE = 0.8


def cluster(model: str, num_pools: int, *, limits: Limits = "loose", seed: int = 0) -> Problem:
    """Return the planning problem of a model on a cluster.

    Args:
        model: one of MODELS.
        num_pools: T, all pools, 2..64; the first is `cpu`, the second `v100`.
        limits: see the module docstring.
        seed: draws prices and limits of the third and further pools. Two pools are the same for every seed.

    Raises:
        ValueError: an argument is out of range; the message names the valid ones.
    """
    if model not in MODELS:
        raise ValueError(f"no model {model!r}; there are {', '.join(MODELS)}")
    if not 2 <= num_pools <= MAX_POOLS:
        raise ValueError(f"num_pools must be 2..{MAX_POOLS}, is {num_pools}")
    if limits not in ("loose", "tight"):
        raise ValueError(f"limits must be 'loose' or 'tight', is {limits!r}")
    return _cluster(model, num_pools, limits, seed)


@functools.lru_cache(maxsize=256)
def _cluster(model: str, num_pools: int, limits: Limits, seed: int) -> Problem:
    loose = _devices(load_profile(model), num_pools, seed)
    return loose if limits == "loose" else _tightened(loose)


def paper_case(model: str, num_pools: int, *, limits: Limits = "loose", seed: int = 0) -> Problem:
    """Return the paper's own cases: CPU cores, and V100 cards at num_pools - 1 prices (section 6.2).

    The floor follows one rule for all models, `FLOOR_OF_PROFILE`. The lowest price is half, the highest twice the
    paper's. Cheaper cards are fewer: one at the lowest price, eight at the highest, as without limits all except the
    cheapest would be idle (erratum 21).

    Args:
        model: one of MODELS.
        num_pools: T, all pools, 2..64; two are the paper's cluster with its 32 cards.
        limits: see the module docstring.
        seed: draws the order of the prices. Two pools are the same for every seed.

    Raises:
        ValueError: an argument is out of range.
    """
    problem = cluster(model, 2)
    if not 2 <= num_pools <= MAX_POOLS:
        raise ValueError(f"num_pools must be 2..{MAX_POOLS}, is {num_pools}")
    problem = replace(problem, min_samples_per_second=FLOOR_OF_PROFILE * problem.min_samples_per_second)
    if num_pools > 2:
        card = problem.pools[1].price_per_unit_hour
        order = np.random.default_rng([seed, num_pools]).permutation(np.linspace(0.0, 1.0, num_pools - 1)).tolist()
        offers = [(round(card * 0.5 * 4.0**place, 3), 1 + round(7 * place)) for place in order]
        (price, units), *others = offers
        first = replace(problem.pools[1], price_per_unit_hour=price, max_units=units)
        problem = replace(problem, pools=(problem.pools[0], first))
        for i, (price, units) in enumerate(others, start=2):
            problem = add_pool(problem, DEVICES["v100"], price=price, max_units=units, name=f"v100-{i}")
    return problem if limits == "loose" else _tightened(problem)


def unlimited(problem: Problem) -> Problem:
    """Return the problem with effectively unlimited units of every pool."""
    return replace(problem, pools=tuple(replace(pool, max_units=_UNLIMITED) for pool in problem.pools))


def _devices(problem: Problem, num_pools: int, seed: int) -> Problem:
    """Add devices, then their spot and regional offers, until there are num_pools pools."""
    catalogue = {**CPU_CORES, **DEVICES}
    names = [name for name in dict.fromkeys((*_PREFERRED, *catalogue)) if name not in _PAPERS]
    generator = np.random.default_rng([seed, 2])
    for i in range(num_pools - len(problem.pools)):
        region, position = divmod(i, len(names))
        device = catalogue[names[position]]
        # Drawn for every pool, so that a smaller cluster is a prefix of a larger one.
        change, discount = math.exp(generator.uniform(-0.15, 0.15)), generator.uniform(0.35, 1.3)
        servers = int(generator.integers(1, 4))
        units = _UNITS_PER_SERVER[device.device_type == "CPU"]
        factor = discount if region else change if seed else 1.0
        problem = add_pool(
            problem,
            device,
            price=round(device.price_per_hour * factor, 4),
            max_units=units * (servers if region else _LOOSE_SERVERS[device.device_type == "CPU"]),
            name=f"{device.name}-region{region}" if region else None,
        )
    return problem


def _tightened(problem: Problem) -> Problem:
    """Cut pools of the cheapest plan below its units, one after the other, until several limits bind."""
    cut: set[int] = set()
    best, most_binding = problem, 0
    for _ in range(_ROUNDS):
        segments = build_segments(problem)
        found = minimise(segments)
        if found.choice is None:
            break
        if cut:
            binding = int((shadow_prices(segments, found.choice, found.rate).saving_T > 0).sum())
            if binding > most_binding:
                best, most_binding = problem, binding
            if binding >= _ENOUGH:
                break
        tightened = _cut_one(problem, found.choice, cut)
        if tightened is None:
            break
        problem = tightened
        best = problem if not most_binding else best
    return best


def _cut_one(problem: Problem, choice: Choice, cut: set[int]) -> Problem | None:
    """Cut the pool with the highest spending of those that can be cut; `cut` holds those cut before."""
    used = _units(problem, choice)
    # A single unit is not cut: that would remove the pool.
    open_pools = [pool for pool, units in used.items() if units > 1 and pool not in cut]
    for pool in sorted(open_pools, key=lambda t: -used[t] * problem.pools[t].price_per_unit_hour):
        cut.add(pool)
        deep = [math.floor(used[pool] * share) for share in _SHARES] if len(cut) <= 1 else []
        for units in (*deep, used[pool] - 1):
            candidate = _with_limit(problem, pool, max(1, units))
            if _reaches_floor(candidate):
                return candidate
    return None


def _units(problem: Problem, choice: Choice) -> dict[int, int]:
    """Units by pool that a plan uses, parameter servers included."""
    used: Counter[int] = Counter()
    for (_, _, pool), pods in zip(choice.stages, choice.pods, strict=True):
        used[pool] += pods * problem.pools[pool].units_per_pod
    if problem.parameter_server is not None:
        pool = problem.pool_index(problem.parameter_server.pool)
        used[pool] += choice.server_pods * problem.pools[pool].units_per_pod
    return dict(used)


def _with_limit(problem: Problem, pool: int, units: int) -> Problem:
    pools = list(problem.pools)
    pools[pool] = replace(pools[pool], max_units=min(units, pools[pool].max_units))
    return replace(problem, pools=tuple(pools))


def fits(problem: Problem, found: Plan | Infeasible) -> bool:
    """Whether a plan keeps the limits of a problem, possibly not its own."""
    if not isinstance(found, Plan):
        return False
    used = Counter({stage.pool: 0 for stage in found.stages})
    for stage in found.stages:
        used[stage.pool] += stage.units
    if problem.parameter_server is not None:
        used[found.parameter_server.pool] += found.parameter_server.units
    return all(used[pool.name] <= pool.max_units for pool in problem.pools)


def _reaches_floor(problem: Problem) -> bool:
    return cheapest_at(build_segments(problem), problem.min_samples_per_second).choice is not None
