"""The cheapest plan on pools whose units are interrupted: branch and bound over the value of an hour of training.

A plan costs the product `A * Y` per throughput (docs/planning.md): A, its price per hour and (sample per second), and
Y = 1 + the fraction of its time that interruptions cost. A product of two sums is no sum over stages, so no cheapest
path has it. But for any v > 0 the sum `A + v Y` is one: each pod has a one-time fee besides its price, which
`priced_search` solves, and `coupling` with limits. The least of it, g(v), bounds all plans from below, and the least
product is that of a plan which is the least of `A + v Y` for v = A / Y.

In a range [lo, hi] of v = A / Y, all plans lie in the cone between two rays and above the two lines that g(lo) and
g(hi) give. A product has its least value on such a set in a corner. The range with the lowest bound is split, first
where the plans of its two ends tie (Eisner and Severance, "Mathematical techniques for efficient record segmentation in
large shared databases", JACM 1976), until none can hold a better plan than the best known one.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from heterps_planner.model.segments import Segments
from heterps_planner.search import sweep
from heterps_planner.search.coupling import CoupledJob, Tariff, solve
from heterps_planner.search.points import Choice, cost_rate, lost_time
from heterps_planner.search.priced_search import Fees, PricedJob
from heterps_planner.search.sweep import DEFAULT_OPTIONS, SearchOptions, SweepResult

__all__ = ["minimise"]

_CLOSE = 1e-8  # relative; smaller gaps are rounding of the priced problems
_MOST_SOLVED = 64


@dataclass(frozen=True)
class _End:
    """What is known at one value of v."""

    v: float
    least: float  # g(v)
    plan: tuple[float, float]  # A and Y of a plan that has about this value


def minimise(segments: Segments, options: SearchOptions = DEFAULT_OPTIONS) -> SweepResult:
    """Find the cheapest plan per sample; arguments and result as `sweep.minimise`."""
    return _Search(segments, options).run() if segments.interrupted else sweep.minimise(segments, options)


class _Search:
    """State of one minimisation."""

    def __init__(self, segments: Segments, options: SearchOptions) -> None:
        self.segments = segments
        self.close = max(options.eps, _CLOSE)
        self.should_stop = options.should_stop
        self.multipliers = options.multipliers
        self.choice: Choice | None = None
        self.rate = options.rate

    def offer(self, choice: Choice) -> None:
        value = cost_rate(self.segments, choice)
        if value < self.rate:
            self.choice, self.rate = choice, value

    def run(self) -> SweepResult:
        # Without interruptions: the least A, and a plan that may well be the best one with them, too.
        options = SearchOptions(should_stop=self.should_stop, multipliers=self.multipliers)
        base = sweep.minimise(self.segments, options)
        if base.choice is None:
            return base
        self.offer(base.choice)
        least = base.bound
        if least <= 0 or lost_time(self.segments, base.choice) == 0 or least >= self.rate * (1 - self.close):
            return self.result(base, least)
        # A * Y <= rate with A >= least and Y >= 1 leaves no other v.
        top = self.rate if math.isfinite(self.rate) else cost_rate(self.segments, base.choice)
        low, high = self.solve(least * least / top, least), self.solve(top, least)
        ranges = [(self.bound(low, high), 0, low, high)] if low.v < high.v else []
        solved = 2
        while ranges and solved < _MOST_SOLVED and not self.should_stop():
            bound, _, low, high = ranges[0]
            if bound >= self.rate * (1 - self.close):
                break
            heapq.heappop(ranges)
            middle = self.solve(_between(low, high), least)
            solved += 1
            for one, other in ((low, middle), (middle, high)):
                if one.v < other.v:
                    heapq.heappush(ranges, (max(bound, self.bound(one, other)), solved * 2 + (one is low), one, other))
        bound = min([self.rate, *(item[0] for item in ranges)])
        return self.result(base, max(bound, least))

    def solve(self, v: float, least: float) -> _End:
        """Find g(v), and offer what is found on the way."""
        segments = self.segments
        zero = np.zeros(segments.num_pools)
        loss = zero if segments.loss_T is None else segments.loss_T
        fees = Fees(v * loss, v * segments.server_loss, v * segments.server_loss_samples)
        member = CoupledJob(PricedJob(segments, 1.0, fees=fees), np.arange(segments.num_pools))
        incumbents = [] if self.choice is None else [[self.choice]]
        found = solve([member], Tariff(segments.limit_T, zero, zero), incumbents, least, self.should_stop)
        if found.choices is None:
            return _End(v, least + v, (least, 1.0))
        [choice] = found.choices
        self.offer(choice)
        plan = choice.price / choice.throughput, 1 + lost_time(segments, choice)
        return _End(v, found.bound + v, plan)

    def bound(self, low: _End, high: _End) -> float:
        """Return a lower bound on A * Y of plans with v = A / Y between two ends."""
        at_low = max(low.least / (2 * low.v), high.least / (low.v + high.v))  # Y on the ray A = low.v * Y
        at_high = max(high.least / (2 * high.v), low.least / (low.v + high.v))
        corners = [low.v * at_low**2, high.v * at_high**2]
        y = (high.least - low.least) / (high.v - low.v)
        a = low.least - low.v * y
        if y > 0 and low.v <= a / y <= high.v:
            corners.append(a * y)
        return min(corners)

    def result(self, base: SweepResult, bound: float) -> SweepResult:
        stopped = self.should_stop() or not base.finished
        rate = self.rate if self.choice is not None else math.inf
        bound = min(bound, self.rate)
        if bound >= self.rate * (1 - 2 * self.close):
            bound = self.rate
        return replace(base, choice=self.choice, rate=rate, bound=bound, finished=not stopped)


def _between(low: _End, high: _End) -> float:
    """Return a value of v inside a range: where the plans of its ends tie, or the middle."""
    (a_low, y_low), (a_high, y_high) = low.plan, high.plan
    margin = 1e-3 * (high.v - low.v)
    if y_low > y_high:
        tie = (a_high - a_low) / (y_low - y_high)
        if low.v + margin < tie < high.v - margin:
            return tie
    return math.sqrt(low.v * high.v)
