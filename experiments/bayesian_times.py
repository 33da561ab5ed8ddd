"""Bayesian optimisation with the processor time that the paper's took (its table 3), on the paper's own cases.

It takes up to an hour, so `python -m experiments` runs it only if it is named; its results are stored.
"""

from __future__ import annotations

from experiments import paper
from experiments.framework import Cell, Experiment, Settings
from experiments.trials import trial

__all__ = ["EXPERIMENT"]

#: The cases of table 3 that are not between two others.
_CASES = (("matchnet", 2), ("ctrdnn", 2), ("2emb", 2), ("nce", 2), ("matchnet", 64))


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


EXPERIMENT = Experiment(
    name="bayesian-times",
    subject="Bayesian optimisation with the time that the paper's took (up to an hour; only if named)",
    cells=_cells,
    run=trial,
    seconds=lambda cell: float(cell["budget"]),
    sources=("experiments/bayesian_times.py", "experiments/trials.py"),
    once=True,
)
