"""Conclusions that rest on derived numbers, with these numbers varied by 30 % either way.

Times on cores are measured. Times on any other device, transfers and the parallel fractions are derived or assumed
(docs/models.md), and could be wrong in the same direction for all of them or for each of its own. The floor stays what
it is: a job does not ask for less because a card is slower.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.clusters import PAPER_MODELS
from experiments.framework import Cell, Experiment, Row, Settings
from experiments.trials import problem_of
from heterps_planner.methods import METHODS, Task
from heterps_planner.model.problem import LayerTimes, Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.search.sweep import minimise

__all__ = ["AS_DERIVED", "COMPARED", "EACH", "EXPERIMENT", "FASTER", "SLOWER", "SPREAD", "varied"]

SPREAD = 0.3
WORLDS = 2  # with factors of their own, per seed
AS_DERIVED, FASTER, SLOWER, EACH = "as derived", "cards faster", "cards slower", "each of its own"
#: Without Bayesian optimisation, which takes ten seconds a run.
COMPARED = ("optimal", "rl-lstm", "rl-rnn", "genetic", "greedy", "cpu", "gpu", "heuristic", "heuristic-gpu-first")
_MEASURED = "cpu"  # the pool with measured computing times


def varied(problem: Problem, world: str, seed: int) -> Problem:
    """Return a problem with other derived numbers.

    Args:
        problem: of `experiments.clusters`.
        world: all computing times on other devices than the measured core 30 % shorter (FASTER) or longer (SLOWER), or
            each time, each transfer and each sequential fraction times a factor of its own from 0.7 to 1.3 (EACH).
        seed: draws the factors of EACH.
    """
    if world == AS_DERIVED:
        return problem
    generator = np.random.default_rng(seed)

    def changed(pool: str, times: LayerTimes) -> LayerTimes:
        compute, transfer, sequential = generator.uniform(1 - SPREAD, 1 + SPREAD, 3).tolist()
        if world != EACH:
            compute, transfer, sequential = 1 + (SPREAD if world == SLOWER else -SPREAD), 1.0, 1.0
        if pool == _MEASURED:
            compute = 1.0
        return replace(
            times,
            compute_seconds=times.compute_seconds * compute,
            compute_fixed_seconds=times.compute_fixed_seconds * compute,
            parallel_fraction=1 - (1 - times.parallel_fraction) * sequential,
            transfer_seconds=times.transfer_seconds * transfer,
            transfer_fixed_seconds=times.transfer_fixed_seconds * transfer,
        )

    layers = tuple(
        replace(layer, pools={pool: changed(pool, times) for pool, times in layer.pools.items()})
        for layer in problem.layers
    )
    return replace(problem, layers=layers)


def _cells(settings: Settings) -> list[Cell]:
    models, kinds = (("nce",), (("paper", 2),)) if settings.quick else (PAPER_MODELS, (("paper", 2), ("devices", 16)))
    worlds = [(AS_DERIVED, 0), (FASTER, 0), (SLOWER, 0), *((EACH, seed) for seed in range(WORLDS * settings.seeds))]
    return [
        {"kind": kind, "model": model, "pools": t, "limits": "loose", "world": world, "seed": seed}
        for kind, t in kinds
        for model in models
        for world, seed in worlds
    ]


def _run(cell: Cell) -> list[Row]:
    problem = varied(problem_of(cell), cell["world"], cell["seed"])
    segments = build_segments(problem)
    optimum = minimise(segments)
    rows: list[Row] = []
    for method in COMPARED:
        choice = METHODS[method](Task(problem, segments, cell["seed"])).choice
        row: Row = dict(cell) | {"method": method, "status": "ok" if choice else "infeasible"}
        if choice is not None:
            kinds = {problem.pools[pool].device_type == "CPU" for _, _, pool in choice.stages}
            row["hardware"] = "both" if len(kinds) == 2 else "cores" if True in kinds else "cards"
            row["gap_percent"] = 100 * (choice.price / choice.throughput / optimum.rate - 1)
        rows.append(row)
    return rows


EXPERIMENT = Experiment(
    name="derived-times",
    subject="which conclusions survive if derived times are wrong by 30 %",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 2.0 if cell["pools"] == 2 else 4.0,
    sources=("experiments/derived.py", "experiments/trials.py"),
)
