"""Clusters of 2 to 64 pools for the four models of the paper: the problems that all experiments share.

T counts all pools, the CPU pool included (erratum 19). Two pools are the paper's cluster: 480 cores and 32 V100. Each
further pool is another generation of accelerators; when the table of devices is used up, they come again as what a
cloud sells them as: spot capacity and other regions, each with a price and a limit of its own. A price alone makes no
new type (erratum 21): without limits the cheapest of equal cards would win all.

Limits are "loose" (32 cards of each device, as in the paper, 8 to 24 in further regions) or "tight": the pools that the
cheapest plan uses have too few units for it, and so have those to which the next cheapest plans turn. The floor is the
profile's, the same for all T.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np

from experiments.stand_in import DEVICES, add_pool, load_profile
from heterps_planner.cost_model import build_segments
from heterps_planner.plan import Infeasible, Plan
from heterps_planner.points import Choice
from heterps_planner.problem import Problem
from heterps_planner.sweep import cheapest_at, minimise

__all__ = ["MODELS", "PAPER_MODELS", "POOL_COUNTS", "Limits", "cluster", "fits", "price_variants", "unlimited"]

Limits = Literal["loose", "tight"]

PAPER_MODELS = ("matchnet", "ctrdnn", "2emb", "nce")  # the four of section 6.2
MODELS = (*PAPER_MODELS, "ctrdnn-8", "ctrdnn-12", "ctrdnn-20", "ctrdnn1", "ctrdnn2")
POOL_COUNTS = (2, 4, 16, 32, 64)
MAX_POOLS = 64
CARDS = 32  # 4 servers of 8 cards
# In which order generations join: the first few differ most, so that small T has real choices.
_PREFERRED = ("t4", "a100-40", "p100", "l4", "h100")
# Tight limits: a pool may give at most this share of what the cheapest plan wants of it, the least share that still
# reaches the floor; then the pools of the plan that is cheapest now are cut in the same way, each pool once.
_SHARES = (0.5, 0.65, 0.8, 0.9)
_ROUNDS = 4
_UNLIMITED = 10**6


def cluster(model: str, num_pools: int, *, limits: Limits = "loose", seed: int = 0) -> Problem:
    """Return the planning problem of a model on a cluster.

    Args:
        model: one of MODELS.
        num_pools: T, all pools, 2..64; the first is `cpu`, the second `v100`.
        limits: see the module.
        seed: draws prices and limits of the third and further pools. Two pools are the same for every seed.

    Raises:
        ValueError: an argument is out of range; the message says which are possible.
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


def price_variants(model: str, num_pools: int, *, limits: Limits = "loose", seed: int = 0) -> Problem:
    """Return the paper's way to many types: CPU cores, and V100 cards at num_pools - 1 prices (section 6.2).

    The cheapest price is half, the dearest twice the paper's; 8 cards at each price, for without limits all but the
    cheapest would be idle (erratum 21).

    Raises:
        ValueError: an argument is out of range.
    """
    if not 2 <= num_pools <= MAX_POOLS:
        raise ValueError(f"num_pools must be 2..{MAX_POOLS}, is {num_pools}")
    base = load_profile(model)
    if num_pools == 2:
        return base if limits == "loose" else _tightened(base)
    price = base.pools[1].price_per_unit_hour
    generator = np.random.default_rng([seed, num_pools])
    factors = np.exp(generator.permutation(np.linspace(math.log(0.5), math.log(2.0), num_pools - 1)))
    problem = replace(base, pools=(base.pools[0],), layers=base.layers)
    first = replace(base.pools[1], price_per_unit_hour=round(price * float(factors[0]), 3), max_units=8)
    problem = replace(base, pools=(base.pools[0], first))
    for i, factor in enumerate(factors[1:], start=2):
        problem = add_pool(
            problem, DEVICES["v100"], price=round(price * float(factor), 3), max_units=8, name=f"v100-{i}"
        )
    return problem if limits == "loose" else _tightened(problem)


def unlimited(problem: Problem) -> Problem:
    """Return the problem with as many units of every pool as anybody could want."""
    return replace(problem, pools=tuple(replace(pool, max_units=_UNLIMITED) for pool in problem.pools))


def _devices(problem: Problem, num_pools: int, seed: int) -> Problem:
    """Add devices, then their spot and regional variants, until there are num_pools pools."""
    names = [name for name in (*_PREFERRED, *DEVICES) if name in DEVICES and name != "v100"]
    names = list(dict.fromkeys(names))
    generator = np.random.default_rng([seed, 2])
    for i in range(num_pools - 2):
        round_number, position = divmod(i, len(names))
        name = names[position]
        spread = float(np.exp(generator.uniform(-0.15, 0.15)))
        region_factor = float(generator.uniform(0.35, 1.3))
        cards = 8 * int(generator.integers(1, 4))
        if seed == 0:
            spread = 1.0
        problem = add_pool(
            problem,
            DEVICES[name],
            price=None,
            max_units=CARDS if round_number == 0 else cards,
            name=name if round_number == 0 else f"{name}-region{round_number}",
        )
        pool = problem.pools[-1]
        factor = spread if round_number == 0 else region_factor
        pool = replace(pool, price_per_unit_hour=round(pool.price_per_unit_hour * factor, 4))
        problem = replace(problem, pools=(*problem.pools[:-1], pool))
    return problem


def _tightened(problem: Problem) -> Problem:
    """Cut the pools that the cheapest plan uses below what it uses, then those of the plan that is cheapest now."""
    cut: set[int] = set()
    for _ in range(_ROUNDS):
        choice = minimise(build_segments(problem)).choice
        if choice is None:
            break
        # A single unit is not cut: that would only take the pool away.
        wanted = {pool: n for pool, n in _units(problem, choice).items() if pool not in cut and n > 1}
        if not wanted:
            break
        for pool, units in wanted.items():
            cut.add(pool)
            candidates = (_with_limit(problem, pool, max(1, math.floor(units * share))) for share in _SHARES)
            problem = next((candidate for candidate in candidates if _reaches_floor(candidate)), problem)
    return problem


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
    """Whether a plan keeps the limits of a problem, which may not be the one it was made for."""
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
