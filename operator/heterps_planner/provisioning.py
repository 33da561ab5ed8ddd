"""Exact provisioning of given schedules: how many pods each stage gets when the stages themselves are fixed.

Serves plans given by hand and the brute-force method, for one schedule or thousands at once. It is the breakpoint sweep
of erratum 8 on a single path: start at the floor, give every stage the least pods for this throughput, note the cost,
and go to the next throughput at which a cheaper plan is possible. The end comes when a limit is exceeded, or when the
cost with fractional pods, which only grows with the throughput, reaches the best cost found.

Shapes: n schedules, K stages (padded with stages that cost nothing), T pools. The parameter servers are one more stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.cost_model import FLOOR_TOLERANCE, FloatArray, Segments, pods_for_throughput
from heterps_planner.path import Stage

__all__ = ["Provisioned", "Schedules", "fastest_provision", "overload", "provision", "schedule_of"]

_STEP = 1 + 1e-9  # the next throughput beyond a breakpoint
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Schedules:
    """Stages of n schedules."""

    seq: FloatArray  # (n, K) seconds per sample
    par: FloatArray  # (n, K) seconds per sample and pod
    send_seq: FloatArray  # (n, K)
    send_par: FloatArray  # (n, K)
    pool: NDArray[np.intp]  # (n, K)
    least: FloatArray  # (n, K) least pods: 1, 0 for padding, or a number that the user fixed
    most: FloatArray  # (n, K) most pods, infinite unless fixed

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Schedules:
        """Return some of the schedules."""
        return Schedules(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Provisioned:
    """The cheapest provision of each schedule."""

    rate: FloatArray  # (n,) dollars per hour and (sample per second), infinite if no provision meets floor and limits
    pods: FloatArray  # (n, K)


def schedule_of(segments: Segments, stages: list[Stage], fixed: list[int | None]) -> Schedules:
    """Return one schedule, with the parameter servers as its last stage.

    Args:
        segments: the problem.
        stages: the stages in order.
        fixed: pods per stage; None leaves them open.
    """
    first, last, pool = (np.array(column, dtype=np.intp) for column in zip(*stages, strict=True))
    server_most = math.inf if segments.server_par else float(segments.server_pods)
    server_least = 1.0 if segments.server_par else float(segments.server_pods)
    least = [1.0 if pods is None else float(pods) for pods in fixed]
    most = [math.inf if pods is None else float(pods) for pods in fixed]
    return Schedules(
        seq=np.append(segments.seq_LLT[first, last, pool], 0.0)[None],
        par=np.append(segments.par_LLT[first, last, pool], segments.server_par)[None],
        send_seq=np.append(segments.send_seq_LT[last, pool], 0.0)[None],
        send_par=np.append(segments.send_par_LT[last, pool], 0.0)[None],
        pool=np.append(pool, segments.server_pool)[None],
        least=np.array([[*least, server_least]]),
        most=np.array([[*most, server_most]]),
    )


def _time(part: Schedules, pods: FloatArray) -> FloatArray:
    """Equation (3) of [HeterPS] for all stages; padding takes no time."""
    k = np.maximum(pods, 1.0)
    return np.maximum(part.seq + part.par / k, part.send_seq + part.send_par / k)


def _need(part: Schedules, theta: FloatArray) -> FloatArray:
    """Return the least pods with which each stage reaches its schedule's throughput, shape (n, K)."""
    need = pods_for_throughput(theta[:, None], part.seq, part.par, part.send_seq, part.send_par)
    return np.where(part.most == 0, 0.0, np.maximum(need, part.least))


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
        cost = dollars / reached
        better = allowed & (cost < best[index])
        best[index[better]] = cost[better]
        best_pods[index[better]] = pods[better]
        target = np.minimum(best[index], rate)
        # Pods that the user fixed cost the same at any throughput: they have no part in the bound, which must not fall.
        with np.errstate(divide="ignore", invalid="ignore"):
            spare, send_spare = 1 / theta[:, None] - part.seq, 1 / theta[:, None] - part.send_seq
            fractional = np.maximum(
                np.where(spare > 0, part.par / spare, np.inf),
                np.where(send_spare > 0, part.send_par / send_spare, np.inf),
            )
            fractional = np.where(np.isinf(part.most) & (price > 0), fractional, 0.0)
            bound = (price * fractional).sum(axis=1) / theta
            onward = np.maximum(reached, np.where(target > 0, dollars / target, 0.0)) * _STEP
        going = allowed & (bound < target * (1 - _TOLERANCE)) & (target > 0)
        index, theta, part = index[going], onward[going], part.select(going)
    return Provisioned(best, best_pods)


def _lowest_throughput(part: Schedules, segments: Segments) -> FloatArray:
    """Return the throughput at which the least pods suffice, or the floor if that is higher, shape (n,)."""
    slowest = _time(part, part.least).max(axis=1)
    theta: FloatArray = (1 - FLOOR_TOLERANCE) * np.maximum(segments.floor, 1 / np.maximum(slowest, 1e-300))
    return theta


def overload(schedules: Schedules, segments: Segments) -> FloatArray:
    """Measure how far schedules without a feasible provision are from having one.

    The sum of logarithms, all >= 0: by how much the pods that the floor takes exceed each pool's limit and their price
    the ceiling, and by how much stages that no number of pods makes fast enough are too slow. A layer on a pool that
    cannot run it counts as a stage that is a million times too slow.

    Args:
        schedules: n schedules.
        segments: prices, limits, floor and ceiling.

    Returns:
        Shape (n,).
    """
    theta = _lowest_throughput(schedules, segments)
    need = _need(schedules, theta)
    possible = np.isfinite(need)
    # The shortest time with any number of pods, in units of the time that the floor leaves.
    slowness = np.maximum(schedules.seq, schedules.send_seq) * theta[:, None]
    slow = np.where(possible, 0.0, 1.0 + np.log(np.clip(np.where(np.isfinite(slowness), slowness, 1e6), 1.0, 1e6)))
    pods = np.where(possible, need, schedules.least)
    used = _usage(schedules, pods, segments.num_pools)
    excess = np.log(np.maximum(used / np.maximum(segments.limit_T, 0.5), 1.0)).sum(axis=1)
    dollars = (segments.price_T[schedules.pool] * pods).sum(axis=1)
    excess += np.log(np.maximum(dollars / max(segments.ceiling, 1e-300), 1.0))
    result: FloatArray = excess + slow.sum(axis=1)
    return result


def fastest_provision(schedule: Schedules, segments: Segments) -> tuple[float, FloatArray]:
    """Find the highest throughput of one schedule within the pool limits, whatever it costs.

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
    high = float(1 / _time(schedule, full).max()) * (1 + FLOOR_TOLERANCE)
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
