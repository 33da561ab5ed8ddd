"""The cheapest plan over all throughputs, with a certificate: branch and bound over intervals of the throughput.

Let `P(theta)` be the least price per hour of a plan that reaches at least theta. It never falls with theta, because a
plan for a higher throughput also serves a lower one. A plan with price p and throughput a costs p / a per sample, so
every plan with a throughput in [lo, hi) costs at least `P(lo) / hi`. With U the best cost found so far:

1. Cut the range of reachable throughputs into intervals and bound `P(lo)` of all of them at once: first without pool
   limits (often enough), then with priced limits (`path.relax`).
2. Close an interval whose bound divided by `hi` reaches U.
3. If `P(lo)` is known exactly, by a plan that reaches a >= lo, then nothing below `max(a, P(lo) / U)` is better than U:
   the interval continues there. That is the breakpoint sweep of erratum 8. Such intervals are split and go back to 1.
4. Where limits leave `P(lo)` open, neighbouring intervals are joined and swept one breakpoint after the other, each
   `P(lo)` found by `labels.search`: its price is per throughput, so few long strides beat many short ones.
5. If that takes many labels, the rest is halved with new multipliers instead, until intervals are so narrow that U is a
   sharp cutoff for their label search. The one with the lowest bound is always next.

When nothing is left, U is the optimum. Closing an interval uses a relative tolerance of CLOSE, so "optimal" means:
within 1e-9 of the optimum.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.search.labels import search
from heterps_planner.search.path import Stage, cheapest_paths, relax
from heterps_planner.search.points import Choice, Points, fastest_bound, least_rate, lowest_throughput, search_prices

__all__ = ["CLOSE", "DEFAULT_OPTIONS", "SearchOptions", "SweepResult", "cheapest_at", "minimise"]

CLOSE = 1e-9
_STEP = 1 + 1e-9  # the next throughput beyond a breakpoint
_BATCH = 20  # intervals per round; more cost time per round, fewer cost rounds
_BATCH_NUMBERS = 2_000_000  # upper limit of the numbers in one array
_MAX_SPLIT = 6
_SUBGRADIENT_STEPS = 20
_SUBGRADIENT_ROWS = 4  # throughputs at which multipliers are sought; the others borrow them
_FEW_LABELS = 10_000  # of one search at first, and of all searches before hard intervals are halved
_MORE = 8  # times as many labels when a search is tried again
_NARROW = 1.005  # ratio of the ends of an interval that is halved no more

Multipliers = list[tuple[float, FloatArray]]  # (throughput, multipliers that are good there)
Interval = tuple[float, float, float]  # lo, hi, bound on the price per hour from lo on


@dataclass(frozen=True)
class SearchOptions:
    """What `minimise` looks for, and when it may end.

    Attributes:
        eps: relative gap at which the search may end; 0: the optimum.
        rate: upper limit of the cost, dollars per hour and (sample per second).
        should_stop: called regularly; when it returns True, the best plan so far is returned with its bound.
        any_plan: end with the first plan that costs less than `rate`; the bound then means nothing.
        multipliers: initial multipliers from a similar problem.
    """

    eps: float = 0.0
    rate: float = math.inf
    should_stop: Callable[[], bool] = lambda: False
    any_plan: bool = False
    multipliers: Sequence[tuple[float, FloatArray]] = ()


DEFAULT_OPTIONS = SearchOptions()  # the optimum, whatever it costs and however long it takes


@dataclass
class SweepResult:
    """The outcome of `minimise`."""

    choice: Choice | None  # None: no plan (below the given cost)
    rate: float  # dollars per hour and (sample per second) of the choice, infinite if there is none
    bound: float  # the same for the lower bound
    finished: bool  # not stopped by the deadline
    limits_mattered: bool = False  # some relaxed plan was excluded by a pool limit only
    num_labels: int = 0
    multipliers: Multipliers = field(default_factory=list)  # can start the search of a similar problem


class _Sweep:
    """State of one minimisation."""

    def __init__(self, segments: Segments, options: SearchOptions) -> None:
        self.segments = segments
        self.price = search_prices(segments)
        self.should_stop = options.should_stop
        self.eps = options.eps
        self.any_plan = options.any_plan
        self.result = SweepResult(None, options.rate, math.inf, True)
        self.multipliers = self.result.multipliers
        self.tracked: set[int] = set()
        # No plan within the limits costs more than all units together.
        self.ceiling = min(segments.ceiling, float(self.price @ segments.limit_T)) * (1 + FLOOR_TOLERANCE)
        self.cut = math.inf  # from this throughput on, no plan exists
        self.seen: list[tuple[float, float]] = []  # (throughput, bound on the price per hour from there on)

    def offer(self, points: Points, row: int, stages: list[Stage]) -> tuple[float, float]:
        """Consider a path within the limits as a plan; return its price per hour and its throughput."""
        pods = tuple(int(points.pods[row, a, b, t]) for a, b, t in stages)
        price = math.fsum(n * self.price[t] for n, (_, _, t) in zip(pods, stages, strict=True))
        price += float(points.extra[row])
        slowest = max(self.segments.stage_time(*stage, n) for stage, n in zip(stages, pods, strict=True))
        servers = int(points.server[row])
        throughput = min(1 / slowest, self.segments.server_throughput(servers))
        if price <= self.ceiling and price / throughput < self.result.rate:
            self.result.rate = price / throughput
            self.result.choice = Choice(tuple(stages), pods, servers, throughput, price)
            if self.any_plan:
                self.eps = math.inf  # closes all intervals
        return price, throughput

    def closes(self, rate: float) -> bool:
        """Return whether a lower bound on the cost ends the search of an interval; if so, record it."""
        if rate < self.result.rate * (1 - CLOSE) / (1 + self.eps):
            return False
        self.result.bound = min(self.result.bound, rate)
        return True

    def advance(self, lo: float, price: float, reach: float) -> float:
        """Return the throughput below which no plan is better than the best known one, P(lo) being `price`."""
        self.closes(self.result.rate)
        return max(lo, price / self.result.rate, reach) * _STEP

    def examine(self, lo: FloatArray, hi: FloatArray) -> tuple[list[Interval], list[Interval]]:
        """Bound intervals without a label search.

        Returns:
            The rest of the intervals with known P(lo), and the intervals that pool limits leave open.
        """
        points = Points(self.segments, self.price, lo)
        paths = cheapest_paths(points.pods * self.price)
        points.bound = paths.value_S + points.extra
        known: list[int] = []
        hard: list[int] = []
        for row in map(int, np.argsort(lo)):
            if lo[row] >= self.cut:
                continue
            if points.bound[row] > self.ceiling or (points.room[row] < 0).any():
                self.cut = float(lo[row])
                continue
            stages = paths.stages(row)
            if points.fits(row, stages):
                points.bound[row], points.reach[row] = self.offer(points, row, stages)
                known.append(row)
            else:
                hard.append(row)
        hard = [row for row in hard if not self.closes(points.bound[row] / hi[row])]
        if hard:
            self.result.limits_mattered = True
            if not self.multipliers:
                chosen = sorted({hard[i] for i in np.linspace(0, len(hard) - 1, _SUBGRADIENT_ROWS).astype(int)})
                self.relax(points, chosen, hi, _SUBGRADIENT_STEPS)
            self.relax(points, hard, hi, 1)
        left = [
            (start, float(hi[row]), float(points.bound[row]))
            for row in known
            if not self.closes(points.bound[row] / hi[row])
            and (start := self.advance(lo[row], float(points.bound[row]), float(points.reach[row]))) < hi[row]
        ]
        still = []
        for row in hard:
            if points.bound[row] > self.ceiling:
                self.cut = min(self.cut, float(lo[row]))
            elif not self.closes(points.bound[row] / hi[row]):
                start = max(float(lo[row]), float(points.bound[row] / self.result.rate))
                still.append((start, float(hi[row]), float(points.bound[row])))
        self.seen += zip(lo.tolist(), points.bound.tolist(), strict=True)
        return left, still

    def cutoff(self, hi: float) -> float:
        """Return the price per hour from which on a plan below the throughput `hi` cannot be better."""
        return min(self.ceiling, self.result.rate * hi)

    def relax(self, points: Points, rows: list[int], hi: FloatArray, num_steps: int) -> None:
        """Raise the bounds of intervals whose cheapest path breaks a limit."""
        extra = points.extra[rows]
        relaxation = relax(
            points.pods[rows],
            self.price,
            points.room[rows],
            np.array([self.multiplier_near(float(points.theta[row])) for row in rows]),
            np.array([self.cutoff(float(hi[row])) for row in rows]) - extra,
            num_steps,
            lambda i, stages: self.offer(points, rows[i], stages)[0] - float(extra[i]),
            self.should_stop,
        )
        for i, row in enumerate(rows):
            points.bound[row] = max(points.bound[row], relaxation.bound_S[i] + extra[i])
            if num_steps > 1 and np.isfinite(relaxation.bound_S[i]):
                self.multipliers.append((float(points.theta[row]), relaxation.multiplier_ST[i]))

    def multiplier_near(self, theta: float) -> FloatArray:
        """Return multipliers that were good at a nearby throughput; any values are valid."""
        if not self.multipliers:
            return np.zeros(self.segments.num_pools)
        return min(reversed(self.multipliers), key=lambda known: abs(math.log(known[0] / theta)))[1]

    def search_hard(self, intervals: list[Interval]) -> list[Interval]:
        """Search intervals that pool limits leave open; return what the deadline left over.

        The interval with the lowest bound comes first, because a better plan closes others. A label search that takes
        long is put off: halving the interval, or a better plan found elsewhere, may save it.
        """
        # (lowest cost that the interval may hold, number of searches that were put off, lo, hi, bound)
        waiting = [(bound / lo, 0, lo, hi, bound) for lo, hi, bound in intervals]
        heapq.heapify(waiting)
        while waiting and not self.should_stop():
            _, tries, lo, hi, bound = heapq.heappop(waiting)
            if lo >= self.cut or self.closes(bound / hi):
                continue
            if self.result.num_labels >= _FEW_LABELS and lo * _NARROW < hi:
                rest = self.halve(lo, hi, bound)
            else:
                rest = self.sweep_interval(lo, hi, bound, _FEW_LABELS * _MORE**tries)
                tries += 1
            for start, end, price in rest:
                heapq.heappush(waiting, (price / start, tries, start, end, price))
        return [(lo, hi, bound) for _, _, lo, hi, bound in waiting if lo < self.cut]

    def halve(self, lo: float, hi: float, bound: float) -> list[Interval]:
        """Cut an interval in two, and raise the bound of the upper one."""
        middle = math.sqrt(lo * hi)
        points = Points(self.segments, self.price, np.array([middle]))
        if (points.room[0] < 0).any():
            points.bound[0] = math.inf
        else:
            self.relax(points, [0], np.array([hi]), _SUBGRADIENT_STEPS)
        above = max(bound, float(points.bound[0]))
        if above > self.ceiling:
            self.cut = min(self.cut, middle)
            return [(lo, middle, bound)]
        self.seen.append((middle, above))
        start = max(middle, above / self.result.rate)
        return [(lo, middle, bound), *([(start, hi, above)] if start < hi else [])]

    def sweep_interval(self, lo: float, hi: float, bound: float, most_labels: int) -> list[Interval]:
        """Search [lo, hi) one breakpoint after the other; return the rest if a search takes more than these labels."""
        while lo < min(hi, self.cut) and not self.closes(bound / hi):
            points = Points(self.segments, self.price, np.array([lo]))
            if (points.room[0] < 0).any():
                self.cut = lo
                break
            if self.result.num_labels >= _FEW_LABELS:
                self.relax(points, [0], np.array([hi]), _SUBGRADIENT_STEPS)
                bound = max(bound, float(points.bound[0]))
                if self.closes(bound / hi):
                    break
            cutoff, extra = self.cutoff(hi), float(points.extra[0])
            found = search(
                points.pods[0],
                self.price,
                points.room[0],
                self.multiplier_near(lo),
                self.tracked,
                cutoff - extra,
                self.should_stop,
                most_labels,
            )
            self.result.num_labels += found.num_labels
            if not found.finished:
                return [(lo, hi, max(bound, found.bound + extra))]
            if found.stages is None:
                if cutoff >= self.ceiling:
                    self.cut = lo
                else:
                    self.closes(self.result.rate)
                break
            bound, reach = self.offer(points, 0, found.stages)
            lo = self.advance(lo, bound, reach)
            if self.result.num_labels >= _FEW_LABELS and lo * _NARROW < hi:
                return [(lo, hi, bound)]
        return []

    def bounds_of(self, intervals: list[Interval]) -> list[float]:
        """Return lower bounds on the cost in intervals, from the prices known at throughputs in and below them."""
        anywhere = least_rate(self.segments, self.price) if intervals else math.inf
        seen = sorted(self.seen)
        bounds = []
        for lo, hi, bound in intervals:
            price = max([bound, *(known for theta, known in seen if theta <= lo)])
            rate = math.inf
            for theta, known in [*(point for point in seen if lo < point[0] < hi), (hi, math.inf)]:
                rate = min(rate, price / theta)
                price = max(price, known)
            bounds.append(max(anywhere, rate))
        return bounds

    def run(self, lo: float, hi: float) -> SweepResult:
        """Search all throughputs in [lo, hi)."""
        size = self.segments.num_layers**2 * self.segments.num_pools
        batch = max(1, min(_BATCH, _BATCH_NUMBERS // size))
        waiting = _split(lo, hi, 0.0, batch) if lo < hi else []
        hard: list[Interval] = []
        result = self.result
        while waiting and not self.should_stop():
            waiting = [(a, b, p) for a, b, p in waiting if a < self.cut and not self.closes(p / b)]
            waiting.sort(key=lambda interval: interval[2] / interval[1])
            now, waiting = waiting[:batch], waiting[batch:]
            if not now:
                break
            left, still = self.examine(np.array([a for a, _, _ in now]), np.array([b for _, b, _ in now]))
            hard += still
            parts = max(1, min(_MAX_SPLIT, batch // max(1, len(left) + len(waiting))))
            for start, end, bound in left:
                waiting += _split(start, end, bound, parts)
        unsearched = waiting + self.search_hard(_join(hard))
        result.finished = not unsearched
        result.bound = min([result.bound, result.rate, *self.bounds_of(unsearched)])
        if result.finished and result.bound >= result.rate * (1 - 2 * CLOSE):
            result.bound = result.rate
        return result


def _split(lo: float, hi: float, bound: float, parts: int) -> list[Interval]:
    """Cut an interval into parts of equal ratio; the bound on the price at its lower end holds for all of them."""
    ends = np.geomspace(lo, hi, parts + 1).tolist()
    ends[0], ends[-1] = lo, hi
    return [(a, b, bound) for a, b in itertools.pairwise(ends) if a < b]


def _join(intervals: list[Interval]) -> list[Interval]:
    """Join neighbouring intervals; the bound of the lowest one holds for all."""
    joined: list[Interval] = []
    for lo, hi, bound in sorted(intervals):
        if joined and lo <= joined[-1][1] * _STEP:
            joined[-1] = (joined[-1][0], hi, joined[-1][2])
        else:
            joined.append((lo, hi, bound))
    return joined


def minimise(segments: Segments, options: SearchOptions = DEFAULT_OPTIONS) -> SweepResult:
    """Find the cheapest plan per sample that meets the floor, the limits and the ceiling."""
    highest = fastest_bound(segments) * (1 + FLOOR_TOLERANCE)
    sweep = _Sweep(segments, options)
    sweep.multipliers.extend(options.multipliers)
    return sweep.run(lowest_throughput(segments, segments.floor), highest)


def cheapest_at(
    segments: Segments,
    throughput: float,
    should_stop: Callable[[], bool] = lambda: False,
    multipliers: Multipliers | None = None,
    tracked: set[int] | None = None,
) -> SweepResult:
    """Find the plan with the least price per hour that reaches a throughput, at any cost per sample.

    Args:
        segments: the problem; its floor is not used.
        throughput: required samples per second.
        should_stop: called regularly; when it returns True, the result is not finished.
        multipliers: initial multipliers from nearby throughputs; replaced by those found here.
        tracked: pools with binding limits there; those binding here are added.
    """
    sweep = _Sweep(segments, SearchOptions(should_stop=should_stop))
    theta = lowest_throughput(segments, throughput)
    points = Points(segments, sweep.price, np.array([theta]))
    result = sweep.result
    if (points.room < 0).any():
        return result
    paths = cheapest_paths(points.pods * sweep.price)
    if paths.value_S[0] + points.extra[0] > sweep.ceiling:
        return result
    stages: list[Stage] | None = paths.stages(0)
    if not points.fits(0, paths.stages(0)):
        result.limits_mattered = True
        sweep.multipliers.extend(multipliers or ())
        if not sweep.multipliers:
            sweep.relax(points, [0], np.array([math.inf]), _SUBGRADIENT_STEPS)
        found = search(
            points.pods[0],
            sweep.price,
            points.room[0],
            sweep.multiplier_near(theta),
            sweep.tracked if tracked is None else tracked,
            sweep.ceiling - float(points.extra[0]),
            should_stop,
        )
        result.num_labels, result.finished, stages = found.num_labels, found.finished, found.stages
        if multipliers is not None:
            multipliers[:] = sweep.multipliers[-1:]
    result.choice, result.rate = None, math.inf  # the relaxation's by-product is feasible, not cheapest
    if stages is not None:
        sweep.offer(points, 0, stages)
    return result
