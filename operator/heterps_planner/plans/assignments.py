"""Schedules written as layer -> pool: conversion to stages, and the cost of each assignment.

Search methods (genetic, learned, ...) minimise the same function: an assignment is provisioned exactly
(`provisioning.provision`), so that a method is judged by its schedules only. `Evaluator` does this for batches, with a
cache, and keeps the best plan.

Shapes: n assignments, L layers. The parameter servers are the last stage of every schedule.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.plans.plan import choice_of
from heterps_planner.plans.task import Found
from heterps_planner.search.path import Stage
from heterps_planner.search.points import Choice, lowest_throughput, search_prices
from heterps_planner.search.provisioning import Schedules, make_schedules, overload, provision

__all__ = ["Evaluator", "schedules_from_assignments", "stages_of"]

_CAPACITY = 500_000  # cached assignments, about 100 MB
_CHUNK = 65_536  # layers of assignments provisioned per batch
_TINY_RATE = 1e-30  # replaces a cost of zero, whose logarithm is infinite


def schedules_from_assignments(segments: Segments, assignment_NL: NDArray[np.intp]) -> Schedules:  # noqa: N803
    """Convert assignments to stages, padded to the longest schedule.

    Neighbouring layers on one pool are one stage (erratum 23). A stage with a layer that its pool cannot run has an
    infinite sequential part, and so cannot be provisioned. Assignments of the first layers only are schedules of a
    model that ends there: its last stage sends nothing.

    Args:
        segments: the work of all segments.
        assignment_NL: pool of each layer, shape (n, L), or of the first layers only.

    Returns:
        Schedules of shape (n, K + 1), K being the highest number of stages; the last column is the parameter servers.
    """
    n, num_layers = assignment_NL.shape
    ends = np.ones((n, num_layers), dtype=bool)
    np.not_equal(assignment_NL[:, 1:], assignment_NL[:, :-1], out=ends[:, :-1])
    row, layer = ends.nonzero()  # one entry per stage, in order
    count = ends.sum(axis=1)
    width = int(count.max(initial=1))
    column = np.arange(len(row)) - np.repeat(count.cumsum() - count, count)
    pool = assignment_NL[row, layer]
    first = np.empty_like(layer)
    first[1:] = layer[:-1] + 1
    first[column == 0] = 0
    firsts, lasts, pools = (np.zeros((n, width), dtype=np.intp) for _ in range(3))
    firsts[row, column], lasts[row, column], pools[row, column] = first, layer, pool
    schedules = make_schedules(segments, firsts, lasts, pools, np.arange(width) < count[:, None])
    if num_layers < segments.num_layers:
        silent = lasts == num_layers - 1
        schedules.send_seq[:, :-1][silent] = 0.0
        schedules.send_par[:, :-1][silent] = 0.0
    return schedules


def stages_of(assignment_L: NDArray[np.intp]) -> list[Stage]:  # noqa: N803
    """Return the stages of one assignment."""
    lasts = [*np.flatnonzero(assignment_L[1:] != assignment_L[:-1]).tolist(), len(assignment_L) - 1]
    firsts = [0, *(last + 1 for last in lasts[:-1])]
    return [(first, last, int(assignment_L[last])) for first, last in zip(firsts, lasts, strict=True)]


class Evaluator:
    """Costs of assignments, exactly provisioned under floor, limits and ceiling.

    Assignments of the first layers only are costed as models that end there; they never become the best plan.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.best: Choice | None = None
        self.best_rate = math.inf  # dollars per hour and (sample per second)
        self.best_assignment: NDArray[np.intp] | None = None
        self.num_evaluated = 0  # distinct schedules provisioned
        self._seen: dict[bytes, tuple[float, float]] = {}  # (rate, score)
        # No feasible plan costs more than all units together at the lowest throughput.
        most = min(segments.ceiling, float(search_prices(segments) @ segments.limit_T))
        lowest = lowest_throughput(segments, segments.floor)
        self.worst_feasible_score = math.log(max(most, _TINY_RATE)) - math.log(max(lowest, _TINY_RATE)) + 1e-6

    def rates(self, assignment_NL: NDArray[np.intp]) -> FloatArray:  # noqa: N803
        """Return the least cost of each assignment in dollars per hour and (sample per second).

        Args:
            assignment_NL: pool of each layer, shape (n, L).

        Returns:
            Shape (n,), infinite where no provision keeps floor, limits and ceiling.
        """
        return np.array([rate for rate, _ in self._look_up(assignment_NL)])

    def scores(self, assignment_NL: NDArray[np.intp]) -> FloatArray:  # noqa: N803
        """Return finite numbers to minimise, which also guide a search outside the feasible region.

        Args:
            assignment_NL: pool of each layer, shape (n, L).

        Returns:
            Shape (n,): the logarithm of the rate of a feasible assignment; any other one has a score above all
            feasible ones, the higher the further limits and floor are exceeded (`provisioning.overload`).
        """
        return np.array([score for _, score in self._look_up(assignment_NL)])

    def found(self) -> Found:
        """Return the best plan so far as a method's result."""
        return Found(self.best, num_tried=self.num_evaluated)

    def _look_up(self, assignment: NDArray[np.intp]) -> list[tuple[float, float]]:
        small = np.ascontiguousarray(assignment, dtype=np.uint8 if self.segments.num_pools <= 256 else np.uint16)
        size, data = small.itemsize * small.shape[1], small.tobytes()
        keys = [data[i : i + size] for i in range(0, len(data), size)]
        fresh: dict[bytes, int] = {}
        known: dict[bytes, tuple[float, float]] = {}
        for row, key in enumerate(keys):
            value = self._seen.get(key)
            if value is None:
                fresh.setdefault(key, row)
            else:
                known[key] = value
        rows = list(fresh.values())
        values: list[tuple[float, float]] = []
        step = max(1, _CHUNK // max(assignment.shape[1], 1))
        for start in range(0, len(rows), step):
            values += self._evaluate(assignment[rows[start : start + step]])
        if len(self._seen) + len(values) > _CAPACITY:
            self._seen.clear()
        new = dict(zip(fresh, values, strict=True))
        self._seen |= new
        known |= new
        return [known[key] for key in keys]

    def _evaluate(self, assignment: NDArray[np.intp]) -> list[tuple[float, float]]:
        schedules = schedules_from_assignments(self.segments, assignment)
        self.num_evaluated += len(assignment)
        rate = np.full(len(assignment), np.inf)
        possible = np.flatnonzero(np.isfinite(schedules.seq).all(axis=1))
        if len(possible):
            found = provision(schedules.select(possible), self.segments)
            rate[possible] = found.rate
            best = int(found.rate.argmin())
            if assignment.shape[1] == self.segments.num_layers and found.rate[best] < self.best_rate:
                self.best_rate = float(found.rate[best])
                self.best_assignment = assignment[possible[best]].copy()
                stages = stages_of(self.best_assignment)
                pods = [int(k) for k in found.pods[best]]
                self.best = choice_of(self.segments, stages, pods[: len(stages)], pods[-1])
        score = np.log(np.maximum(rate, _TINY_RATE))
        infeasible = np.flatnonzero(np.isinf(rate))
        if len(infeasible):
            score[infeasible] = self.worst_feasible_score + overload(schedules.select(infeasible), self.segments)
        return list(zip(rate.tolist(), score.tolist(), strict=True))
