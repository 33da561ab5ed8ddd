"""One method on one problem, compared with the certified optimum; shared by several experiments.

Times and limits are processor times of the process, so that other load of the machine changes them little.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

from experiments.clusters import cluster, paper_case
from experiments.framework import Cell, Row
from heterps_planner.errors import DeadlineError, ProblemError, TooLargeError
from heterps_planner.methods import METHODS, Method, Task
from heterps_planner.model.cost_model import cost_of_training
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.search.points import Choice
from heterps_planner.search.sweep import SearchOptions, SweepResult, minimise

__all__ = ["SEEDLESS", "problem_of", "schedule_text", "solved", "trial"]

# Methods without random numbers: one run suffices.
SEEDLESS = frozenset({"optimal", "brute-force", "cpu", "gpu", "greedy", "heuristic", "heuristic-gpu-first"})
OPTIMUM_SECONDS = 60.0  # time allowed for the certificate


def problem_of(cell: Cell) -> Problem:
    """Return the problem of a cell: model, pools, limits, kind ("devices" or "paper") and cluster (its seed)."""
    make = paper_case if cell.get("kind") == "paper" else cluster
    return make(cell["model"], cell["pools"], limits=cell["limits"], seed=cell.get("cluster", 0))


@functools.lru_cache(maxsize=32)
def _solved(key: tuple[tuple[str, Any], ...]) -> tuple[Problem, Segments, SweepResult, float]:
    problem = problem_of(dict(key))
    began = time.process_time()
    segments = build_segments(problem)
    result = minimise(segments, SearchOptions(should_stop=lambda: time.process_time() - began > OPTIMUM_SECONDS))
    return problem, segments, result, time.process_time() - began


def solved(cell: Cell) -> tuple[Problem, Segments, SweepResult, float]:
    """Return problem, tables, optimum and the seconds of its proof; each problem is solved once per process."""
    names = ("model", "pools", "limits", "kind", "cluster")
    return _solved(tuple((name, cell[name]) for name in names if name in cell))


def schedule_text(choice: Choice | None) -> str:
    """Return a short text of a plan, for comparison: layers x pool and pods, stage by stage."""
    if choice is None:
        return ""
    stages = zip(choice.stages, choice.pods, strict=True)
    return " ".join(f"{first}-{last}@{pool}x{pods}" for (first, last, pool), pods in stages)


def trial(cell: Cell, find: Method | None = None) -> list[Row]:
    """Run one method with one seed.

    The time is the method's own: building its tables, and its search, without the proof of the gap.

    Args:
        cell: model, pools, limits, method, seed and budget.
        find: in place of the method of that name.
    """
    problem, _, optimum, optimum_seconds = solved(cell)
    method, seed, budget = cell["method"], cell["seed"], cell["budget"]
    row: Row = {name: value for name, value in cell.items() if name != "budget"}
    row |= {"floor": problem.min_samples_per_second, "proven": optimum.finished}
    optimum_cost = _cost(problem, optimum.choice) if optimum.choice else math.nan
    row |= {"optimum": optimum_cost, "optimum_seconds": optimum_seconds}
    began = time.process_time()
    status, choice = "ok", None
    try:
        built = build_segments(problem)
        choice = (find or METHODS[method])(
            Task(problem, built, seed, lambda: time.process_time() - began > budget)
        ).choice
        status = "ok" if choice else "infeasible"
    except DeadlineError:
        status = "none in time"
    except TooLargeError:
        status = "too large"
    except ProblemError:
        status = "refused"  # the pretrained policy, outside its training domain
    seconds = time.process_time() - began
    cost = _cost(problem, choice) if choice else math.nan
    row |= {"status": status, "seconds": seconds}
    if choice is not None:
        row |= {
            "cost": cost,
            "gap_percent": 100 * (cost / optimum_cost - 1) if optimum_cost else 0.0,
            "throughput": choice.throughput,
            "price_per_hour": choice.price,
            "plan": schedule_text(choice),
        }
    return [row]


def _cost(problem: Problem, choice: Choice) -> float:
    return cost_of_training(problem.samples, choice.throughput, choice.price)
