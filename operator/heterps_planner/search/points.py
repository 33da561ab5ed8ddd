"""Single throughputs: the pods that stages need, and the range in which plans exist.

The basis of `sweep`, which finds the cheapest plan over all throughputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.pieces import FloatArray, fastest, least_product, time_on
from heterps_planner.model.segments import Segments
from heterps_planner.search.path import Stage, cheapest_paths

__all__ = [
    "Choice",
    "Points",
    "cost_rate",
    "fastest_bound",
    "least_rate",
    "lost_time",
    "lowest_throughput",
    "search_prices",
]

# Free units still get a tiny price, so that the search has no ties between using and wasting them.
_TINY_PRICE = 1e-13


@dataclass(frozen=True)
class Choice:
    """Stages with their pods: a plan without names."""

    stages: tuple[Stage, ...]
    pods: tuple[int, ...]
    server_pods: int
    throughput: float  # samples per second
    price: float  # dollars per hour, at search prices


def lost_time(segments: Segments, choice: Choice) -> float:
    """Return the seconds that interruptions are expected to cost per second of training."""
    if segments.loss_T is None:
        return 0.0
    workers = sum(segments.loss_T[pool] * pods for (_, _, pool), pods in zip(choice.stages, choice.pods, strict=True))
    return float(workers + choice.server_pods * segments.loss_of_server(choice.throughput))


def cost_rate(segments: Segments, choice: Choice) -> float:
    """Return the cost of a plan in dollars per hour and (sample per second), with what interruptions cost."""
    return choice.price / choice.throughput * (1 + lost_time(segments, choice))


def search_prices(segments: Segments) -> FloatArray:
    """Return prices per pod with a tiny one in place of zero."""
    highest = float(segments.price_T.max())
    return np.maximum(segments.price_T, _TINY_PRICE * highest if highest > 0 else 1.0)


def fastest_bound(segments: Segments) -> float:
    """Return an upper bound on the throughput: each segment alone may use its pool's whole limit."""
    segments = segments.with_servers(segments.server_least, segments.server_most)
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = segments.limit_T
        if segments.pieces:
            compute = fastest(np.ones(1), limit, segments.pieces)
        else:
            compute = segments.seq_LLT + segments.par_LLT / limit
        time = np.maximum(segments.waiting(compute), segments.send_seq_LT + segments.send_par_LT / limit)
    possible = (limit > 0) & ~np.isnan(time)
    if segments.least_LLT is not None:
        possible &= segments.least_LLT <= limit
    time = np.where(possible, time, np.inf)
    rest = np.zeros(segments.num_layers + 1)
    for first in range(segments.num_layers - 1, -1, -1):
        rest[first] = np.maximum(time[first, first:, :].min(axis=1), rest[first + 1 :]).min()
    room = float(segments.limit_T[segments.server_pool])
    if room < segments.server_least:
        return 0.0
    return float(min(1 / rest[0], segments.server_throughput(min(room, segments.server_most))))


def least_rate(segments: Segments, price_T: FloatArray) -> float:  # noqa: N803
    """Return a lower bound on the cost per throughput, in dollars per hour and (sample per second).

    A stage on k pods takes at least `seq + par / k` seconds, so `k / theta >= seq k + par`, which grows with k, and so
    does what its bubble adds. Each segment costs at least its least pods, fully busy, and pods are not split. The
    cheapest path with these weights bounds all plans at all throughputs. Limits of pools count for single stages only.

    Args:
        segments: the problem.
        price_T: search prices per pod and hour.
    """
    highest = fastest_bound(segments)
    if highest == 0:
        return np.inf
    segments = segments.with_servers(segments.server_least, segments.server_most)
    least = np.ones(1) if segments.least_LLT is None else segments.least_LLT
    with np.errstate(invalid="ignore"):
        busy = least_product(least, segments.pieces) if segments.pieces else segments.seq_LLT * least + segments.par_LLT
        busy = np.maximum(segments.waiting(busy, least), segments.send_seq_LT * least + segments.send_par_LT)
    # The throughput is at most `highest`, so an idle pod is paid for too.
    weight = price_T * np.where(least <= segments.limit_T, np.maximum(busy, least / highest), np.inf)
    servers = max(segments.server_par, segments.server_least / highest) * price_T[segments.server_pool]
    return float(cheapest_paths(weight[None]).value_S[0] + servers) * (1 - FLOOR_TOLERANCE)


class Points:
    """The problem at S throughputs, with the known bounds of each."""

    def __init__(self, segments: Segments, price_T: FloatArray, theta_S: FloatArray) -> None:  # noqa: N803
        self.theta = theta_S
        self.server = segments.server_need(theta_S)
        self.extra = self.server * price_T[segments.server_pool]  # dollars per hour of the servers
        self.room = np.tile(segments.limit_T, (len(theta_S), 1))  # pods that are left for the stages
        self.room[:, segments.server_pool] -= self.server
        self.pods = segments.pods(theta_S)
        if segments.server_least:
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
        """Return whether a path keeps the limits."""
        return bool((self.used(row, stages) <= self.room[row]).all())


def lowest_throughput(segments: Segments, floor: float) -> float:
    """Return a throughput at which the least pods of each stage suffice, or the floor if that is higher."""
    least = np.ones(1) if segments.least_LLT is None else segments.least_LLT
    compute = time_on(least, segments.pieces) if segments.pieces else segments.seq_LLT + segments.par_LLT / least
    time = np.maximum(segments.waiting(compute), segments.send_seq_LT + segments.send_par_LT / least)
    time = np.where(np.isfinite(least), time, np.inf)
    slowest = float(time[np.isfinite(time)].max(initial=segments.server_par / max(segments.server_least, 1)))
    if slowest == 0:
        return floor
    return max(floor * (1 - FLOOR_TOLERANCE), (1 - FLOOR_TOLERANCE) / slowest)
