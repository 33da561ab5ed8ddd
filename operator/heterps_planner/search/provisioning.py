"""Exact provisioning of given schedules: the pods of each stage when the stages are fixed.

Used for hand-written plans and the brute-force method, for one schedule or thousands at once. It is the breakpoint
sweep of erratum 8 on a single path: start at the floor, give every stage the least pods for this throughput, note the
cost, and go to the next throughput at which a cheaper plan is possible. It ends when a limit is exceeded, or when no
larger number of pods costs less per throughput than the best plan found.

Shapes: n schedules, K stages (padded with stages that cost nothing), T pools. The parameter servers are one more stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.cost_model import FLOOR_TOLERANCE, pods_for_throughput, with_bubble, work_for_throughput
from heterps_planner.model.pieces import FloatArray, Piece, fastest, least_pods, least_product, time_on
from heterps_planner.model.segments import Segments
from heterps_planner.search.path import Stage

__all__ = [
    "Provisioned",
    "Schedules",
    "fastest_provision",
    "make_schedules",
    "overload",
    "provision",
    "schedule_of",
]

_STEP = 1 + 1e-9  # the next throughput beyond a breakpoint
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Schedules:
    """Stages of n schedules."""

    seq: FloatArray  # (n, K) seconds per sample
    par: FloatArray  # (n, K) seconds per sample and pod
    send_seq: FloatArray  # (n, K)
    send_par: FloatArray  # (n, K)
    bubble: FloatArray  # (n, K) seconds per sample that a stage waits in each step, see `with_bubble`
    overlap: FloatArray  # (n, K) 1 - 1/M of M micro-batches, 1 for the servers and for padding
    pool: NDArray[np.intp]  # (n, K)
    # (n, K) least pods: 1, 0 for padding, the number that the memory requires, or a number fixed by the user
    least: FloatArray
    most: FloatArray  # (n, K) most pods, infinite unless fixed
    loss: FloatArray  # (n, K) seconds lost per second and pod
    loss_samples: FloatArray  # (n, K) the same, times the throughput
    pieces: FloatArray  # (n, R, 4, K) low, high, seq, par of R ranges of pods, with tables; seq and par are the first's

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Schedules:
        """Return some of the schedules."""
        return Schedules(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Provisioned:
    """The cheapest provision of each schedule."""

    rate: FloatArray  # (n,) dollars per hour and (sample per second), infinite if no provision meets floor and limits
    pods: FloatArray  # (n, K)


def make_schedules(
    segments: Segments,
    first: NDArray[np.intp],
    last: NDArray[np.intp],
    pool: NDArray[np.intp],
    exists: NDArray[np.bool_],
) -> Schedules:
    """Look up the work of n schedules, and add the parameter servers as their last stage.

    Args:
        segments: the problem.
        first: first layer of each stage, shape (n, K).
        last: last layer of each stage.
        pool: pool of each stage.
        exists: false for padding, which takes neither time nor pods; its indices only have to be valid.
    """
    n = len(pool)

    def column(values: FloatArray | float, server: float, padding: float = 0.0) -> FloatArray:
        return np.hstack([np.where(exists, values, padding), np.full((n, 1), server)])

    least = 1.0 if segments.least_LLT is None else segments.least_LLT[first, last, pool]
    fits = np.isfinite(least)
    pieces = np.zeros((n, len(segments.pieces), 4, pool.shape[1] + 1))
    for r, piece in enumerate(segments.pieces):
        seq = np.where(fits, piece.seq[first, last, pool], np.inf)
        pieces[:, r, 0] = column(piece.low[pool], 1.0)
        pieces[:, r, 1] = column(piece.high[pool], np.inf, np.inf)
        pieces[:, r, 2] = column(seq, 0.0)
        pieces[:, r, 3] = column(piece.par[first, last, pool], segments.server_par)
    none = np.zeros(segments.num_pools)
    return Schedules(
        loss=column((none if segments.loss_T is None else segments.loss_T)[pool], segments.server_loss),
        loss_samples=column(none[pool], segments.server_loss_samples),
        seq=column(np.where(fits, segments.seq_LLT[first, last, pool], np.inf), 0.0),
        par=column(segments.par_LLT[first, last, pool], segments.server_par),
        send_seq=column(segments.send_seq_LT[last, pool], 0.0),
        send_par=column(segments.send_par_LT[last, pool], 0.0),
        bubble=column(0.0 if segments.bubble_LLT is None else segments.bubble_LLT[first, last, pool], 0.0),
        overlap=column(segments.overlap, 1.0, 1.0),
        pool=np.hstack([pool, np.full((n, 1), segments.server_pool, dtype=np.intp)]),
        least=column(np.where(fits, least, 1.0), segments.server_least),
        most=column(np.inf, segments.server_most),
        pieces=pieces,
    )


def schedule_of(segments: Segments, stages: list[Stage], fixed: list[int | None]) -> Schedules:
    """Return one schedule, with the parameter servers as its last stage.

    Args:
        segments: the problem.
        stages: the stages in order.
        fixed: pods per stage; None leaves them open.
    """
    first, last, pool = (np.array(column, dtype=np.intp)[None] for column in zip(*stages, strict=True))
    schedule = make_schedules(segments, first, last, pool, np.ones((1, len(stages)), dtype=bool))
    for i, pods in enumerate(fixed):
        if pods is not None:
            schedule.least[0, i] = schedule.most[0, i] = pods
    return schedule


def _pieces(part: Schedules) -> list[Piece]:
    return [Piece(*np.moveaxis(part.pieces[:, r], 1, 0)) for r in range(part.pieces.shape[1])]


def _time(part: Schedules, pods: FloatArray) -> FloatArray:
    """Equation (3) of [HeterPS] for all stages; padding takes no time."""
    k = np.maximum(pods, 1.0)
    compute = time_on(k, pieces) if (pieces := _pieces(part)) else part.seq + part.par / k
    return np.maximum(with_bubble(compute, part.bubble, part.overlap), part.send_seq + part.send_par / k)


def _least_time(part: Schedules, most: FloatArray) -> FloatArray:
    """Return a lower bound on the time of each stage with at most this many pods, shape (n, K)."""
    most = np.maximum(most, 1.0)
    compute = fastest(part.least, most, pieces) if (pieces := _pieces(part)) else part.seq + part.par / most
    return np.maximum(with_bubble(compute, part.bubble, part.overlap), part.send_seq + part.send_par / most)


def _need(part: Schedules, theta: FloatArray) -> FloatArray:
    """Return the least pods with which each stage reaches its schedule's throughput, shape (n, K)."""
    theta = theta[:, None]
    seconds = work_for_throughput(theta, part.bubble, part.overlap)
    if pieces := _pieces(part):
        base = pods_for_throughput(theta, np.zeros(1), np.zeros(1), part.send_seq, part.send_par)
        need = least_pods(seconds, np.maximum(base, part.least), pieces)
    else:
        need = pods_for_throughput(theta, part.seq, part.par, part.send_seq, part.send_par, seconds)
        need = np.maximum(need, part.least)
    return np.where(part.most == 0, 0.0, need)


def _least_product(part: Schedules, pods: FloatArray) -> FloatArray:
    """Return a lower bound on the pods per throughput of each stage, with these pods or more, shape (n, K)."""
    k = np.maximum(pods, 1.0)
    compute = least_product(k, pieces) if (pieces := _pieces(part)) else part.seq * k + part.par
    return np.maximum(with_bubble(compute, part.bubble * k, part.overlap), part.send_seq * k + part.send_par)


def _usage(part: Schedules, pods: FloatArray, num_pools: int) -> FloatArray:
    """Return pods per pool, shape (n, T)."""
    n = len(pods)
    flat = (np.arange(n)[:, None] * num_pools + part.pool).ravel()
    counts: FloatArray = np.bincount(flat, weights=pods.ravel(), minlength=n * num_pools).astype(np.float64)
    return counts.reshape(n, num_pools)


def provision(schedules: Schedules, segments: Segments, rate: float = math.inf) -> Provisioned:
    """Find the cheapest pods per sample for every schedule.

    Args:
        schedules: n schedules.
        segments: prices, limits, floor and ceiling.
        rate: only costs below this are of interest, dollars per hour and (sample per second); 0 and inf are allowed.
    """
    n = len(schedules.seq)
    best = np.full(n, np.inf)
    best_pods = np.zeros_like(schedules.seq)
    index = np.arange(n)
    part = schedules
    theta = _lowest_throughput(part, segments)
    while len(index):
        price = segments.price_T[part.pool]  # (n, K)
        need = _need(part, theta)
        reachable = (need <= part.most).all(axis=1) & np.isfinite(need).all(axis=1)
        pods = np.where(np.isfinite(need), need, part.least)
        dollars = (price * pods).sum(axis=1)
        allowed = reachable & (_usage(part, pods, segments.num_pools) <= segments.limit_T).all(axis=1)
        allowed &= dollars <= segments.ceiling * (1 + FLOOR_TOLERANCE)
        reached = 1 / _time(part, pods).max(axis=1)
        always = 1 + (part.loss * pods).sum(axis=1)  # and what a slower job loses in addition
        with np.errstate(divide="ignore", invalid="ignore"):  # impossible stages have no throughput
            cost = dollars / reached * (always + (part.loss_samples * pods).sum(axis=1) / reached)
        better = allowed & (cost < best[index])
        best[index[better]] = cost[better]
        best_pods[index[better]] = pods[better]
        target = np.minimum(best[index], rate)
        # Pods fixed by the user cost the same at any throughput, so they are left out of the bound, which must not
        # fall.
        with np.errstate(divide="ignore", invalid="ignore"):
            open_stage = np.isinf(part.most) & (price > 0)
            bound = (price * np.where(open_stage, _least_product(part, pods), 0.0)).sum(axis=1) * always
            # Rounding may let pods pass for a throughput that they do not quite reach, so theta itself is a bound too.
            onward = (
                np.maximum(np.maximum(reached, theta), np.where(target > 0, dollars * always / target, 0.0)) * _STEP
            )
        going = allowed & (bound < target * (1 - _TOLERANCE)) & (target > 0)
        index, theta, part = index[going], onward[going], part.select(going)
    return Provisioned(best, best_pods)


def _lowest_throughput(part: Schedules, segments: Segments) -> FloatArray:
    """Return the throughput at which the least pods suffice, or the floor if that is higher, shape (n,)."""
    slowest = _time(part, part.least).max(axis=1)
    theta: FloatArray = (1 - FLOOR_TOLERANCE) * np.maximum(segments.floor, 1 / np.maximum(slowest, 1e-300))
    return theta


def overload(schedules: Schedules, segments: Segments) -> FloatArray:
    """Measure how far infeasible schedules are from feasibility.

    A sum of logarithms, all >= 0: the excess of the pods that the floor requires over each pool's limit, of their price
    over the ceiling, and of the time of stages that are too slow on any number of pods. A layer on a pool that cannot
    run it counts as a stage that is a million times too slow.

    Args:
        schedules: n schedules.
        segments: prices, limits, floor and ceiling.

    Returns:
        Shape (n,).
    """
    theta = _lowest_throughput(schedules, segments)
    need = _need(schedules, theta)
    possible = np.isfinite(need)
    # The shortest time on any number of pods, in units of the time that the floor allows.
    slowness = _least_time(schedules, np.full_like(schedules.most, np.inf)) * theta[:, None]
    slow = np.where(possible, 0.0, 1.0 + np.log(np.clip(np.where(np.isfinite(slowness), slowness, 1e6), 1.0, 1e6)))
    pods = np.where(possible, need, schedules.least)
    used = _usage(schedules, pods, segments.num_pools)
    excess = np.log(np.maximum(used / np.maximum(segments.limit_T, 0.5), 1.0)).sum(axis=1)
    dollars = (segments.price_T[schedules.pool] * pods).sum(axis=1)
    excess += np.log(np.maximum(dollars / max(segments.ceiling, 1e-300), 1.0))
    result: FloatArray = excess + slow.sum(axis=1)
    return result


def fastest_provision(schedule: Schedules, segments: Segments) -> tuple[float, FloatArray]:
    """Find the highest throughput of one schedule within the pool limits, at any cost.

    Throughput thresholds are searched by bisection over a monotone test; the pods of the last one that passed give the
    exact value.

    Returns:
        Throughput (0 if even one pod per stage is too much) and pods, shape (K,).
    """
    pods = schedule.least.copy()
    used = _usage(schedule, pods, segments.num_pools)[0]
    if (used > segments.limit_T).any():
        return 0.0, pods[0]
    low = float(1 / _time(schedule, pods).max())
    full = np.where(np.isinf(schedule.most), np.maximum(segments.limit_T[schedule.pool], 1.0), schedule.most)
    high = float(1 / _least_time(schedule, full).max()) * (1 + FLOOR_TOLERANCE)
    while high > low * (1 + FLOOR_TOLERANCE):
        theta = math.sqrt(low * high)
        need = _need(schedule, np.array([theta]))
        fits = bool((need <= schedule.most).all()) and bool(np.isfinite(need).all())
        if fits and bool((_usage(schedule, need, segments.num_pools)[0] <= segments.limit_T).all()):
            pods = need
            low = max(theta, float(1 / _time(schedule, pods).max()))
        else:
            high = theta
    return float(1 / _time(schedule, pods).max()), pods[0]
