"""Batch balancing among the workers of a stage: rows from the scenarios of `balancing`, and BalanceNet's rule alone."""

from __future__ import annotations

from experiments.balancing import balancenet_rule, balancing_regret
from experiments.framework import Cell, Experiment, Row, Settings

__all__ = ["EXPERIMENT", "RULE"]

_SOURCES = ("experiments/balancing.py", "experiments/batches.py", "experiments/simulator.py")


def _cells(settings: Settings) -> list[Cell]:
    return [{"seed": seed, "quick": settings.quick} for seed in range(settings.seeds)]


def _run(cell: Cell) -> list[Row]:
    return [dict(row) for row in balancing_regret([cell["seed"]], cell["quick"])]


EXPERIMENT = Experiment(
    name="balancing",
    subject="what each way of dividing a batch among unequal workers loses",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 1.0 if cell["quick"] else 20.0,
    sources=_SOURCES,
)
RULE = Experiment(
    name="balancenet-rule",
    subject="BalanceNet's rule as printed: its batch sizes, their sum and the time of a step",
    cells=lambda settings: [{}],
    run=lambda cell: [dict(row) for row in balancenet_rule()],
    seconds=lambda cell: 0.1,
    sources=_SOURCES,
)
