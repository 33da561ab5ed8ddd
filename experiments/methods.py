"""Every method on every model and number of pools: the gap to the certified optimum, and the time it takes.

`methods` has clusters of different devices, and is compared with the paper's table 3. `paper-cases` has the paper's own
cases, V100 cards at several prices, for its figures 5 to 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.clusters import PAPER_MODELS, POOL_COUNTS
from experiments.framework import Cell, Experiment, Settings
from experiments.trials import SEEDLESS, trial
from heterps_planner.methods import METHODS

__all__ = ["BUDGETS", "EXPERIMENT", "PAPER_CASES", "Budget", "budget_of"]


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

    def grid(budget: Budget) -> list[tuple[str, int, str]]:
        limits = budget.limits[: 1 if settings.quick else 2]
        return [(model, t, each) for model in models for t in _counts(budget, settings) for each in limits]

    return _runs("devices", settings, grid)


def _paper_cells(settings: Settings) -> list[Cell]:
    def grid(budget: Budget) -> list[tuple[str, int, str]]:
        if settings.quick:
            return [("nce", 2, "loose")]
        more = [("matchnet", t, "loose") for t in _counts(budget, settings) if t > 2]
        return [(model, 2, "loose") for model in PAPER_MODELS] + more

    return _runs("paper", settings, grid)


def _counts(budget: Budget, settings: Settings) -> list[int]:
    return [t for t in budget.pool_counts if not settings.quick or t in (2, 4)]


def _runs(kind: str, settings: Settings, grid: Callable[[Budget], list[tuple[str, int, str]]]) -> list[Cell]:
    """Return a cell per method, problem and seed."""
    cells: list[Cell] = []
    for method in METHODS:
        if method == "brute-force" or (settings.quick and method == "bayesian"):
            continue  # one has its own experiment, as it solves only small problems; the other needs seconds to load
        budget = budget_of(method)
        seeds = 1 if method in SEEDLESS else min(settings.seeds, budget.most_seeds)
        for model, num_pools, limits in grid(budget):
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


EXPERIMENT = Experiment(
    name="methods",
    subject="gap to the certified optimum and time, per method, model and number of pools",
    cells=_cells,
    run=trial,
    seconds=lambda cell: min(cell["budget"], budget_of(cell["method"]).expected),
    sources=("experiments/trials.py",),
)
PAPER_CASES = replace(
    EXPERIMENT,
    name="paper-cases",
    subject="the same on the paper's own cases: V100 cards at one and at several prices",
    cells=_paper_cells,
)
