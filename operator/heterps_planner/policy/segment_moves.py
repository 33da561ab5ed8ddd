"""Local search over schedules by segment moves: set any run of layers i..j to any pool.

At a fixed throughput every segment has one number of pods (`cost_model.pods_for_throughput`). A segment move changes
that segment and the two stages that it cuts or joins, so the price of all L (L + 1) / 2 * T neighbours of a schedule
follows from table look-ups. Many schedules, each at its own throughput, descend side by side; what they come across is
then provisioned exactly by the `Evaluator`, because the throughput that pays best is not known beforehand (erratum 8).

Pool limits: pods beyond a limit are charged a multiple of their price, so that a search can start outside the feasible
region and cross it. Whether a schedule is feasible is decided by the `Evaluator` alone.

Shapes: n schedules that descend at once, S throughputs, L layers, T pools, M segments (i, j).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_planner.assignments import Evaluator
from heterps_planner.cost_model import FloatArray
from heterps_planner.points import Points, fastest_bound, lowest_throughput, search_prices

__all__ = ["SegmentMoves", "distinct"]

IntArray = NDArray[np.intp]

_IMPOSSIBLE = 1e6  # price of a layer in a segment that cannot be a stage, in prices of one pod of each pool
_EXCESS = (4.0, 0.7)  # price of a pod beyond the limit, in prices of a pod; neighbours in a batch alternate
_GAIN = 1e-9  # relative improvement below which a descent ends
_MOST_MOVES = 60  # of one descent; far more than any needs
_NUMBERS = 1_500_000  # of one array; larger batches are split
_TABLE_NUMBERS = 4_000_000  # of the tables with one number per (throughput, segment, pool)
_SPREAD = (1.0, 1.04, 1.1, 1.25)  # throughputs to descend at, in multiples of a plan's own


def distinct(assignment_NL: IntArray) -> IntArray:  # noqa: N803
    """Return the different rows in order of their first appearance."""
    _, index = np.unique(assignment_NL, axis=0, return_index=True)
    return assignment_NL[np.sort(index)]


class SegmentMoves:
    """Descents from given schedules; every result goes through the evaluator, which keeps the best plan."""

    def __init__(self, evaluator: Evaluator, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.evaluator = evaluator
        self.should_stop = should_stop
        segments = evaluator.segments
        self.segments = segments
        self.unlimited = replace(segments, limit_T=np.full_like(segments.limit_T, np.inf))
        self.price = search_prices(segments)
        self.lowest = lowest_throughput(segments, segments.floor)
        self.highest = max(fastest_bound(segments), self.lowest)
        self.first, self.last = np.triu_indices(segments.num_layers)
        self._polished: set[bytes] = set()

    def throughputs(self, *around: float) -> FloatArray:
        """Return throughputs worth descending at, given those of good plans; fewer if the tables would be large."""
        values = np.unique(np.clip(np.array(around), self.lowest, self.highest))
        size = self.segments.num_layers**2 * self.segments.num_pools
        return values[: max(1, _TABLE_NUMBERS // size)]

    def improve(self, start_NL: IntArray, most_rounds: int = 8) -> IntArray:  # noqa: N803
        """Descend from schedules, then from the best plan known as long as that improves it.

        Args:
            start_NL: the schedules, feasible or not, shape (n, L); may be empty.
            most_rounds: how often the best plan is descended from again.

        Returns:
            The schedules at the ends of the descents, all of them evaluated, (m, L).
        """
        ends = [start_NL[:0]]
        if len(start_NL):
            around = self._around()
            ends.append(self._descend_and_evaluate(start_NL, self.throughputs(*(around * f for f in _SPREAD))))
        for _ in range(most_rounds):
            best = self.evaluator.best_assignment
            if best is None or self.should_stop():
                break
            around = self._around()
            key = best.tobytes() + np.float64(around).tobytes()
            if key in self._polished:
                break
            self._polished.add(key)
            theta = self.throughputs(self.lowest, *(around * factor for factor in _SPREAD))
            ends.append(self._descend_and_evaluate(best[None], theta))
        return np.concatenate(ends)

    def _around(self) -> float:
        best = self.evaluator.best
        if best is not None:
            return max(best.throughput, self.lowest)
        return self.lowest if self.segments.floor else self.highest / 4

    def _descend_and_evaluate(self, start: IntArray, theta: FloatArray) -> IntArray:
        """Descend from every schedule at every throughput and evaluate the ends."""
        points = self.points(theta)
        assignment = np.repeat(start, len(theta), axis=0)
        at = np.tile(np.arange(len(theta)), len(start))
        step = max(1, _NUMBERS // (len(self.first) * self.segments.num_pools))
        ends = [start[:0]]
        for begin in range(0, len(assignment), step):
            if self.should_stop():
                break
            rows = slice(begin, begin + step)
            ends.append(distinct(self.descend(assignment[rows], points, at[rows])))
            self.evaluator.rates(ends[-1])
        return np.concatenate(ends)

    def points(self, theta_S: FloatArray) -> Points:  # noqa: N803
        """Return the pods of all segments at throughputs, even beyond a pool's limit, and the room in each pool."""
        points = Points(self.unlimited, self.price, theta_S)
        points.room = np.tile(self.segments.limit_T, (len(theta_S), 1))
        points.room[:, self.segments.server_pool] -= points.server
        return points

    def descend(self, assignment_NL: IntArray, points: Points, at_N: IntArray) -> IntArray:  # noqa: N803
        """Make the best segment move until none helps.

        Args:
            assignment_NL: schedules, shape (n, L).
            points: the throughputs.
            at_N: index of the throughput of each schedule.

        Returns:
            Schedules that no segment move makes cheaper at their throughput, shape (n, L).
        """
        possible = np.isfinite(points.pods)
        pods = np.where(possible, points.pods, 0.0)
        # The longer an impossible segment the worse, so that it pays to cut it although its pieces are impossible too.
        length = np.subtract.outer(np.arange(pods.shape[1]), np.arange(pods.shape[1])).T + 1.0
        worst = _IMPOSSIBLE * float(self.price.sum()) * length**2
        price = np.where(possible, pods * self.price, worst[:, :, None])
        result = assignment_NL.copy()
        weight = np.where(np.arange(len(result)) % 2 == 0, *_EXCESS)
        going = np.arange(len(result))
        value = np.full(len(result), np.inf)
        for _ in range(_MOST_MOVES):
            cost = self.neighbours(result[going], pods, price, points.room, at_N[going], weight[going])
            best = cost.reshape(len(going), -1).argmin(axis=1)
            lowest = cost.reshape(len(going), -1)[np.arange(len(going)), best]
            better = lowest < value[going] * (1 - _GAIN)
            going, best, lowest = going[better], best[better], lowest[better]
            if not len(going):
                break
            value[going] = lowest
            segment, pool = np.divmod(best, self.segments.num_pools)
            layers = np.arange(result.shape[1])
            inside = (layers >= self.first[segment][:, None]) & (layers <= self.last[segment][:, None])
            result[going] = np.where(inside, pool[:, None], result[going])
        return result

    def neighbours(
        self,
        assignment: IntArray,
        pods: FloatArray,
        price: FloatArray,
        room: FloatArray,
        at: IntArray,
        weight: FloatArray,
    ) -> FloatArray:
        """Price every segment move of every schedule.

        Args:
            assignment: (n, L).
            pods: (S, L, L, T), 0 for segments that cannot be stages.
            price: (S, L, L, T), dollars per hour, large for segments that cannot be stages.
            room: (S, T), pods of each pool that the stages may use.
            at: (n,), index into the throughputs.
            weight: (n,), price of a pod beyond its pool's limit, in prices of a pod.

        Returns:
            (n, M, T) dollars per hour with the charge for broken limits; a move may be one that changes nothing.
        """
        n, num_layers = assignment.shape
        num_pools = pods.shape[3]
        row, layer, pools = np.arange(n)[:, None], np.arange(num_layers), np.arange(num_pools)
        ends = np.ones((n, num_layers), dtype=bool)
        ends[:, :-1] = assignment[:, 1:] != assignment[:, :-1]
        begins = np.ones((n, num_layers), dtype=bool)
        begins[:, 1:] = ends[:, :-1]
        begin = np.maximum.accumulate(np.where(begins, layer, 0), axis=1)
        end = np.minimum.accumulate(np.where(ends, layer, num_layers)[:, ::-1], axis=1)[:, ::-1]
        # What is left of a stage that is cut after, or before, each layer.
        head = (at[:, None], begin, layer, assignment)
        tail = (at[:, None], layer, end, assignment)
        on_pool = assignment[:, :, None] == pools  # (n, L, T)

        def before(values: FloatArray, counted: NDArray[np.bool_]) -> FloatArray:
            """Sum the whole stages in front of the stage of each layer, by pool: (n, L, T)."""
            spread = np.where(on_pool & counted[:, :, None], values[:, :, None], 0.0)
            return spread.cumsum(axis=1)

        head_pods, tail_pods = pods[head], pods[tail]
        done = before(head_pods, ends)  # whole stages that end at or before a layer
        whole = np.concatenate([np.zeros((n, 1, num_pools)), done], axis=1)
        left_pods = np.zeros((n, num_layers, num_pools))  # entry i: stages in front of layer i, the cut one left out
        left_pods[:, 1:] = whole[row, begin[:, :-1]]
        total = done[:, -1:]
        right_pods = np.zeros((n, num_layers, num_pools))  # entry j: stages behind layer j, the cut one left out
        right_pods[:, :-1] = total - done[row, end[:, 1:]]
        money = np.where(ends, price[head], 0.0).cumsum(axis=1)
        left_money, right_money = np.zeros((n, num_layers)), np.zeros((n, num_layers))
        left_money[:, 1:] = np.where(begin[:, :-1] > 0, money[row, np.maximum(begin[:, :-1] - 1, 0)], 0.0)
        right_money[:, :-1] = money[:, -1:] - money[row, end[:, 1:]]
        # The pieces of the cut stages, unless they join the moved segment because they are on its pool.
        joins_left, joins_right = np.zeros((n, num_layers, num_pools), bool), np.zeros((n, num_layers, num_pools), bool)
        joins_left[:, 1:], joins_right[:, :-1] = on_pool[:, :-1], on_pool[:, 1:]
        left_piece, right_piece = np.zeros((n, num_layers)), np.zeros((n, num_layers))
        left_piece[:, 1:], right_piece[:, :-1] = price[head][:, :-1], price[tail][:, 1:]
        start = np.where(joins_left, np.concatenate([begin[:, :1], begin[:, :-1]], axis=1)[:, :, None], layer[:, None])
        stop = np.where(joins_right, np.concatenate([end[:, 1:], end[:, -1:]], axis=1)[:, :, None], layer[:, None])
        left_cost = left_money[:, :, None] + np.where(joins_left, 0.0, left_piece[:, :, None])
        right_cost = right_money[:, :, None] + np.where(joins_right, 0.0, right_piece[:, :, None])
        i, j = self.first, self.last
        flat = ((at[:, None, None] * num_layers + start[:, i]) * num_layers + stop[:, j]) * num_pools + pools
        cost: FloatArray = price.ravel()[flat]
        cost += left_cost[:, i]
        cost += right_cost[:, j]
        # Pods beyond the limits: of the moved segment's pool with what the segment needs, of all others without it.
        cut_left, cut_right = left_pods.copy(), right_pods.copy()
        cut_left[:, 1:] += on_pool[:, :-1] * head_pods[:, :-1, None]
        cut_right[:, :-1] += on_pool[:, 1:] * tail_pods[:, 1:, None]
        free = room[at][:, None, :]
        others = cut_left[:, i] + cut_right[:, j] - free
        if (others > 0).any():
            np.maximum(others, 0.0, out=others)
            others *= self.price
            others = others.sum(axis=2, keepdims=True) - others
        else:
            others = np.zeros((1, 1, 1))
        own = pods.ravel()[flat]
        own += left_pods[:, i]
        own += right_pods[:, j]
        own -= free
        np.maximum(own, 0.0, out=own)
        own *= self.price
        cost += weight[:, None, None] * (own + others)
        return cost
