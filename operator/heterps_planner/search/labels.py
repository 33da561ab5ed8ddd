"""The cheapest path within pool limits at one throughput, by best-first label search.

The gap that the Lagrangian bound leaves (`path.relax`) is a resource-constrained shortest path. A label is a partial
plan from the first layer on; its bound adds the cheapest completion, once at the true prices and once at prices with
multipliers. The label with the least bound is extended first, so the first complete one is optimal. A label is dropped
if another one at the same place costs no more and uses no more of any tracked pool.

Only pools with an observed violation are tracked. If the optimum of this relaxed problem keeps all limits, it is the
optimum of the full problem; otherwise the violated pools are tracked too, and the search restarts. So the vectors stay
short even with 64 pools.

The problem is weakly NP-hard for a fixed number of pools (erratum 22: without shared limits it is polynomial), so the
worst case is exponential; `should_stop` ends a search that takes too long, with a valid bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.search.path import Stage, cheapest_paths

__all__ = ["SearchResult", "search"]

# Price of the completion, last layer, pool, index of the pool among the tracked ones, pods, price.
Step = tuple[float, int, int, int, float, float]

_CHECK_EVERY = 512  # labels, created or expanded, between two deadline checks


@dataclass(frozen=True)
class SearchResult:
    """Result of a label search."""

    stages: list[Stage] | None  # None: no plan below the cutoff
    bound: float  # no plan costs less than this, dollars per hour of the segments
    finished: bool  # the search was not stopped
    num_labels: int


def search(
    pods_LLT: FloatArray,  # noqa: N803
    price_T: FloatArray,  # noqa: N803
    room_T: FloatArray,  # noqa: N803
    multiplier_T: FloatArray,  # noqa: N803
    tracked: set[int],
    cutoff: float,
    should_stop: Callable[[], bool],
) -> SearchResult:
    """Find the cheapest path within the limits, if one costs less than `cutoff`.

    Args:
        pods_LLT: pods per segment.
        price_T: dollars per pod and hour, > 0.
        room_T: pods that the segments may use of each pool.
        multiplier_T: multipliers of a good Lagrangian bound; any values are valid.
        tracked: pools to track from the start; further binding pools are added to this set.
        cutoff: dollars per hour.
        should_stop: called regularly.
    """
    tracked.update(int(t) for t in np.flatnonzero(multiplier_T > 0))
    num_labels = 0
    while True:
        result = _Search(pods_LLT, price_T, room_T, multiplier_T, sorted(tracked), cutoff).run(should_stop)
        num_labels += result.num_labels
        if result.stages is None:
            return SearchResult(None, result.bound, result.finished, num_labels)
        used = np.zeros(len(price_T))
        for first, last, pool in result.stages:
            used[pool] += pods_LLT[first, last, pool]
        violated = {int(t) for t in np.flatnonzero(used > room_T)}
        if not violated:
            return SearchResult(result.stages, result.bound, True, num_labels)
        tracked |= violated


class _Search:
    """One search with a given set of tracked pools."""

    def __init__(
        self,
        pods_LLT: FloatArray,  # noqa: N803
        price_T: FloatArray,  # noqa: N803
        room_T: FloatArray,  # noqa: N803
        multiplier_T: FloatArray,  # noqa: N803
        tracked: list[int],
        cutoff: float,
    ) -> None:
        self.pods = pods_LLT
        self.weight = pods_LLT * price_T
        self.priced = pods_LLT * (price_T + multiplier_T)
        self.num_layers, self.num_pools = pods_LLT.shape[1:]
        both = cheapest_paths(np.stack([self.weight, self.priced]))
        self.rest = both.togo_SLT[0].tolist()
        self.priced_rest = both.togo_SLT[1]  # (L + 1, T)
        self.priced_start = float(both.value_S[1])
        self.credit = float(multiplier_T @ room_T)  # what the priced path may save by using less than the limits
        self.slot = {pool: i for i, pool in enumerate(tracked)}
        self.room = [float(room_T[t]) for t in tracked]
        self.multiplier = [float(multiplier_T[t]) for t in tracked]
        self.cutoff = cutoff
        self.order: dict[int, tuple[FloatArray, NDArray[np.intp]]] = {}
        self.steps: dict[int, list[Step]] = {}

    def steps_from(self, first: int, below: float) -> list[Step]:
        """Return the segments that start at a layer, the most promising (at priced weights) first.

        They include all segments with a completion below `below`. The others of a large problem would take gigabytes,
        and are hardly ever needed.
        """
        if first not in self.order:
            onward = self.priced[first, first:, :] + self.priced_rest[first + 1 :, :]  # (L - first, T)
            flat = onward.ravel()
            order = np.argsort(flat, kind="stable")
            self.order[first] = flat[order], order
            self.steps[first] = []
        onward, order = self.order[first]
        steps = self.steps[first]
        begin, end = len(steps), int(np.searchsorted(onward, below))
        if end > begin:
            lasts, pools = np.divmod(order[begin:end], self.num_pools)
            lasts += first
            steps += zip(
                onward[begin:end].tolist(),
                lasts.tolist(),
                pools.tolist(),
                [self.slot.get(pool, -1) for pool in pools.tolist()],
                self.pods[first, lasts, pools].tolist(),
                self.weight[first, lasts, pools].tolist(),
                strict=True,
            )
        return steps

    def run(self, should_stop: Callable[[], bool]) -> SearchResult:
        num_layers, rest = self.num_layers, self.rest
        room, multiplier, credit, cutoff = self.room, self.multiplier, self.credit, self.cutoff
        nothing = (0.0,) * len(room)
        # (bound, creation order, next layer, previous pool, price so far, priced price so far, usage, history)
        heap: list[tuple[float, int, int, int, float, float, tuple[float, ...], Any]] = [
            (self.priced_start - credit, 0, 0, -1, 0.0, 0.0, nothing, None)
        ]
        settled: dict[tuple[int, int], list[tuple[float, tuple[float, ...]]]] = {}
        count = num_taken = 0
        next_look = _CHECK_EVERY
        while heap:
            bound, _, layer, before, price, priced, usage, history = heapq.heappop(heap)
            num_taken += 1
            if layer == num_layers:
                return SearchResult(_unwind(history), bound, True, count)
            if bound >= cutoff:
                break
            if count + num_taken >= next_look:
                next_look = count + num_taken + _CHECK_EVERY
                if should_stop():
                    return SearchResult(None, bound, False, count)
            others = settled.setdefault((layer, before), [])
            if any(p <= price and all(map(_at_most, u, usage)) for p, u in others):
                continue
            others.append((price, usage))
            base = priced - credit
            for onward, last, pool, slot, pods, weight in self.steps_from(layer, cutoff - base):
                if base + onward >= cutoff:
                    break
                if pool == before:
                    continue
                child_price = price + weight
                child_priced = priced + weight
                child_usage = usage
                if slot >= 0:
                    amount = usage[slot] + pods
                    if amount > room[slot]:
                        continue
                    child_usage = (*usage[:slot], amount, *usage[slot + 1 :])
                    child_priced += multiplier[slot] * pods
                child_bound = max(base + onward, child_price + rest[last + 1][pool], bound)
                if child_bound >= cutoff:
                    continue
                count += 1
                heapq.heappush(
                    heap,
                    (
                        child_bound,
                        count,
                        last + 1,
                        pool,
                        child_price,
                        child_priced,
                        child_usage,
                        ((layer, last, pool), history),
                    ),
                )
        return SearchResult(None, cutoff, True, count)


def _at_most(a: float, b: float) -> bool:
    return a <= b


def _unwind(history: Any) -> list[Stage]:
    stages: list[Stage] = []
    while history is not None:
        stages.append(history[0])
        history = history[1]
    return stages[::-1]
