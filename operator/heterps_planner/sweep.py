"""The cheapest plan over all throughputs, with a certificate: branch and bound over intervals of the throughput.

Let `P(theta)` be the least price per hour of a plan that reaches at least theta. It never falls with theta, because a plan
for a higher throughput also serves a lower one. The cost per sample of a plan with price p and throughput a is p / a,
so every plan with a throughput in [lo, hi) costs at least `P(lo) / hi`. With U the best cost found so far:

1. Cut the range of reachable throughputs into intervals and bound `P(lo)` of all of them at once: first without pool
   limits (often enough), then with priced limits (`path.relax`).
2. Close an interval whose bound divided by `hi` reaches U.
3. If `P(lo)` is known exactly, by a plan that reaches a >= lo, then nothing below `max(a, P(lo) / U)` is better than U:
   the interval continues there. That is the breakpoint sweep of erratum 8. With a bound instead of P(lo) it continues at
   `bound / U`; only if that gives no progress, `labels.search` finds P(lo) exactly.
4. Split what is left and repeat. When nothing is left, U is the optimum.

Closing an interval uses a relative tolerance of CLOSE, so "optimal" means: within 1e-9 of the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from heterps_planner.cost_model import FLOOR_TOLERANCE, FloatArray, Segments
from heterps_planner.labels import search
from heterps_planner.path import Stage, cheapest_paths, relax

__all__ = ["CLOSE", "Choice", "SweepResult", "cheapest_at", "fastest_bound", "minimise"]

CLOSE = 1e-9
_STEP = 1 + 1e-9  # the next throughput beyond a breakpoint
_PROGRESS = 1 + 1e-6  # a bound that moves an interval by less than this is not worth another round
_BATCH = 20  # intervals per round; more cost time per round, fewer cost rounds
_BATCH_NUMBERS = 2_000_000  # upper limit of the numbers in one array
_SUBGRADIENT_STEPS = 24
# Units without a price still get a tiny one, so that the search has no ties between using and wasting them.
_TINY_PRICE = 1e-13


@dataclass(frozen=True)
class Choice:
    """Stages with their pods: a plan before it has names."""

    stages: tuple[Stage, ...]
    pods: tuple[int, ...]
    server_pods: int
    throughput: float  # samples per second
    price: float  # dollars per hour, at search prices


@dataclass
class SweepResult:
    """The outcome of `minimise`."""

    choice: Choice | None  # None: no plan (below the given cost)
    rate: float  # dollars per hour and (sample per second) of the choice, infinite if there is none
    bound: float  # the same for the lower bound
    finished: bool  # not stopped by the clock
    limits_mattered: bool = False  # some relaxed plan was ruled out by a pool limit only
    num_points: int = 0  # throughputs examined
    num_labels: int = 0
    multiplier_T: FloatArray = field(default_factory=lambda: np.zeros(0))  # noqa: N815


def search_prices(segments: Segments) -> FloatArray:
    """Return prices per pod with a tiny one in place of zero."""
    highest = float(segments.price_T.max())
    return np.maximum(segments.price_T, _TINY_PRICE * highest if highest > 0 else 1.0)


def fastest_bound(segments: Segments) -> float:
    """Return a throughput that no plan exceeds: each segment alone may use its pool's whole limit."""
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = segments.limit_T
        time = np.maximum(
            segments.seq_LLT + segments.par_LLT / limit, segments.send_seq_LT + segments.send_par_LT / limit
        )
    time = np.where((limit > 0) & ~np.isnan(time), time, np.inf)
    rest = np.zeros(segments.num_layers + 1)
    for first in range(segments.num_layers - 1, -1, -1):
        rest[first] = np.maximum(time[first, first:, :].min(axis=1), rest[first + 1 :]).min()
    room = float(segments.limit_T[segments.server_pool])
    if room < segments.server_pods:
        return 0.0
    return float(min(1 / rest[0], segments.server_throughput(room)))


class _Points:
    """The problem at S throughputs, and what is known about each."""

    def __init__(self, segments: Segments, price_T: FloatArray, theta_S: FloatArray) -> None:  # noqa: N803
        self.theta = theta_S
        self.server = segments.server_need(theta_S)
        self.extra = self.server * price_T[segments.server_pool]  # dollars per hour of the servers
        self.room = np.tile(segments.limit_T, (len(theta_S), 1))  # pods that are left for the stages
        self.room[:, segments.server_pool] -= self.server
        self.pods = segments.pods(theta_S)
        if segments.server_par or segments.server_pods:
            self.pods[self.pods > self.room[:, None, None, :]] = np.inf
        self.bound = np.zeros(len(theta_S))  # of the price per hour, servers included
        self.reach = np.zeros(len(theta_S))  # throughput of a plan whose price is the bound; 0: none known

    def used(self, row: int, stages: list[Stage]) -> FloatArray:
        """Return the pods per pool of a path."""
        used = np.zeros(self.room.shape[1])
        for first, last, pool in stages:
            used[pool] += self.pods[row, first, last, pool]
        return used

    def fits(self, row: int, stages: list[Stage]) -> bool:
        """Say whether a path keeps the limits."""
        return bool((self.used(row, stages) <= self.room[row]).all())


class _Sweep:
    """State of one minimisation."""

    def __init__(self, segments: Segments, rate: float, eps: float, should_stop: Callable[[], bool]) -> None:
        self.segments = segments
        self.price = search_prices(segments)
        self.should_stop = should_stop
        self.eps = eps
        self.result = SweepResult(None, rate, math.inf, True)
        self.multiplier = np.zeros(segments.num_pools)
        self.tracked: set[int] = set()
        # No plan within the limits costs more than all units together.
        self.ceiling = min(segments.ceiling, float(self.price @ segments.limit_T)) * (1 + FLOOR_TOLERANCE)
        self.cut = math.inf  # at and beyond this throughput there is no plan

    def offer(self, points: _Points, row: int, stages: list[Stage]) -> tuple[float, float]:
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
        return price, throughput

    def closes(self, rate: float) -> bool:
        """Say whether a lower bound on the cost ends the search of an interval; if so, record it."""
        if rate < self.result.rate * (1 - CLOSE) / (1 + self.eps):
            return False
        self.result.bound = min(self.result.bound, rate)
        return True

    def examine(self, lo: FloatArray, hi: FloatArray) -> list[tuple[float, float, float]]:
        """Bound all intervals once; return what is left of them as (lo, hi, bound on the price per hour)."""
        points = _Points(self.segments, self.price, lo)
        self.result.num_points += len(lo)
        paths = cheapest_paths(points.pods * self.price)
        points.bound = paths.value_S + points.extra
        hard: list[int] = []
        rows: list[int] = []
        for row in map(int, np.argsort(lo)):
            if lo[row] >= self.cut:
                continue
            if points.bound[row] > self.ceiling or (points.room[row] < 0).any():
                self.cut = float(lo[row])
                continue
            rows.append(row)
            stages = paths.stages(row)
            if points.fits(row, stages):
                points.bound[row], points.reach[row] = self.offer(points, row, stages)
            else:
                hard.append(row)
        hard = [row for row in hard if not self.closes(points.bound[row] / hi[row])]
        if hard:
            self.result.limits_mattered = True
            self.relax(points, hard, hi)
            for row in sorted(hard, key=lambda r: float(points.bound[r] / lo[r])):
                self.settle(points, row, float(hi[row]))
        left = []
        for row in rows:
            bound, start = float(points.bound[row]), float(lo[row])
            if start >= self.cut or self.closes(bound / hi[row]):
                continue
            start = max(start, bound / self.result.rate, float(points.reach[row]))
            if points.reach[row] > 0:
                start *= _STEP
            if start < hi[row]:
                left.append((start, float(hi[row]), bound))
            else:
                self.closes(self.result.rate)
        return left

    def cutoff(self, points: _Points, row: int, hi: float) -> float:
        """Return the price per hour from which on a plan of this interval is of no interest."""
        return min(self.ceiling, self.result.rate * hi)

    def relax(self, points: _Points, rows: list[int], hi: FloatArray) -> None:
        """Raise the bounds of intervals whose cheapest path breaks a limit."""
        extra = points.extra[rows]
        relaxation = relax(
            points.pods[rows],
            self.price,
            points.room[rows],
            np.tile(self.multiplier, (len(rows), 1)),
            np.array([self.cutoff(points, row, hi[row]) for row in rows]) - extra,
            _SUBGRADIENT_STEPS,
            lambda i, stages: self.offer(points, rows[i], stages)[0] - float(extra[i]),
        )
        for i, row in enumerate(rows):
            points.bound[row] = max(points.bound[row], relaxation.bound_S[i] + extra[i])
        best = int(np.argmin(relaxation.bound_S / points.theta[rows]))
        self.multipliers = dict(zip(rows, relaxation.multiplier_ST, strict=True))
        self.multiplier = relaxation.multiplier_ST[best]

    def settle(self, points: _Points, row: int, hi: float) -> None:
        """Find P(lo) exactly unless the bound already closes the interval or moves its lower end."""
        lo = float(points.theta[row])
        cutoff = self.cutoff(points, row, hi)
        if lo >= self.cut or points.bound[row] >= cutoff:
            self.note_empty(points, row, cutoff, hi)
            return
        if points.bound[row] / lo >= self.result.rate * _PROGRESS or self.should_stop():
            return
        found = search(
            points.pods[row],
            self.price,
            points.room[row],
            self.multipliers[row],
            self.tracked,
            cutoff - float(points.extra[row]),
            self.should_stop,
        )
        self.result.num_labels += found.num_labels
        if found.stages is not None:
            points.bound[row], points.reach[row] = self.offer(points, row, found.stages)
            return
        points.bound[row] = max(points.bound[row], found.bound + points.extra[row])
        if found.finished:
            self.note_empty(points, row, cutoff, hi)

    def note_empty(self, points: _Points, row: int, cutoff: float, hi: float) -> None:
        """Record that an interval has no plan below the cutoff: nor has any later one, if all plans were counted."""
        if cutoff >= self.ceiling:
            self.cut = min(self.cut, float(points.theta[row]))
        points.bound[row] = max(points.bound[row], cutoff)

    def run(self, lo: float, hi: float) -> SweepResult:
        """Search all throughputs in [lo, hi)."""
        size = self.segments.num_layers**2 * self.segments.num_pools
        batch = max(1, min(_BATCH, _BATCH_NUMBERS // size))
        waiting = _split(lo, hi, 0.0, batch) if lo < hi else []
        while waiting:
            waiting = [(a, b, p) for a, b, p in waiting if a < self.cut and not self.closes(p / b)]
            if self.should_stop():
                self.result.finished = False
                self.result.bound = min([self.result.bound, *(p / b for a, b, p in waiting)])
                break
            waiting.sort(key=lambda interval: interval[2] / interval[1])
            now, waiting = waiting[:batch], waiting[batch:]
            if not now:
                break
            left = self.examine(np.array([a for a, _, _ in now]), np.array([b for _, b, _ in now]))
            parts = max(1, min(6, batch // max(1, len(left) + len(waiting))))
            for start, end, bound in left:
                waiting += _split(start, end, bound, parts)
        result = self.result
        result.bound = min(result.bound, result.rate)
        if result.finished and result.bound >= result.rate * (1 - 2 * CLOSE):
            result.bound = result.rate
        result.multiplier_T = self.multiplier
        return result


def _split(lo: float, hi: float, bound: float, parts: int) -> list[tuple[float, float, float]]:
    """Cut an interval into parts of equal ratio; the bound on the price at its lower end holds for all of them."""
    ends = np.geomspace(lo, hi, parts + 1).tolist()
    ends[0], ends[-1] = lo, hi
    return [(a, b, bound) for a, b in zip(ends, ends[1:], strict=False) if a < b]


def lowest_throughput(segments: Segments) -> float:
    """Return a throughput at which one pod per stage always suffices, or the floor if that is higher."""
    time = np.maximum(segments.seq_LLT + segments.par_LLT, segments.send_seq_LT + segments.send_par_LT)
    slowest = float(time[np.isfinite(time)].max(initial=segments.server_par))
    if slowest == 0:
        return segments.floor
    return max(segments.floor * (1 - FLOOR_TOLERANCE), (1 - FLOOR_TOLERANCE) / slowest)


def minimise(
    segments: Segments,
    *,
    eps: float = 0.0,
    rate: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepResult:
    """Find the cheapest plan per sample that meets the floor, the limits and the ceiling.

    Args:
        segments: the problem.
        eps: relative gap with which the search may end; 0 asks for the optimum.
        rate: only plans that cost less than this are of interest, dollars per hour and (sample per second).
        should_stop: asked now and then; when it returns True, the best plan so far is returned with its bound.
    """
    highest = fastest_bound(segments) * (1 + FLOOR_TOLERANCE)
    return _Sweep(segments, rate, eps, should_stop).run(lowest_throughput(segments), highest)


def cheapest_at(
    segments: Segments, throughput: float, should_stop: Callable[[], bool] = lambda: False
) -> SweepResult:
    """Find the plan with the least price per hour that reaches a throughput, whatever it costs per sample.

    The result's `rate` and `bound` are per sample at the throughput reached, as in `minimise`.
    """
    sweep = _Sweep(segments, math.inf, 0.0, should_stop)
    theta = np.array([max(throughput, lowest_throughput(replace(segments, floor=0.0)))])
    sweep.examine(theta, np.array([math.inf]))
    result = sweep.result
    result.finished = not should_stop()
    result.multiplier_T = sweep.multiplier
    return result
