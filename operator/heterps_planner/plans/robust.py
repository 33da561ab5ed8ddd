"""Plans that keep the floor in spite of profile errors: every stage gets a margin for its own risk.

A layer's true time on a pool is modelled as the measured one times a lognormal error of relative size `error` (sigma of
its logarithm), independent between layers and pools. The errors of a stage's layers average out, so a stage of many
layers needs a smaller margin than one of a single layer. The sum of a stage's times is matched by a lognormal with the
same mean and variance (Fenton, "The sum of log-normal probability distributions in scatter transmission systems", IRE
Transactions on Communications Systems, 1960):

    v = (exp(error^2) - 1) * sum w_l^2 / (sum w_l)^2,  s^2 = ln(1 + v),  margin = exp(error^2/2 - s^2/2 + z s)

with w_l the times of the layers and z the normal quantile. With every segment's times multiplied by its margin the
problem has the same form as before, so all methods, the certificate and the shadow prices carry over. A plan of K
stages keeps its throughput with probability CONFIDENCE if each stage and each transfer does with CONFIDENCE^(1 / 2K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from heterps_planner.errors import ProblemError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE, layer_seconds
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.problem import Problem, table_units
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.plan import Robustness
from heterps_planner.search.points import Choice
from heterps_planner.search.servers import minimise
from heterps_planner.search.sweep import SearchOptions

__all__ = ["CONFIDENCE", "MAX_ERROR", "check_error", "robust_segments", "robustness", "with_margins"]

CONFIDENCE = 0.95  # probability with which a robust plan keeps its throughput
MAX_ERROR = 1.0  # sigma of the logarithm; a worse profile is useless
_FIRST_GUESS = 3  # stages


def check_error(error: float) -> None:
    """Check a caller's profile error.

    Raises:
        ProblemError: not in 0..MAX_ERROR.
    """
    if not 0 <= error <= MAX_ERROR:
        raise ProblemError("robust", f"must be a relative error in 0..{MAX_ERROR:g} (0.1: 10 %), is {error!r}")


def robust_segments(
    problem: Problem, segments: Segments, error: float, should_stop: Callable[[], bool] = lambda: False
) -> Segments:
    """Return the segments with the margins that the optimal plan needs.

    The margin depends on the number of stages, and the optimal plan on the margin: the number is raised until the plan
    has at most that many stages.

    Args:
        problem: the problem.
        segments: its segments.
        error: relative size of the profile's error; 0 changes nothing.
        should_stop: ends the search for the number of stages early.
    """
    if error == 0:
        return segments
    num_stages = min(_FIRST_GUESS, len(problem.layers))
    while True:
        wider = with_margins(problem, segments, error, CONFIDENCE ** (1 / (2 * num_stages)))
        choice = minimise(wider, SearchOptions(should_stop=should_stop)).choice
        if choice is None or len(choice.stages) <= num_stages or should_stop():
            return wider
        num_stages = len(choice.stages)


def with_margins(problem: Problem, segments: Segments, error: float, confidence: float) -> Segments:
    """Multiply the time of every segment by its margin.

    Args:
        problem: the problem.
        segments: its segments.
        error: sigma of the logarithm of each layer's time.
        confidence: probability that each stage, and each transfer, takes no longer than this.
    """
    z = NormalDist().inv_cdf(confidence)
    margin = np.ones_like(segments.seq_LLT)
    for t, pool in enumerate(problem.pools):
        share = np.zeros(margin.shape[:2])
        # Between these numbers of units all times are linear in 1/k, so a single layer's share of a stage's time is
        # highest at one of them.
        for units in (pool.units_per_pod, *table_units(pool, problem.layers), math.inf):
            share = np.maximum(share, _concentration(*layer_seconds(problem, pool, units)))
        margin[:, :, t] = np.exp(_log_margin(share, error, z))
    alone = math.exp(z * error)
    wider = segments.scaled(margin)
    return replace(wider, send_seq_LT=segments.send_seq_LT * alone, send_par_LT=segments.send_par_LT * alone)


def _concentration(seconds_L: FloatArray, once: float) -> FloatArray:  # noqa: N803
    """Return the sum of squares over the squared sum for each segment, shape (L, L): 1 for a single layer."""
    num_layers = len(seconds_L)
    result = np.zeros((num_layers, num_layers))
    usable = np.where(np.isfinite(seconds_L), seconds_L, 0.0)
    for first in range(num_layers):
        total = once + usable[first:].cumsum()
        squares = once**2 + (usable[first:] ** 2).cumsum()
        result[first, first:] = np.divide(squares, total**2, out=np.zeros_like(total), where=total > 0)
    return result


def _log_margin(share: FloatArray, error: float, z: float) -> FloatArray:
    spread = np.log1p(math.expm1(error**2) * share)  # s^2
    result: FloatArray = error**2 / 2 - spread / 2 + z * np.sqrt(spread)
    return result


def robustness(problem: Problem, choice: Choice, error: float) -> Robustness:
    """Return the probability that a plan keeps the floor, and its throughput if the profile is right.

    Args:
        problem: the problem.
        choice: the plan.
        error: relative size of the profile's error.
    """
    segments = build_segments(problem).for_servers(choice.server_pods)
    chosen = list(zip(choice.stages, choice.pods, strict=True))
    slowest = max(segments.stage_time(*stage, pods) for stage, pods in chosen)
    servers = segments.server_throughput(choice.server_pods)
    floor = problem.min_samples_per_second * (1 - FLOOR_TOLERANCE)
    confidence = 1.0 if servers >= floor else 0.0
    if floor > 0 and error > 0:
        for (first, last, pool), pods in chosen:
            units = pods * problem.pools[pool].units_per_pod
            share = float(_concentration(*layer_seconds(problem, problem.pools[pool], units))[first, last])
            spread = math.log1p(math.expm1(error**2) * share)
            seconds = segments.with_bubble(segments.work(first, last, pool, pods).on(pods), first, last, pool)
            median = math.log(seconds * floor) + error**2 / 2 - spread / 2
            confidence *= NormalDist().cdf(-median / math.sqrt(spread))
            if (transfer := segments.transfer(last, pool).on(pods)) > 0:
                confidence *= NormalDist().cdf(-math.log(transfer * floor) / error)
    return Robustness(error, confidence, min(1 / slowest, servers))
