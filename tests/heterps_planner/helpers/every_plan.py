"""All plans of a tiny problem, one by one: the oracle for methods that compare several costs at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.plan import choice_of
from heterps_planner.search.points import Choice


@dataclass(frozen=True)
class Everything:
    """All plans that keep floor, limits and ceiling."""

    choices: list[Choice]
    used: np.ndarray  # (plans, T) pods
    price: np.ndarray  # (plans,) dollars per hour
    throughput: np.ndarray  # (plans,)


def every_plan(problem: Problem) -> Everything:
    """Enumerate all stages and all numbers of pods; only for few layers and pods."""
    segments = build_segments(problem)
    choices, used = [], []
    for stages in _schedules(len(problem.layers), len(problem.pools)):
        if not all(np.isfinite(segments.seq_LLT[stage]) for stage in stages):
            continue
        ranges = [range(1, int(segments.limit_T[t]) + 1) for _, _, t in stages]
        servers = [segments.server_least]
        if np.isinf(segments.server_most):
            servers = list(range(1, int(segments.limit_T[segments.server_pool]) + 1))
        for *pods, extra in itertools.product(*ranges, servers):
            total = np.zeros(segments.num_pools)
            for (_, _, t), n in zip(stages, pods, strict=True):
                total[t] += n
            total[segments.server_pool] += extra
            if (total > segments.limit_T).any():
                continue
            choice = choice_of(segments, stages, pods, extra)
            if choice.throughput < problem.min_samples_per_second * (1 - 1e-9):
                continue
            if choice.price > segments.ceiling * (1 + 1e-9):
                continue
            choices.append(choice)
            used.append(total)
    return Everything(
        choices,
        np.array(used).reshape(-1, segments.num_pools),
        np.array([c.price for c in choices]),
        np.array([c.throughput for c in choices]),
    )


def _schedules(
    num_layers: int, num_pools: int, first: int = 0, before: int = -1
) -> Iterator[list[tuple[int, int, int]]]:
    if first == num_layers:
        yield []
        return
    for last in range(first, num_layers):
        for pool in range(num_pools):
            if pool != before:
                for rest in _schedules(num_layers, num_pools, last + 1, pool):
                    yield [(first, last, pool), *rest]
