"""Method `genetic`: a population of schedules, selection, crossover and mutation.

[HeterPS], section 6, compares with the genetic algorithm of Barika et al. (IEEE Trans. on Services Computing, 2019) and
gives no parameters. A genome is layer -> pool. Two changes to the textbook are needed to find feasible plans with many
limited pools: the first population contains the single-pool plans, and infeasible schedules are ranked by their
distance from feasibility (`Evaluator.scores`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_planner.methods.base import Found, Task, answer
from heterps_planner.model.pieces import FloatArray
from heterps_planner.plans.assignments import Evaluator

__all__ = ["find"]

_POPULATION = 128
_GENERATIONS = 200
_PATIENCE = 50  # generations without improvement that end the search
_ELITE = 8  # schedules that survive unchanged
_TOURNAMENT = 3
_CROSSOVER = 0.9  # share of children with two parents
_SEGMENT_MUTATION = 0.5  # share of children in which a run of layers moves to another pool

Genomes = NDArray[np.intp]


def find(task: Task) -> Found:
    """Find a plan by evolution.

    Raises:
        DeadlineError: the deadline passed before any plan was found.
    """
    rng = np.random.default_rng(task.seed)
    evaluator = Evaluator(task.segments)
    genomes = _first_population(rng, task.segments.num_layers, task.segments.num_pools)
    best, stale, stopped = np.inf, 0, False
    for generation in range(_GENERATIONS):
        if task.should_stop():
            stopped = True
            break
        score = evaluator.scores(genomes)
        stale = 0 if score.min() < best else stale + 1
        best = min(best, float(score.min()))
        task.progress((generation + 1) / _GENERATIONS)
        if stale == _PATIENCE:
            break
        order = np.argsort(score, kind="stable")[:_POPULATION]
        genomes, score = genomes[order], score[order]
        genomes = np.concatenate([genomes[:_ELITE], _children(rng, genomes, score, task.segments.num_pools)])
    if not stopped:
        task.progress(1.0)
    return answer(evaluator, stopped=stopped)


def _first_population(rng: np.random.Generator, num_layers: int, num_pools: int) -> Genomes:
    """Return one single-pool schedule per pool, and random ones."""
    single = np.repeat(np.arange(num_pools)[:, None], num_layers, axis=1)
    return np.concatenate([single, rng.integers(num_pools, size=(_POPULATION, num_layers))])


def _children(rng: np.random.Generator, genomes: Genomes, score: FloatArray, num_pools: int) -> Genomes:
    count, num_layers = _POPULATION - _ELITE, genomes.shape[1]
    parents = [genomes[_tournament(rng, score, count)] for _ in range(2)]
    layers = np.arange(num_layers)
    # Two cuts; if the second is the end of the model, this is one-point crossover.
    cuts = np.sort(rng.integers(num_layers + 1, size=(count, 2)), axis=1)
    cuts[rng.random(count) < 0.5, 1] = num_layers
    from_second = (layers >= cuts[:, :1]) & (layers < cuts[:, 1:]) & (rng.random((count, 1)) < _CROSSOVER)
    children = np.where(from_second, parents[1], parents[0])
    mutated = rng.random((count, num_layers)) < 1 / num_layers
    children = np.where(mutated, rng.integers(num_pools, size=children.shape), children)
    ends = np.sort(rng.integers(num_layers, size=(count, 2)), axis=1)
    run = (layers >= ends[:, :1]) & (layers <= ends[:, 1:]) & (rng.random((count, 1)) < _SEGMENT_MUTATION)
    return np.where(run, rng.integers(num_pools, size=(count, 1)), children)


def _tournament(rng: np.random.Generator, score: FloatArray, count: int) -> NDArray[np.intp]:
    """Return the best of a few random candidates, `count` times."""
    candidates = rng.integers(len(score), size=(count, _TOURNAMENT))
    winners: NDArray[np.intp] = candidates[np.arange(count), score[candidates].argmin(axis=1)]
    return winners
