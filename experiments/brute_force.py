"""Brute force against the learned scheduler and the exact method: table 2 of the paper.

CTRDNN with 8 to 20 layers, on 2 and on 4 pools. For too many schedules the time is estimated from the time per schedule
of the largest enumeration with the same number of pools.
"""

from __future__ import annotations

import time

from experiments.framework import Cell, Experiment, Row, Settings
from experiments.trials import SEEDLESS, schedule_text, solved, trial
from heterps_planner.methods import METHODS
from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.search.points import Choice

__all__ = ["EXPERIMENT", "MODELS"]

MODELS = {8: "ctrdnn-8", 12: "ctrdnn-12", 16: "ctrdnn", 20: "ctrdnn-20"}
COMPARED = ("optimal", "rl-lstm")
MOST_SCHEDULES = 2**20  # enumerate up to this number; half a minute
QUICK_SCHEDULES = 2**8


def _cells(settings: Settings) -> list[Cell]:
    cells: list[Cell] = []
    for layers, model in MODELS.items():
        if settings.quick and layers > 8:
            continue
        for num_pools in (2, 4):
            common = {"model": model, "layers": layers, "pools": num_pools, "limits": "loose"}
            if num_pools**layers <= (QUICK_SCHEDULES if settings.quick else MOST_SCHEDULES):
                cells.append(common | {"method": "brute-force", "seed": 0})
            for method in COMPARED:
                if method in METHODS:
                    seeds = 1 if method in SEEDLESS else settings.seeds
                    budget = 0.5 if settings.quick else 20.0
                    cells += [common | {"method": method, "seed": seed, "budget": budget} for seed in range(seeds)]
    return cells


def _run(cell: Cell) -> list[Row]:
    schedules = cell["pools"] ** cell["layers"]
    if cell["method"] != "brute-force":
        return [row | {"schedules": schedules} for row in trial(cell)]
    problem, segments, optimum, _ = solved(cell)
    began = time.process_time()
    found = enumerate_schedules(segments)
    seconds = time.process_time() - began
    pods = tuple(int(n) for n in found.pods)
    choice = Choice(tuple(found.stages), pods[: len(found.stages)], pods[-1], 0.0, 0.0) if found.stages else None
    return [
        dict(cell)
        | {
            "floor": problem.min_samples_per_second,
            "status": "ok" if choice else "infeasible",
            "seconds": seconds,
            "gap_percent": 100 * (found.rate / optimum.rate - 1),
            "plan": schedule_text(choice),
            "schedules": schedules,
        }
    ]


def _seconds(cell: Cell) -> float:
    if cell["method"] == "brute-force":
        return float(cell["pools"] ** cell["layers"]) * 2.5e-5 + 0.1
    return 4.0 if cell["method"] == "rl-lstm" else 0.1


EXPERIMENT = Experiment(
    name="brute-force",
    subject="brute force, the learned scheduler and the exact method: same plans, other times",
    cells=_cells,
    run=_run,
    seconds=_seconds,
    sources=("experiments/trials.py", "experiments/brute_force.py"),
)
