"""The cheapest path within pool limits at one throughput, by best-first label search.

The gap that the Lagrangian bound leaves (`path.relax`) is a resource-constrained shortest path. A label is a partial
plan from the first layer on; its bound adds the cheapest completion, once at the true prices and once at prices with
multipliers. The label with the least bound is extended first, so the first complete one is optimal.

A label is dropped if another one at the same layer costs no more, uses no more of any tracked pool, and can be
completed in the same ways. Neighbouring stages are on different pools, so the other one ends on the same pool; or two
such labels end on different pools, because every completion begins on a pool that is not that of one of them.

Without a sharp upper limit, most labels would never be extended. So the search first asks for a path within a small gap
above the bound, and doubles the gap until there is one (iterative deepening; Korf, "Depth-first iterative-deepening",
Artificial Intelligence, 1985).

Only pools with an observed violation are tracked. If the optimum of this relaxed problem keeps all limits, it is the
optimum of the full problem; otherwise the violated pools are tracked too, and the search restarts. So the vectors stay
short even with 64 pools.

The problem is weakly NP-hard for a fixed number of pools (erratum 22: without shared limits it is polynomial), so the
worst case is exponential; `should_stop` ends a search that takes too long, with a valid bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.search.path import Stage, cheapest_paths

__all__ = ["SearchResult", "search"]

# Priced completion, last layer, pool, pods as a usage, price of its pods by multipliers alone, price.
Step = tuple[float, int, int, int, float, float]

_FIRST_GAP = 0.002  # relative to the lower bound
_CHECK_EVERY = 512  # labels, created or expanded, between two deadline checks


@dataclass(frozen=True)
class SearchResult:
    """Result of a label search."""

    stages: list[Stage] | None  # None: no plan below the cutoff
    bound: float  # no plan costs less than this, dollars per hour of the segments
    finished: bool  # neither the deadline nor the number of labels ended the search
    num_labels: int


def search(
    pods_LLT: FloatArray,  # noqa: N803
    price_T: FloatArray,  # noqa: N803
    room_T: FloatArray,  # noqa: N803
    multiplier_T: FloatArray,  # noqa: N803
    tracked: set[int],
    cutoff: float,
    should_stop: Callable[[], bool],
    most_labels: float = math.inf,
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
        most_labels: number of labels after which the search ends.
    """
    tracked.update(int(t) for t in np.flatnonzero(multiplier_T > 0))
    num_labels, least, gap = 0, 0.0, _FIRST_GAP
    space = _Search(pods_LLT, price_T, room_T, multiplier_T, sorted(tracked))
    while True:
        target = min(cutoff, max(space.lowest, least) * (1 + gap))
        result = space.run(target, most_labels - num_labels, should_stop)
        num_labels += result.num_labels
        least = max(least, result.bound)
        if not result.finished or (result.stages is None and target == cutoff):
            return SearchResult(None, least, result.finished, num_labels)
        if result.stages is None:
            gap *= 2
            continue
        used = np.zeros(len(price_T))
        for first, last, pool in result.stages:
            used[pool] += pods_LLT[first, last, pool]
        violated = {int(t) for t in np.flatnonzero(used > room_T)}
        if not violated:
            return SearchResult(result.stages, least, True, num_labels)
        tracked |= violated
        space = _Search(pods_LLT, price_T, room_T, multiplier_T, sorted(tracked))


class _Search:
    """One search with a given set of tracked pools."""

    def __init__(
        self,
        pods_LLT: FloatArray,  # noqa: N803
        price_T: FloatArray,  # noqa: N803
        room_T: FloatArray,  # noqa: N803
        multiplier_T: FloatArray,  # noqa: N803
        tracked: list[int],
    ) -> None:
        self.pods = pods_LLT
        self.weight = pods_LLT * price_T
        self.priced = pods_LLT * (price_T + multiplier_T)
        self.num_layers, self.num_pools = pods_LLT.shape[1:]
        both = cheapest_paths(np.stack([self.weight, self.priced]))
        self.rest = both.togo_SLT[0].tolist()
        self.priced_rest = both.togo_SLT[1]  # (L + 1, T)
        self.credit = float(multiplier_T @ room_T)  # what the priced path may save by using less than the limits
        self.lowest = max(float(both.value_S[0]), float(both.value_S[1]) - self.credit)
        self.multiplier = multiplier_T.tolist()
        # Usages are digits of one integer, each with a guard bit above it: `guards` has these bits.
        width = int(room_T[tracked].max(initial=0.0)).bit_length() + 1
        self.digit = dict.fromkeys(range(self.num_pools), 0)
        self.digit |= {pool: 1 << (width + 1) * i for i, pool in enumerate(tracked)}
        self.guards = sum(self.digit[pool] << width for pool in tracked)
        self.room = sum(self.digit[pool] * int(room_T[pool]) for pool in tracked) + self.guards
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
            pods = self.pods[first, lasts, pools].tolist()
            steps += zip(
                onward[begin:end].tolist(),
                lasts.tolist(),
                pools.tolist(),
                [int(n) * self.digit[pool] for n, pool in zip(pods, pools.tolist(), strict=True)],
                [n * self.multiplier[pool] for n, pool in zip(pods, pools.tolist(), strict=True)],
                self.weight[first, lasts, pools].tolist(),
                strict=True,
            )
        return steps

    def run(self, cutoff: float, most_labels: float, should_stop: Callable[[], bool]) -> SearchResult:
        """Find the cheapest path within the limits of the tracked pools; arguments and result as `search`."""
        num_layers, rest = self.num_layers, self.rest
        room, guards, credit = self.room, self.guards, self.credit
        # (bound, creation order, next layer, previous pool, price so far, priced price so far, usage, history)
        heap: list[tuple[float, int, int, int, float, float, int, Any]] = [(self.lowest, 0, 0, -1, 0.0, 0.0, 0, None)]
        settled: list[list[tuple[float, int, int]]] = [[] for _ in range(num_layers)]
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
                if should_stop() or count >= most_labels:
                    return SearchResult(None, bound, False, count)
            others = settled[layer]
            if _is_dominated(price, usage | guards, guards, before, others):
                continue
            others.append((price, usage, before))
            base = priced - credit
            for onward, last, pool, amount, toll, weight in self.steps_from(layer, cutoff - base):
                if base + onward >= cutoff:
                    break
                if pool == before:
                    continue
                child_usage = usage + amount
                if (room - child_usage) & guards != guards:  # a digit is above its limit
                    continue
                child_price = price + weight
                child_bound = max(base + onward, child_price + rest[last + 1][pool], bound)
                if child_bound >= cutoff:
                    continue
                count += 1
                child = (child_bound, count, last + 1, pool, child_price, priced + weight + toll, child_usage)
                heapq.heappush(heap, (*child, ((layer, last, pool), history)))
        return SearchResult(None, cutoff, True, count)


def _is_dominated(price: float, guarded: int, guards: int, before: int, others: list[tuple[float, int, int]]) -> bool:
    """Return whether every completion of a label costs no more as a completion of another one.

    Args:
        price: of the label.
        guarded: its usage with the guard bits set, so that subtraction shows by digit which usage is smaller.
        guards: the guard bits.
        before: pool of its last stage.
        others: price, usage and pool of the last stage of labels at the same layer.
    """
    first: int | None = None
    for other_price, other_usage, pool in others:
        if other_price <= price and (guarded - other_usage) & guards == guards:
            if pool == before or (first is not None and pool != first):
                return True
            first = pool
    return False


def _unwind(history: Any) -> list[Stage]:
    stages: list[Stage] = []
    while history is not None:
        stages.append(history[0])
        history = history[1]
    return stages[::-1]
