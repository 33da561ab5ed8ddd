"""Every method on every model and number of pools: the gap to the certified optimum, and the time it takes.

The counterparts of the paper's table 3 and figures 5 to 10 are generated from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.clusters import PAPER_MODELS, POOL_COUNTS
from experiments.framework import Cell, Experiment, Settings
from experiments.trials import SEEDLESS, trial
from heterps_planner.methods import METHODS

__all__ = ["BUDGETS", "EXPERIMENT", "Budget", "budget_of"]


@dataclass(frozen=True)
class Budget:
    """Limits of a method in the main grid."""

    seconds: float = 10.0  # limit of one run
    pool_counts: tuple[int, ...] = POOL_COUNTS
    limits: tuple[str, ...] = ("loose", "tight")
    most_seeds: int = 100
    expected: float = 0.2  # seconds that a run takes


# The learned and the evolutionary methods end by their own counts before the limit; Bayesian optimisation does not.
BUDGETS = {
    "rl-lstm": Budget(expected=1.5, most_seeds=3),
    "rl-rnn": Budget(expected=1.5, most_seeds=3),
    "genetic": Budget(expected=1.2),
    "bayesian": Budget(expected=10, pool_counts=(2,), limits=("loose",), most_seeds=1),
    "optimal": Budget(seconds=60, expected=0.3),
}
QUICK_SECONDS = 0.5


def budget_of(method: str) -> Budget:
    """Return the budget of a method; the default if it has no entry."""
    return BUDGETS.get(method, Budget())


def _cells(settings: Settings) -> list[Cell]:
    models = ("nce",) if settings.quick else PAPER_MODELS
    cells: list[Cell] = []
    for method in METHODS:
        if method == "brute-force" or (settings.quick and method == "bayesian"):
            continue  # one has its own experiment, as it solves only small problems; the other needs seconds to load
        budget = budget_of(method)
        seeds = 1 if method in SEEDLESS else min(settings.seeds, budget.most_seeds)
        for kind, model, num_pools, limits in _grid(models, budget, settings.quick):
            cells += [
                {
                    "kind": kind,
                    "model": model,
                    "pools": num_pools,
                    "limits": limits,
                    "method": method,
                    "seed": seed,
                    "budget": QUICK_SECONDS if settings.quick else budget.seconds,
                }
                for seed in range(seeds)
            ]
    return cells


def _grid(models: tuple[str, ...], budget: Budget, quick: bool) -> list[tuple[str, str, int, str]]:
    counts = tuple(t for t in budget.pool_counts if not quick or t in (2, 4))
    grid = [
        ("devices", model, t, limits)
        for model in models
        for t in counts
        for limits in budget.limits[: 1 if quick else 2]
    ]
    # The paper's own cases, for its figures 5 to 10.
    grid += [("paper", model, 2, "loose") for model in models]
    grid += [("paper", "matchnet", t, "loose") for t in counts if t > 2 and not quick]
    return grid


EXPERIMENT = Experiment(
    name="methods",
    subject="gap to the certified optimum and time, per method, model and number of pools",
    cells=_cells,
    run=trial,
    seconds=lambda cell: min(cell["budget"], budget_of(cell["method"]).expected),
    sources=("experiments/trials.py",),
)
