"""Units of each stage by four rules on the same schedules: figure 4 of the paper.

The schedules are those that RL-LSTM finds for CTRDNN, as in the paper, one per seed, at several floors.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.clusters import cluster
from experiments.framework import Cell, Experiment, Row, Settings
from experiments.rules import RULES
from experiments.trials import schedule_text
from heterps_planner.methods import METHODS, Task
from heterps_planner.model.cost_model import cost_of_training
from heterps_planner.model.segments import build_segments

__all__ = ["EXPERIMENT", "FLOOR_FACTORS"]

FLOOR_FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0)  # of the floor of the other experiments


def _cells(settings: Settings) -> list[Cell]:
    factors = (0.5, 1.0) if settings.quick else FLOOR_FACTORS
    scheduler = "genetic" if settings.quick else "rl-lstm"  # the faster one
    return [
        {"model": "ctrdnn", "pools": 2, "floor_factor": factor, "scheduler": scheduler, "seed": seed}
        for factor in factors
        for seed in range(settings.seeds)
    ]


def _run(cell: Cell) -> list[Row]:
    problem = cluster(cell["model"], cell["pools"])
    problem = replace(problem, min_samples_per_second=problem.min_samples_per_second * cell["floor_factor"])
    segments = build_segments(problem)
    found = METHODS[cell["scheduler"]](Task(problem, segments, cell["seed"])).choice
    rows: list[Row] = []
    best = None
    for rule, provide in RULES.items():
        row: Row = dict(cell) | {"rule": rule, "status": "infeasible"}
        choice = provide(problem, segments, list(found.stages)) if found else None
        if choice is not None:
            cost = cost_of_training(problem.samples, choice.throughput, choice.price)
            best = cost if rule == "exact" else best
            row |= {
                "status": "ok",
                "cost": cost,
                "throughput": choice.throughput,
                "saved_by_exact": 1 - best / cost if best is not None else None,
                "plan": schedule_text(choice),
                "servers": choice.server_pods,
            }
        rows.append(row)
    return rows


EXPERIMENT = Experiment(
    name="provisioning",
    subject="the number of units of each stage: exact, by the paper's rule, and by fixed ratios",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 4.0 if cell["scheduler"] == "rl-lstm" else 0.5,
    sources=("experiments/provisioning.py", "experiments/trials.py"),
)
