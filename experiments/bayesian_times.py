"""Bayesian optimisation with the processor time that the paper's took (its table 3), on the paper's own cases.

The product's method ends after 60 proposals of its model; here it goes on until its time is up or it has seen every
schedule. That takes up to an hour, so `python -m experiments` runs it only if it is named; its results are stored.
"""

from __future__ import annotations

import functools

from experiments import paper
from experiments.framework import Cell, Experiment, Row, Settings
from experiments.trials import trial
from heterps_planner.methods import bayesian

__all__ = ["EXPERIMENT"]

#: The cases of table 3 that are not between two others.
_CASES = (("matchnet", 2), ("ctrdnn", 2), ("nce", 2), ("matchnet", 64))
_ENDLESS = 10**9


def _cells(settings: Settings) -> list[Cell]:
    return [
        {
            "kind": "paper",
            "model": model,
            "pools": pools,
            "limits": "loose",
            "method": "bayesian",
            "seed": 0,
            "budget": float(paper.TABLE_3[model, pools]["bayesian"]),
        }
        for model, pools in _CASES
        if not settings.quick
    ]


def _run(cell: Cell) -> list[Row]:
    return trial(cell, functools.partial(bayesian.find, modelled=_ENDLESS))


EXPERIMENT = Experiment(
    name="bayesian-times",
    subject="Bayesian optimisation with the time that the paper's took (up to an hour; only if named)",
    cells=_cells,
    run=_run,
    seconds=lambda cell: float(cell["budget"]),
    sources=("experiments/bayesian_times.py", "experiments/trials.py"),
    once=True,
)
