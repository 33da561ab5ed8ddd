"""The cost of profile errors: plans made from wrong times, run with the true times.

A plan's profile is the true one times lognormal errors, independent for every layer and pool. Three plans are compared
with the optimum of the true problem: the unchanged plan; its stages with the units that the true times require, as the
control loop does after measuring; and a plan with margins for exactly this error.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from experiments.framework import Cell, Experiment, Row, Settings
from experiments.trials import problem_of
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.problem import LayerTimes, Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.robust import robust_segments
from heterps_planner.search.points import Choice
from heterps_planner.search.provisioning import provision, schedule_of
from heterps_planner.search.sweep import minimise

__all__ = ["ERRORS", "EXPERIMENT", "perturbed"]

ERRORS = (0.02, 0.05, 0.1, 0.2, 0.4)  # sigma of the logarithm
WORLDS = 10  # per seed and cell
QUICK_WORLDS = 3


def perturbed(problem: Problem, error: float, generator: np.random.Generator) -> Problem:
    """Return the problem with every time multiplied by its own lognormal error."""

    def wrong(times: LayerTimes) -> LayerTimes:
        compute, transfer = np.exp(error * generator.standard_normal(2)).tolist()
        return replace(
            times,
            compute_seconds=times.compute_seconds * compute,
            compute_fixed_seconds=times.compute_fixed_seconds * compute,
            transfer_seconds=times.transfer_seconds * transfer,
            transfer_fixed_seconds=times.transfer_fixed_seconds * transfer,
        )

    layers = tuple(
        replace(layer, pools={pool: wrong(times) for pool, times in layer.pools.items()}) for layer in problem.layers
    )
    return replace(problem, layers=layers)


def _cells(settings: Settings) -> list[Cell]:
    models, counts = (("ctrdnn", "matchnet"), (2, 16)) if not settings.quick else (("nce",), (2,))
    errors = ERRORS if not settings.quick else (0.1,)
    worlds = QUICK_WORLDS if settings.quick else WORLDS
    return [
        {"model": model, "pools": t, "limits": "loose", "error": error, "seed": seed, "worlds": worlds}
        for model in models
        for t in counts
        for error in errors
        for seed in range(settings.seeds)
    ]


def _run(cell: Cell) -> list[Row]:
    truth = problem_of(cell)
    true_segments = build_segments(truth)
    optimum = minimise(true_segments)
    generator = np.random.default_rng([cell["seed"], round(cell["error"] * 1000), cell["pools"]])
    rows: list[Row] = []
    for world in range(cell["worlds"]):
        measured = perturbed(truth, cell["error"], generator)
        segments = build_segments(measured)
        plain = minimise(segments).choice
        careful = minimise(robust_segments(measured, segments, cell["error"])).choice
        row: Row = {name: value for name, value in cell.items() if name != "worlds"}
        row["world"] = world
        for name, choice in (("plain", plain), ("robust", careful)):
            row |= {f"{name}_{key}": value for key, value in _outcome(choice, true_segments, optimum.rate).items()}
        if plain is not None:
            again = provision(schedule_of(true_segments, list(plain.stages), [None] * len(plain.stages)), true_segments)
            feasible = math.isfinite(again.rate[0])
            row["reprovisioned_feasible"] = feasible
            row["reprovisioned_regret_percent"] = 100 * (again.rate[0] / optimum.rate - 1) if feasible else None
        rows.append(row)
    return rows


def _outcome(choice: Choice | None, truth: Segments, optimum_rate: float) -> Row:
    """Return a plan's result in the true problem, with unchanged units."""
    if choice is None:
        return {"planned": False, "keeps_floor": None, "extra_percent": None}
    without_floor = replace(truth, floor=0.0)
    found = provision(schedule_of(without_floor, list(choice.stages), list(choice.pods)), without_floor)
    if not math.isfinite(found.rate[0]):
        return {"planned": True, "keeps_floor": False, "extra_percent": None}
    pools = [pool for _, _, pool in choice.stages] + [truth.server_pool]
    throughput = float(truth.price_T[pools] @ found.pods[0]) / float(found.rate[0])
    return {
        "planned": True,
        "keeps_floor": throughput >= truth.floor * (1 - FLOOR_TOLERANCE),
        "throughput_of_floor": throughput / truth.floor if truth.floor else math.nan,
        "extra_percent": 100 * (float(found.rate[0]) / optimum_rate - 1),
    }


EXPERIMENT = Experiment(
    name="robustness",
    subject="what an error of the profile costs, with and without margins, before and after provisioning again",
    cells=_cells,
    run=_run,
    seconds=lambda cell: cell["worlds"] * (0.1 if cell["pools"] == 2 else 0.3),
    sources=("experiments/robustness.py", "experiments/trials.py"),
)
