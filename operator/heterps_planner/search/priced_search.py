"""One job whose pods have a price per hour and a one-time price: the pricing problem of joint plans and migrations.

A plan with price p, throughput a and u_t pods of pool t costs

    p * (hours_per_rate / a + hours) + sum over t of once_t * u_t                                   dollars,

where `hours_per_rate / a` hours of training follow `hours` of waiting at the same price. `once` are multipliers of
limits that several jobs share, or of running pods (`coupling`). A job may have one-time fees of its own in addition. At
a given throughput this is a cheapest path; over all throughputs it is branch and bound, as in `sweep`: in [lo, hi) a
plan takes at least the pods of lo and trains at least as long as at hi. Limits are not enforced here; the caller has
priced them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.search.path import Paths, Stage, cheapest_paths
from heterps_planner.search.points import Choice, Points, fastest_bound, lowest_throughput, search_prices

__all__ = ["Fees", "Priced", "PricedJob", "cheapest", "plans_below"]

_CLOSE = 2e-9  # relative; intervals closer to the best value are not searched
_STEP = 1 + 1e-9  # the next throughput beyond a breakpoint
_BATCH = 24  # intervals per round
_BATCH_NUMBERS = 2_000_000  # upper limit of the numbers in one array
_WIDE = 1.25  # intervals with a larger ratio of their ends are split before they are walked
_NARROW = 1.002  # smaller ratios are not split any more
_PATHS_PER_INTERVAL = 48  # more than these require narrower intervals


@dataclass(frozen=True)
class Fees:
    """What each pod of a plan costs once besides its price, all >= 0."""

    pod_T: FloatArray  # noqa: N815  # dollars per pod of a stage
    server: float  # dollars per pod of the parameter servers
    server_samples: float  # the same, times the throughput in samples per second: what a slower job pays more

    def of_server(self, throughput: FloatArray) -> FloatArray:
        """Return dollars per pod of the servers at these throughputs."""
        result: FloatArray = self.server + self.server_samples / throughput
        return result


@dataclass(frozen=True)
class PricedJob:
    """A problem's segments, and the duration for which its pods are paid."""

    segments: Segments
    hours_per_rate: float  # hours of training x (samples/s): samples / 3600
    hours: float = 0.0  # paid in addition, without training
    fees: Fees | None = None
    lowest: float = field(init=False)  # lowest throughput to search, samples per second
    highest: float = field(init=False)
    price_T: FloatArray = field(init=False)  # noqa: N815  # dollars per pod and hour, none of them 0

    def __post_init__(self) -> None:
        lowest = lowest_throughput(self.segments, self.segments.floor)
        object.__setattr__(self, "lowest", lowest)
        object.__setattr__(self, "highest", fastest_bound(self.segments) * (1 + FLOOR_TOLERANCE))
        object.__setattr__(self, "price_T", search_prices(self.segments))

    def dollars(self, choice: Choice) -> float:
        """Cost of a plan with its fees, without one-time prices."""
        return choice.price * (self.hours_per_rate / choice.throughput + self.hours) + self.fee(choice)

    def fee(self, choice: Choice) -> float:
        """Fees of a plan in dollars."""
        if self.fees is None:
            return 0.0
        pods = math.fsum(self.fees.pod_T[t] * n for n, (_, _, t) in zip(choice.pods, choice.stages, strict=True))
        return pods + choice.server_pods * float(self.fees.of_server(np.array(choice.throughput)))

    @property
    def most_dollars(self) -> float:
        """No plan within the limits costs more: all pods for the duration of the slowest training."""
        limit, pool = self.segments.limit_T, self.segments.server_pool
        dollars = float(self.price_T @ limit) * (self.hours_per_rate / self.lowest + self.hours)
        if self.fees is not None:
            dollars += float(self.fees.pod_T @ limit) + float(limit[pool] * self.fees.of_server(np.array(self.lowest)))
        return dollars

    def used(self, choice: Choice) -> FloatArray:
        """Pods per pool of a plan, shape (T,)."""
        used = np.zeros(self.segments.num_pools)
        for (_, _, pool), pods in zip(choice.stages, choice.pods, strict=True):
            used[pool] += pods
        used[self.segments.server_pool] += choice.server_pods
        return used

    def allows(self, choice: Choice) -> bool:
        """Whether a plan keeps this job's own limits and its ceiling."""
        within = choice.price <= self.segments.ceiling * (1 + FLOOR_TOLERANCE)
        return within and bool((self.used(choice) <= self.segments.limit_T).all())


@dataclass(frozen=True)
class Priced:
    """The outcome of `cheapest`."""

    bound: float  # dollars; no plan costs less
    choices: tuple[Choice, ...]  # plans found on the way, the cheapest first


class _Rows:
    """The cheapest path of each of S intervals of the throughput."""

    def __init__(self, job: PricedJob, lo: FloatArray, hi: FloatArray, once_T: FloatArray) -> None:  # noqa: N803
        self.job = job
        self.points = Points(job.segments, job.price_T, lo)
        hours = job.hours_per_rate / hi + job.hours
        unit_price = job.price_T * hours[:, None] + once_T  # (S, T) dollars per pod
        server_price = unit_price[:, job.segments.server_pool]
        if job.fees is not None:
            server_price = server_price + job.fees.of_server(hi)
            unit_price = unit_price + job.fees.pod_T
        self.weight = self.points.pods * unit_price[:, None, None, :]
        self.paths: Paths = cheapest_paths(self.weight)
        self.servers = self.points.server * server_price
        self.value = self.paths.value_S + self.servers
        self.value[(self.points.room < 0).any(axis=1)] = math.inf

    def choice(self, row: int, stages: list[Stage]) -> Choice:
        """Return the plan of a path with the pods of the interval's lower end."""
        segments, price = self.job.segments, self.job.price_T
        pods = tuple(int(self.points.pods[row, a, b, t]) for a, b, t in stages)
        servers = int(self.points.server[row])
        slowest = max(segments.stage_time(*stage, n) for stage, n in zip(stages, pods, strict=True))
        throughput = min(1 / slowest, segments.server_throughput(servers))
        dollars = math.fsum(n * price[t] for n, (_, _, t) in zip(pods, stages, strict=True))
        return Choice(tuple(stages), pods, servers, throughput, dollars + servers * float(price[segments.server_pool]))


def _batch_size(job: PricedJob) -> int:
    size = job.segments.num_layers**2 * job.segments.num_pools
    return max(1, min(_BATCH, _BATCH_NUMBERS // size))


def _intervals(lo: float, hi: float, parts: int) -> list[tuple[float, float]]:
    ends = np.geomspace(lo, hi, parts + 1).tolist()
    ends[0], ends[-1] = lo, hi
    return [(a, b) for a, b in itertools.pairwise(ends) if a < b]


def cheapest(
    job: PricedJob,
    once_T: FloatArray,  # noqa: N803
    should_stop: Callable[[], bool] = lambda: False,
    keep: int = 6,
) -> Priced:
    """Find the cheapest plan, ignoring limits and ceiling.

    Args:
        job: the job to plan.
        once_T: dollars per pod, paid once, >= 0.
        should_stop: called regularly; when it returns True, the bound is lower than the best plan.
        keep: number of found plans to return.
    """
    best, met = math.inf, {}
    waiting = [(0.0, a, b) for a, b in _intervals(job.lowest, job.highest, _batch_size(job))]
    if job.lowest >= job.highest:
        return Priced(math.inf, ())
    while waiting:
        waiting = [item for item in waiting if item[0] < best * (1 - _CLOSE)]
        waiting.sort()
        now, waiting = waiting[: _batch_size(job)], waiting[_batch_size(job) :]
        if not now or should_stop():
            waiting += now
            break
        lo, hi = np.array([a for _, a, _ in now]), np.array([b for _, _, b in now])
        rows = _Rows(job, lo, hi, once_T)
        for row in np.flatnonzero(np.isfinite(rows.value)).tolist():
            choice = rows.choice(row, rows.paths.stages(row))
            value = job.dollars(choice) + float(once_T @ job.used(choice))
            met[choice] = value
            best = min(best, value)
            bound, end = float(rows.value[row]), float(hi[row])
            # Beyond this plan's throughput some stage has to grow: a natural place to cut.
            cut = choice.throughput * _STEP
            middle = math.sqrt(lo[row] * end)
            if cut < end:
                waiting += [(bound, float(lo[row]), cut), (bound, cut, end)]
            elif bound < best * (1 - _CLOSE) and middle > lo[row] * _STEP:
                waiting += [(bound, float(lo[row]), middle), (bound, middle, end)]
    order = sorted(met, key=lambda choice: (met[choice], choice.stages, choice.pods))
    bound = min([best, *(item[0] for item in waiting)])
    return Priced(bound, tuple(order[:keep]))


def plans_below(
    job: PricedJob,
    once_T: FloatArray,  # noqa: N803
    cutoff: float,
    most: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Choice] | None:
    """List every sensible plan that costs at most `cutoff` and keeps the job's own limits.

    Sensible: no stage has more pods than it needs for the throughput of the plan.

    Args:
        job: the job to plan.
        once_T: dollars per pod, paid once, >= 0.
        cutoff: dollars.
        most: give up beyond this number of plans, paths or intervals.
        should_stop: give up when it returns True.

    Returns:
        The plans, or None if there are too many.
    """
    found: set[Choice] = set()
    work = 0
    waiting = _intervals(job.lowest, job.highest, _batch_size(job)) if job.lowest < job.highest else []
    while waiting:
        now, waiting = waiting[: _batch_size(job)], waiting[_batch_size(job) :]
        work += len(now)
        rows = _Rows(job, np.array([a for a, _ in now]), np.array([b for _, b in now]), once_T)
        walks: list[tuple[float, float, list[Stage]]] = []
        for row in np.flatnonzero(rows.value <= cutoff).tolist():
            lo, hi = now[row]
            if hi > lo * _WIDE:
                waiting += _intervals(lo, hi, 4)
                continue
            paths = _paths_below(rows, row, cutoff, most if hi < lo * _NARROW else _PATHS_PER_INTERVAL)
            if paths is None and hi < lo * _NARROW:
                return None
            if paths is None:
                waiting += _intervals(lo, hi, 4)
            else:
                walks += [(lo, hi, path) for path in paths]
        while walks:
            part, walks = walks[: _batch_size(job)], walks[_batch_size(job) :]
            work += len(part)
            if work > most or should_stop():
                return None
            theta = np.array([lo for lo, _, _ in part])
            step = _Rows(job, theta, theta, once_T)
            for row, (_, hi, path) in enumerate(part):
                needs = [float(step.points.pods[row, a, b, t]) for a, b, t in path]
                if not all(map(math.isfinite, needs)) or step.value[row] == math.inf:
                    continue
                choice = step.choice(row, path)
                if not job.allows(choice):
                    continue  # a higher throughput takes more pods
                if job.dollars(choice) + float(once_T @ job.used(choice)) <= cutoff:
                    found.add(choice)
                if choice.throughput * _STEP < hi:
                    walks.append((choice.throughput * _STEP, hi, path))
        if work > most or len(found) > most or should_stop():
            return None
    return sorted(found, key=lambda choice: (choice.stages, choice.pods, choice.server_pods))


def _paths_below(rows: _Rows, row: int, cutoff: float, most: int) -> list[list[Stage]] | None:
    """List the paths of an interval whose bound is at most `cutoff`; None: more than `most`."""
    num_layers = rows.job.segments.num_layers
    weight = rows.weight[row]
    rest = rows.paths.togo_SLT[row]
    room = cutoff - float(rows.servers[row])
    paths: list[list[Stage]] = []
    stack: list[tuple[int, int, float, list[Stage]]] = [(0, -1, 0.0, [])]
    while stack:
        layer, before, spent, stages = stack.pop()
        if layer == num_layers:
            paths.append(stages)
            if len(paths) > most:
                return None
            continue
        onward = spent + weight[layer, layer:, :] + rest[layer + 1 :, :]  # (L - layer, T)
        if before >= 0:
            onward[:, before] = math.inf
        for offset, pool in np.argwhere(onward <= room).tolist():
            last = layer + offset
            stack.append((last + 1, pool, spent + float(weight[layer, last, pool]), [*stages, (layer, last, pool)]))
    return paths
