"""Beyond the paper: several jobs on the same pools, and prices that change during training."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from experiments.clusters import cluster
from experiments.framework import Cell, Experiment, Row, Settings
from heterps_planner.errors import DeadlineError
from heterps_planner.model.problem import Problem
from heterps_planner.scenarios.joint import JointPlan, plan_together
from heterps_planner.scenarios.market import Followed, Tick, follow

__all__ = ["JOBS", "MARKET", "price_ticks"]

_JOINT_SECONDS = 20.0
_HOURS = 24


def _job_cells(settings: Settings) -> list[Cell]:
    groups = [["ctrdnn", "matchnet"]] if settings.quick else [["ctrdnn", "matchnet"], ["ctrdnn", "matchnet", "2emb"]]
    shares = (0.5,) if settings.quick else (0.5, 0.375, 0.25, 0.1875)
    return [
        {"jobs": "+".join(group), "pools": 4, "share": share, "cluster": seed}
        for group in groups
        for share in shares
        for seed in range(1 if settings.quick else settings.seeds)
    ]


def _run_jobs(cell: Cell) -> list[Row]:
    """Plan jobs together on a share of the loose limits, and compare with the best order of planning one by one."""
    problems = []
    for model in cell["jobs"].split("+"):
        problem = cluster(model, cell["pools"], seed=cell["cluster"])
        pools = (replace(pool, max_units=max(1, int(pool.max_units * cell["share"]))) for pool in problem.pools)
        problems.append(replace(problem, pools=tuple(pools)))
    began = time.process_time()
    try:
        found = plan_together(problems, should_stop=lambda: time.process_time() - began > _JOINT_SECONDS)
    except DeadlineError:
        return [dict(cell) | {"seconds": time.process_time() - began, "status": "undecided"}]
    row: Row = dict(cell) | {"seconds": time.process_time() - began}
    if not isinstance(found, JointPlan):
        return [row | {"status": "infeasible"}]
    return [
        row
        | {
            "status": "ok",
            "cost": found.cost,
            "gap_percent": 100 * found.gap,
            "alone_cost": found.alone_cost,
            "sequential_cost": found.sequential_cost,
        }
    ]


def price_ticks(problem: Problem, seed: int, hours: int) -> list[Tick]:
    """Hourly prices of all cards: a mean-reverting random walk of the logarithm around the list price.

    Every few hours the cards of one pool disappear for an hour, as on a spot market.
    """
    generator = np.random.default_rng([seed, 7])
    cards = [pool for pool in problem.pools if pool.device_type != "CPU"]
    level = np.zeros(len(cards))
    ticks = []
    gone: int | None = None
    for hour in range(hours):
        level = 0.8 * level + 0.25 * generator.standard_normal(len(cards))
        settings: list[tuple[str, float | int]] = [
            (f"{pool.name}.pricePerUnitHour", round(pool.price_per_unit_hour * float(np.exp(change)), 4))
            for pool, change in zip(cards, level, strict=True)
        ]
        if gone is not None:
            settings.append((f"{cards[gone].name}.maxUnits", cards[gone].max_units))
            gone = None
        elif hour and generator.random() < 0.15:
            gone = int(generator.integers(len(cards)))
            settings.append((f"{cards[gone].name}.maxUnits", 0))
        ticks.append(Tick(3600.0 * hour, tuple(settings)))
    return ticks


def _market_cells(settings: Settings) -> list[Cell]:
    models = ("nce",) if settings.quick else ("matchnet", "ctrdnn", "2emb")
    counts = (4,) if settings.quick else (4, 16)
    return [
        {"model": model, "pools": t, "seed": seed, "hours": 4 if settings.quick else _HOURS}
        for model in models
        for t in counts
        for seed in range(settings.seeds)
    ]


def _run_market(cell: Cell) -> list[Row]:
    problem = cluster(cell["model"], cell["pools"])
    # As many samples as the floor allows in this time.
    problem = replace(problem, samples=problem.min_samples_per_second * 3600.0 * cell["hours"])
    ticks = price_ticks(problem, cell["seed"], cell["hours"])
    outcomes: dict[str, Followed] = {
        name: follow(problem, ticks, moves=moves, restart_seconds=60, pod_start_seconds=120, horizon_seconds=4 * 3600)
        for name, moves in (("follow", True), ("stay", False))
    }
    row: Row = dict(cell)
    for name, outcome in outcomes.items():
        planning = [step.planning_seconds for step in outcome.steps[1:]]
        row |= {
            f"{name}_cost_per_million": 1e6 * outcome.cost / outcome.samples,
            f"{name}_changes": outcome.num_changes,
            f"{name}_interruptions": outcome.num_interruptions,
            f"{name}_planning_milliseconds": 1000 * float(np.median(planning)) if planning else None,
        }
    saved = 1 - outcomes["follow"].cost / outcomes["follow"].samples * outcomes["stay"].samples / outcomes["stay"].cost
    return [row | {"saved_percent": 100 * saved}]


JOBS = Experiment(
    name="joint-jobs",
    subject="several jobs on the same pools: planned together, one after the other, and each alone",
    cells=_job_cells,
    run=_run_jobs,
    seconds=lambda cell: 1.0,
    sources=("experiments/sharing.py",),
)
MARKET = Experiment(
    name="market",
    subject="prices that change every hour: following them against staying",
    cells=_market_cells,
    run=_run_market,
    seconds=lambda cell: 0.15 * cell["hours"],
    sources=("experiments/sharing.py",),
)
