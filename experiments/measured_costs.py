"""What plans cost by formula 7 of [HeterPS] with measured throughput: pure, the measurement is passed in."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heterps_planner import Plan, Problem, ProblemError, evaluate
from heterps_planner.plans.assignments import stages_of

__all__ = ["MeasuredCosts"]

Assignments = NDArray[np.intp]
_INFEASIBLE = 2.0  # times the most expensive plan measured


class MeasuredCosts:
    """The `Costs` of plans that are measured once each.

    A schedule is provisioned by the cost model, as line 4 of the algorithm does, and then measured. One that cannot be
    provisioned is not measured, and costs twice the most expensive plan so far.

    Args:
        problem: the problem.
        measure: returns the samples per second that a plan reaches.
        most: measurements after which `exhausted` is true; the round in which they are reached is completed.
    """

    def __init__(self, problem: Problem, measure: Callable[[Plan], float], most: int) -> None:
        self._problem = problem
        self._measure = measure
        self._most = most
        self._known: dict[bytes, float] = {}
        self._best: tuple[float, Assignments] | None = None
        self.num_measured = 0

    def exhausted(self) -> bool:
        """Return whether no further round may be measured."""
        return self.num_measured >= self._most

    def of(self, drawn: Assignments) -> NDArray[np.float64]:
        """Return finite costs (G,) of a round's plans (G, L), infeasible ones above all feasible ones so far."""
        rates = np.array([self.rate(assignment) for assignment in drawn])
        finite = [rate for rate in self._known.values() if math.isfinite(rate)]
        return np.where(np.isfinite(rates), rates, _INFEASIBLE * max(finite, default=1.0))

    def rate(self, assignment: Assignments) -> float:
        """Return dollars per hour and measured (sample per second) of a plan (L,), infinite if it is infeasible."""
        key = assignment.astype(np.uint8).tobytes()
        if key not in self._known:
            self._known[key] = self._look(assignment)
        return self._known[key]

    @property
    def best(self) -> Assignments | None:
        """The cheapest plan measured so far (L,)."""
        return None if self._best is None else self._best[1]

    def plan(self, assignment: Assignments) -> Plan | None:
        """Return a schedule (L,) with its provision by the cost model; None if it has none."""
        names = [pool.name for pool in self._problem.pools]
        stages = [{"pool": names[pool], "lastLayer": last} for _, last, pool in stages_of(assignment)]
        try:
            found = evaluate(self._problem, stages)
        except ProblemError:  # more stages on a pool than it has units
            return None
        return found if isinstance(found, Plan) else None

    def _look(self, assignment: Assignments) -> float:
        plan = self.plan(assignment)
        if plan is None:
            return math.inf
        self.num_measured += 1
        rate = plan.cost_per_hour / self._measure(plan)
        if self._best is None or rate < self._best[0]:
            self._best = rate, assignment.copy()
        return rate
