"""Input of the policy: dimensionless numbers per layer and pool, and per layer.

[HeterPS], section 5.2, feeds the one-hot index of the layer, its kind, its bytes and its communication time: nothing
about a pool's speed or price, so its policy is valid only for its training cluster (erratum 17). Here everything is a
ratio of times, prices, limits and the floor. The features are invariant to consistent scaling of times, prices and the
floor, and to renaming or reordering pools.

Let theta be a reference throughput (the floor if there is one). A stage of layers i..j on k pods of a pool takes c_seq
+ c_par / k; c_seq includes the overhead that every stage pays once, so it is not a sum over layers, and numbers about
several layers are those of the stage that they would form. `need = theta c_par / (1 - theta c_seq)` is its fractional
number of pods (equation (12)), `money` their price. The reference is the cheapest work: the sum over layers of the
least `theta c_par * price` of any pool.

Shapes: L layers, T pools, F = len(NAMES), G = len(LAYER_NAMES).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.segments import Segments
from heterps_planner.search.points import search_prices

__all__ = ["FIELDS", "LAYER_NAMES", "NAMES", "Features", "features_of", "reference_throughput"]

# name -> least and greatest value, between which values are clipped; and the field of the problem that it depends on
# most
_RANGES: dict[str, tuple[float, float, str]] = {
    # Logarithms of money relative to the cheapest work of the same layers.
    "dearness": (0, 8, "computeSeconds"),
    "dearness with the next layer": (0, 8, "computeSeconds"),
    "dearness with the next three layers": (0, 8, "computeSeconds"),
    "dearness with all later layers": (0, 8, "computeSeconds"),
    "dearness with all earlier layers": (0, 8, "computeSeconds"),
    "dearness of the next layer": (0, 8, "computeSeconds"),
    "dearness of all later layers": (0, 8, "computeSeconds"),
    # Logarithms of money relative to the cheapest pool for the same layers.
    "excess": (0, 8, "computeSeconds"),
    "excess with the next three layers": (0, 8, "computeSeconds"),
    "excess with all later layers": (0, 8, "computeSeconds"),
    "excess of all later layers": (0, 8, "computeSeconds"),
    # theta c_seq; from 1 on no number of pods suffices.
    "sequential": (0, 2, "parallelFraction"),
    "sequential with all later layers": (0, 2, "parallelFraction"),
    "sequential of all layers": (0, 2, "parallelFraction"),
    # Logarithms of pods, and of pods relative to the limit.
    "need": (-8, 10, "computeSeconds"),
    "share of the limit": (-10, 4, "maxUnits"),
    "share of the limit with the next three layers": (-10, 4, "maxUnits"),
    "share of the limit with all later layers": (-10, 6, "maxUnits"),
    "share of the limit for all layers": (-10, 6, "maxUnits"),
    "limit": (0, 8, "maxUnits"),
    # Logarithms of prices relative to the cheapest work of all layers, to that of the rest, and to the cheapest pool.
    "pod price": (-10, 4, "pricePerUnitHour"),
    "pod price for the rest": (-10, 6, "pricePerUnitHour"),
    "price": (0, 10, "pricePerUnitHour"),
    "transfer": (-8, 8, "transferSeconds"),  # log of the money of sending relative to the cheapest work of the layer
    "servers": (0, 1, "maxUnits"),  # share of the limit that the parameter servers take
    "possible": (0, 1, "computeSeconds"),  # whether the pool can run the layer
}
NAMES = tuple(_RANGES)
FIELDS = tuple(field for _, _, field in _RANGES.values())
LAYER_NAMES = ("position", "first", "last", "log layers", "log pools", "share of the work")
_LOW = np.array([low for low, _, _ in _RANGES.values()])
_HIGH = np.array([high for _, high, _ in _RANGES.values()])
_SCALE = 2 / (_HIGH - _LOW)
_LEAST_SPARE = 0.02  # of 1 - theta c_seq
_TINY = 1e-30
_NO_PODS = 1e-4  # added to numbers of pods and money before the logarithm
_MOST_PODS = 1e9  # of an impossible stage
_NEXT = 3  # layers
_EXTENSION = (-4.0, 4.0)  # range of the logarithm


@dataclass(frozen=True)
class Features:
    """A problem as the policy's input."""

    pair: FloatArray  # (L, T, F), -1..1
    layer: FloatArray  # (L, G)
    possible: NDArray[np.bool_]  # (L, T): pool can run the layer within its limit
    share: FloatArray  # (L, L, T): need / limit of the stage of layers i..j, 0..10
    sequential: FloatArray  # (L, L, T): its theta c_seq, 0..2
    extension: FloatArray  # log of the money that layer j adds to the stage, relative to its cheapest work; -1..1
    raw: FloatArray  # before clipping and scaling; meaningless where the pool cannot run the layer


def reference_throughput(segments: Segments) -> float:
    """Return the floor, or the throughput of every layer on one pod of its fastest pool if that is higher."""
    layers = np.arange(segments.num_layers)
    seconds = segments.seq_LLT[layers, layers] + segments.par_LLT[layers, layers]
    slowest = float(np.where(segments.limit_T > 0, seconds, np.inf).min(axis=1).max())
    return max(segments.floor, 1 / slowest if 0 < slowest < np.inf else 0.0, _TINY)


def features_of(segments: Segments) -> Features:
    """Compute the features of a problem."""
    num_layers, num_pools = segments.num_layers, segments.num_pools
    layers = np.arange(num_layers)
    theta = reference_throughput(segments)
    price = search_prices(segments)
    limit = segments.limit_T
    possible = np.isfinite(segments.seq_LLT[layers, layers]) & (limit > 0)
    if segments.least_LLT is not None:
        possible &= segments.least_LLT[layers, layers] <= limit
    sequential = theta * segments.seq_LLT
    if segments.bubble_LLT is not None:  # what the bubble leaves for work, as in `work_for_throughput`
        sequential = sequential + np.minimum(theta * segments.bubble_LLT, 1 - segments.overlap)
    sequential = np.minimum(sequential, 2.0)
    need = theta * segments.par_LLT / np.maximum(1 - sequential, _LEAST_SPARE)
    if segments.least_LLT is not None:
        np.maximum(need, segments.least_LLT, out=need)
    np.copyto(need, _MOST_PODS, where=(sequential >= 2.0) | (limit <= 0))
    np.clip(need, _TINY, _MOST_PODS, out=need)
    own = theta * np.where(possible, segments.par_LLT[layers, layers], np.inf) * price
    work = own.min(axis=1)
    work = np.maximum(np.where(np.isfinite(work), work, 0.0), _TINY)
    total = float(work.sum())
    sums = np.concatenate([[0.0], work.cumsum()])
    capacity = np.maximum(limit, 0.5)
    share = need / capacity
    money = need * price
    added = np.diff(money, axis=1, prepend=0.0)  # entry (i, i) is never used
    extension = np.log(np.maximum(added / np.maximum(work, total * _NO_PODS)[:, None], _NO_PODS))
    last = num_layers - 1
    following, end = np.minimum(layers + 1, last), np.minimum(layers + _NEXT, last)

    def dearness(first: NDArray[np.intp], until: NDArray[np.intp]) -> FloatArray:
        """Compare a stage with the cheapest work of its layers, 0 for no layers."""
        base = np.maximum(sums[until + 1] - sums[first], total * 1e-9)[:, None]
        ratio: FloatArray = np.log(np.maximum(money[first, until] / base, 1.0))
        return ratio

    def excess(values: FloatArray) -> FloatArray:
        relative: FloatArray = values - values.min(axis=1, keepdims=True)
        return relative

    later = (layers < last)[:, None]
    zero, lasts = np.zeros_like(layers), np.full_like(layers, last)
    alone, with_three, with_rest = dearness(layers, layers), dearness(layers, end), dearness(layers, lasts)
    rest = np.where(later, dearness(following, lasts), 0.0)
    send = theta * (segments.send_seq_LT + segments.send_par_LT) * price
    servers = np.zeros(num_pools)
    needed = min(float(segments.server_need(np.array([theta]))[0]), segments.server_most)
    servers[segments.server_pool] = needed / capacity[segments.server_pool]
    pod_price = np.log(price / total)
    columns = (
        alone,
        dearness(layers, following),
        with_three,
        with_rest,
        dearness(zero, layers),
        np.where(later, dearness(following, following), 0.0),
        rest,
        excess(alone),
        excess(with_three),
        excess(with_rest),
        excess(rest),
        sequential[layers, layers],
        sequential[layers, last],
        sequential[0, last],
        np.log(need[layers, layers] + _NO_PODS),
        np.log(share[layers, layers] + _NO_PODS**2),
        np.log(share[layers, end] + _NO_PODS**2),
        np.log(share[:, last] + _NO_PODS**2),
        np.log(share[0, last] + _NO_PODS**2),
        np.log(np.maximum(limit, 1.0)),
        pod_price,
        pod_price + np.log(total / np.maximum(total - sums[:-1], total * _NO_PODS))[:, None],
        np.log(price / float(price.min())),
        np.log(send / work[:, None] + _NO_PODS),
        servers,
        possible,
    )
    pair = np.empty((num_layers, num_pools, len(NAMES)))
    for i, column in enumerate(columns):
        pair[:, :, i] = column
    layer = np.empty((num_layers, len(LAYER_NAMES)))
    layer[:, 0] = (layers + 1) / num_layers
    layer[:, 1] = layers == 0
    layer[:, 2] = layers == last
    layer[:, 3] = np.log(num_layers) / 4
    layer[:, 4] = np.log(num_pools) / 4
    layer[:, 5] = np.log(np.maximum(work / total, 1e-4)) / 5
    return Features(
        pair=(np.clip(pair, _LOW, _HIGH) - _LOW) * _SCALE - 1,
        layer=layer,
        possible=possible,
        share=np.minimum(share, 10.0),
        sequential=sequential,
        extension=np.clip(extension, *_EXTENSION) / _EXTENSION[1],
        raw=pair,
    )
