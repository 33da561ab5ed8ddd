"""What the policy sees of a problem: dimensionless numbers per layer and pool, and per layer.

[HeterPS], section 5.2, feeds the one-hot index of the layer, its kind, its bytes and its communication time: nothing
that says how fast or how dear a pool is, so its policy holds for the one cluster it was trained on (erratum 17). Here
everything is a ratio of times, prices, limits and the floor. Scaling all times, all prices or the floor consistently
changes nothing, and neither does renaming pools or putting them into another order.

Let theta be a reference throughput (the floor if there is one), c = c_seq + c_par / k the time of a layer on k pods.
`need = theta c_par / (1 - theta c_seq)` is then the fractional number of pods (equation (12)), `money` their price.

Shapes: L layers, T pools, F = len(NAMES), G = len(LAYER_NAMES).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.cost_model import FloatArray, Segments
from heterps_planner.points import search_prices

__all__ = ["FIELDS", "LAYER_NAMES", "NAMES", "Features", "features_of", "reference_throughput"]

# name -> least and greatest value, what lies outside is clipped; and the field of the problem that it says most about
_RANGES: dict[str, tuple[float, float, str]] = {
    "dearness": (0, 8, "computeSeconds"),  # log of money relative to the cheapest pool for this layer
    "dearness of the next layer": (0, 8, "computeSeconds"),
    "dearness of the next three layers": (0, 8, "computeSeconds"),
    "dearness of this and all later layers": (0, 8, "computeSeconds"),
    "dearness of all earlier layers": (0, 8, "computeSeconds"),
    "sequential": (0, 2, "parallelFraction"),  # theta c_seq; from 1 on no number of pods suffices
    "sequential of all layers": (0, 4, "parallelFraction"),
    "need": (-8, 10, "computeSeconds"),  # log pods
    "share of the limit": (-10, 4, "maxUnits"),  # log of need / limit
    "share of the limit for all layers": (-10, 6, "maxUnits"),
    "limit": (0, 8, "maxUnits"),  # log pods
    "pod price": (-10, 4, "pricePerUnitHour"),  # log of a pod's price relative to the cheapest money of all layers
    "price": (0, 10, "pricePerUnitHour"),  # log relative to the cheapest pool
    "transfer": (-8, 8, "transferSeconds"),  # log of the money of sending relative to the layer's cheapest money
    "servers": (0, 1, "maxUnits"),  # share of the limit that the parameter servers take
    "possible": (0, 1, "computeSeconds"),  # whether the pool can run the layer
}
NAMES = tuple(_RANGES)
FIELDS = tuple(field for _, _, field in _RANGES.values())
LAYER_NAMES = ("position", "first", "last", "log layers", "log pools", "share of the money")
_LOW = np.array([low for low, _, _ in _RANGES.values()])
_HIGH = np.array([high for _, high, _ in _RANGES.values()])
_LEAST_SPARE = 0.02  # of 1 - theta c_seq
_TINY = 1e-30
_NO_PODS = 1e-4  # added to numbers of pods and money whose logarithm is taken
_HUGE = 1e15  # relative money of a layer that a pool cannot run


@dataclass(frozen=True)
class Features:
    """A problem as the policy sees it."""

    pair: FloatArray  # (L, T, F), about -1..1
    layer: FloatArray  # (L, G)
    possible: NDArray[np.bool_]  # (L, T): pool can run the layer within its limit
    share: FloatArray  # (L, T): need / limit of a stage of this layer alone, 0..10
    sequential: FloatArray  # (L, T): theta c_seq, 0..2
    raw: FloatArray  # (L, T, F): before clipping and scaling; of no meaning where the pool cannot run the layer


def reference_throughput(segments: Segments) -> float:
    """Return the floor, or the throughput of every layer on one pod of its fastest pool if that is higher."""
    time = np.where(segments.limit_T > 0, _layer_seconds(segments), np.inf)
    slowest = float(time.min(axis=1).max())
    return max(segments.floor, 1 / slowest if 0 < slowest < np.inf else 0.0, _TINY)


def _layer_seconds(segments: Segments) -> FloatArray:
    layers = np.arange(segments.num_layers)
    result: FloatArray = segments.seq_LLT[layers, layers] + segments.par_LLT[layers, layers]
    return result


def features_of(segments: Segments) -> Features:
    """Compute the features of a problem."""
    num_layers, num_pools = segments.num_layers, segments.num_pools
    layers = np.arange(num_layers)
    theta = reference_throughput(segments)
    price = search_prices(segments)
    limit = segments.limit_T
    seq, par = segments.seq_LLT[layers, layers], segments.par_LLT[layers, layers]
    possible = np.isfinite(seq) & (limit > 0)
    if segments.least_LLT is not None:
        possible &= segments.least_LLT[layers, layers] <= limit
    sequential = np.where(possible, theta * seq, 2.0)
    need = theta * np.where(possible, par, 0.0) / np.maximum(1 - sequential, _LEAST_SPARE)
    need = np.maximum(need, _TINY)
    send_need = theta * (segments.send_seq_LT + segments.send_par_LT)
    money = np.where(possible, need * price, np.inf)
    cheapest = money.min(axis=1)
    cheapest = np.where(np.isfinite(cheapest), cheapest, 1.0)
    total = float(cheapest.sum())
    money = np.where(possible, money, _HUGE * np.maximum(cheapest, total / num_layers)[:, None])
    sums = np.concatenate([np.zeros((1, num_pools)), money.cumsum(axis=0)])
    floors = np.concatenate([[0.0], cheapest.cumsum()])

    def dearness(first: NDArray[np.intp], end: NDArray[np.intp]) -> FloatArray:
        """Compare pools over the layers first..end - 1: log of money relative to the cheapest money, 0 for none."""
        base = np.maximum(floors[end] - floors[first], _TINY)[:, None]
        ratio = np.maximum(sums[end] - sums[first], 0.0) / base
        return np.log(np.maximum(np.where((end > first)[:, None], ratio, 1.0), 1.0))

    capacity = np.maximum(limit, 0.5)
    share = need / capacity
    whole = np.where(possible, need, 0.0).sum(axis=0) / capacity
    all_sequential = np.where(possible, sequential, 0.0).sum(axis=0)
    servers = np.zeros(num_pools)
    servers[segments.server_pool] = float(segments.server_need(np.array([theta]))[0]) / capacity[segments.server_pool]
    lowest_price = float(price.min())
    pair = np.empty((num_layers, num_pools, len(NAMES)))
    columns = (
        dearness(layers, layers + 1),
        dearness(np.minimum(layers + 1, num_layers), np.minimum(layers + 2, num_layers)),
        dearness(np.minimum(layers + 1, num_layers), np.minimum(layers + 4, num_layers)),
        dearness(layers, np.full(num_layers, num_layers)),
        dearness(np.zeros(num_layers, dtype=np.intp), layers),
        sequential,
        all_sequential,
        np.log(need + _NO_PODS),
        np.log(share + _NO_PODS**2),
        np.log(whole + _NO_PODS**2),
        np.log(np.maximum(limit, 1.0)),
        np.log(price / max(total, _TINY)),
        np.log(price / lowest_price),
        np.log(send_need * price / np.maximum(cheapest, _TINY)[:, None] + _NO_PODS),
        servers,
        possible,
    )
    for i, column in enumerate(columns):
        pair[:, :, i] = column
    clipped = np.clip(pair, _LOW, _HIGH)
    scale = 2 / (_HIGH - _LOW)
    layer = np.empty((num_layers, len(LAYER_NAMES)))
    layer[:, 0] = (layers + 1) / num_layers
    layer[:, 1] = layers == 0
    layer[:, 2] = layers == num_layers - 1
    layer[:, 3] = np.log(num_layers) / 4
    layer[:, 4] = np.log(num_pools) / 4
    layer[:, 5] = np.log(np.maximum(cheapest / max(total, _TINY), 1e-4)) / 5
    return Features(
        pair=(clipped - _LOW) * scale - 1,
        layer=layer,
        possible=possible,
        share=np.minimum(share, 10.0),
        sequential=np.clip(sequential, 0.0, 2.0),
        raw=pair,
    )
