"""Cheapest chains of segments at fixed throughputs: the dynamic programme and its Lagrangian relaxation.

At a fixed throughput every (segment, pool) has one sensible number of pods (`cost_model.pods_for_throughput`), hence a
price, and a plan is a path through the layers whose neighbouring segments lie on different pools. The cheapest path
takes O(L^2 T): the best continuation on another pool is either the best overall or, if that is on the same pool, the
second best. Several throughputs are solved at once, because numpy's overhead per call would dominate otherwise.

Pool limits couple the segments. `relax` prices them: any prices lambda >= 0 give a lower bound `min over paths of sum
(p + lambda) * pods - lambda * limits`, subgradient steps improve them, and paths that happen to keep the limits are
plans. `labels` closes the remaining gap. Shapes: S throughputs, L layers, T pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray

__all__ = ["Paths", "Relaxation", "Stage", "cheapest_paths", "relax"]

_AIM = 0.05  # by how much the steps try to raise the bound, at most

Stage = tuple[int, int, int]  # first layer, last layer, pool


@dataclass(frozen=True)
class Paths:
    """Cheapest paths for S weightings at once."""

    value_S: FloatArray  # noqa: N815  # weight of the cheapest path, infinite if there is none
    togo_SLT: FloatArray  # noqa: N815  # (S, L + 1, T): cheapest rest from a layer on, the layer before being on pool t
    weight_SLLT: FloatArray  # noqa: N815  # weight of each segment
    best_SL: NDArray[np.intp]  # noqa: N815  # pool of the best segment that starts at this layer
    second_SL: NDArray[np.intp]  # noqa: N815  # the same among the other pools

    def stages(self, s: int) -> list[Stage]:
        """Return the cheapest path of weighting `s`."""
        num_layers = self.best_SL.shape[1]
        result: list[Stage] = []
        layer, before = 0, -1
        while layer < num_layers:
            pool = int(self.best_SL[s, layer])
            if pool == before:
                pool = int(self.second_SL[s, layer])
            onward = self.weight_SLLT[s, layer, layer:, pool] + self.togo_SLT[s, layer + 1 :, pool]
            last = layer + int(onward.argmin())
            result.append((layer, last, pool))
            layer, before = last + 1, pool
        return result


def cheapest_paths(weight_SLLT: FloatArray) -> Paths:  # noqa: N803
    """Find the cheapest path for each weighting, neighbouring segments being on different pools (erratum 23).

    Args:
        weight_SLLT: weight of each segment, shape (S, L, L, T), infinite where there is none.
    """
    size, num_layers, _, num_pools = weight_SLLT.shape
    togo = np.zeros((size, num_layers + 1, num_pools))
    best = np.empty((size, num_layers), dtype=np.intp)
    second = np.empty((size, num_layers), dtype=np.intp)
    rows = np.arange(size)
    value = np.zeros(size)
    for first in range(num_layers - 1, -1, -1):
        start = (weight_SLLT[:, first, first:, :] + togo[:, first + 1 :, :]).min(axis=1)  # (S, T)
        best_pool = start.argmin(axis=1)
        value = start[rows, best_pool]
        start[rows, best_pool] = np.inf
        second_pool = start.argmin(axis=1)
        togo[:, first, :] = value[:, None]
        togo[rows, first, best_pool] = start[rows, second_pool]
        best[:, first] = best_pool
        second[:, first] = second_pool
    return Paths(value, togo, weight_SLLT, best, second)


@dataclass
class Relaxation:
    """Lower bounds at S throughputs under pool limits."""

    bound_S: FloatArray  # noqa: N815  # dollars per hour that any plan within the limits costs at least
    multiplier_ST: FloatArray  # noqa: N815  # the lambda of that bound, dollars per pod and hour


def relax(
    pods_SLLT: FloatArray,  # noqa: N803
    price_T: FloatArray,  # noqa: N803
    room_ST: FloatArray,  # noqa: N803
    start_ST: FloatArray,  # noqa: N803
    cutoff_S: FloatArray,  # noqa: N803
    num_steps: int,
    report: Callable[[int, list[Stage]], float],
    should_stop: Callable[[], bool],
) -> Relaxation:
    """Maximise the Lagrangian bound by subgradient steps of Polyak's length.

    Args:
        pods_SLLT: pods per segment.
        price_T: dollars per pod and hour, > 0.
        room_ST: pods that the segments may use of each pool.
        start_ST: first multipliers.
        cutoff_S: a row ends as soon as its bound reaches this.
        num_steps: dynamic programmes per row.
        report: called with (row, path) for every path that keeps the limits; returns its price.
        should_stop: called before each step; the bounds so far are valid.
    """
    size = len(pods_SLLT)
    bound = np.zeros(size)  # prices are positive
    kept = start_ST.copy()
    multiplier = start_ST.copy()
    upper = cutoff_S.copy()
    pace = np.ones(size)
    stale = np.zeros(size, dtype=int)
    active = np.arange(size)
    # Multipliers have the magnitude of prices and excesses that of limits, which differ a lot between pools.
    scale_T = price_T / np.maximum(room_ST.max(axis=0), 1.0)  # noqa: N806
    pods = pods_SLLT
    for _ in range(num_steps):
        if should_stop():
            break
        paths = cheapest_paths(pods * (price_T + multiplier[active])[:, None, None, :])
        going = np.zeros(len(active), dtype=bool)
        for row, s in enumerate(active):
            if paths.value_S[row] == np.inf:
                bound[s] = np.inf
                continue
            value = float(paths.value_S[row] - multiplier[s] @ room_ST[s])
            stages = paths.stages(row)
            used = np.zeros(len(price_T))
            for first, last, pool in stages:
                used[pool] += pods[row, first, last, pool]
            excess = used - room_ST[s]
            stale[s] += 1
            if value > bound[s]:
                if value > bound[s] + 1e-3 * abs(bound[s]):
                    stale[s] = 0
                bound[s] = value
                kept[s] = multiplier[s]
            if not (excess > 0).any():
                price = report(int(s), stages)
                upper[s] = min(upper[s], price)
                if price <= bound[s] * (1 + 1e-12):
                    continue
            if bound[s] >= cutoff_S[s]:
                continue
            if stale[s] >= 3:
                pace[s] /= 2
                stale[s] = 0
            direction = np.where((multiplier[s] <= 0) & (excess < 0), 0.0, excess)
            norm = float(direction**2 @ scale_T)
            if norm == 0 or upper[s] <= value:
                continue
            # A known plan is most often far more expensive than the best bound, and steps towards it would be too long.
            target = min(upper[s], bound[s] * (1 + _AIM))
            length = pace[s] * (target - value) / norm
            multiplier[s] = np.maximum(multiplier[s] + length * scale_T * direction, 0.0)
            going[row] = True
        if not going.any():
            break
        if not going.all():
            active = active[going]
            pods = pods[going]
    return Relaxation(bound, kept)
