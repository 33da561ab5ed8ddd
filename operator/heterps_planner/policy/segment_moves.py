"""Local search over schedules by segment moves: set any run of layers i..j to any pool.

At a fixed throughput every segment has one number of pods (`cost_model.pods_for_throughput`). A segment move changes
that segment and the two stages that it cuts or joins, so the price of all L (L + 1) / 2 * T neighbours of a schedule
follows from table look-ups. Many schedules, each at its own throughput, descend side by side; the `Evaluator` then
provisions their results exactly, because the most economical throughput is not known beforehand (erratum 8).

Pool limits: pods beyond a limit are charged a multiple of their price, so that a search can start outside the feasible
region and cross it. Where a descent ends beyond a limit, that pool's multiple grows and the descent continues: the
value of a scarce pod has little to do with its price. Only the `Evaluator` decides whether a schedule is feasible.

Shapes: n schedules that descend at once, S throughputs, L layers, T pools, M segments (i, j).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.search.points import Points, fastest_bound, lowest_throughput, search_prices

__all__ = ["SegmentMoves", "distinct"]

IntArray = NDArray[np.intp]

_IMPOSSIBLE = 1e6  # price of a layer in an impossible segment, in prices of one pod of each pool
_EXCESS = (4.0, 0.7)  # initial charge for a pod beyond the limit, in prices of a pod; rows of a batch alternate
_STRICT = 1e3  # the final charge, also used by the beam search
_SAME = 12  # moves considered per wanted schedule: many lead to the same one
_DEPTH = 4  # moves of a beam search
_GROWTH = 8.0  # factor on the charge where a descent ends beyond the limit
_GAIN = 1e-9  # relative improvement below which a descent ends
_MOST_MOVES = 40  # of one descent; far more than any needs
_NUMBERS = 1_500_000  # of one array; larger batches are split
_TABLE_NUMBERS = 4_000_000  # limit of the tables with one number per (throughput, segment, pool)
_SPREAD = (1.0, 1.04, 1.1, 1.25)  # throughputs of the descents, in multiples of a plan's own


def distinct(assignment_NL: IntArray) -> IntArray:  # noqa: N803
    """Return the distinct rows in order of their first appearance."""
    _, index = np.unique(assignment_NL, axis=0, return_index=True)
    return assignment_NL[np.sort(index)]


class SegmentMoves:
    """Descents from given schedules; every result passes through the evaluator, which keeps the best plan."""

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
        self._left: set[bytes] = set()  # with a beam search

    def throughputs(self, *around: float) -> FloatArray:
        """Return throughputs for descents, given those of good plans; fewer if the tables would be large."""
        values = np.unique(np.clip(np.array(around), self.lowest, self.highest))
        size = self.segments.num_layers**2 * self.segments.num_pools
        return values[: max(1, _TABLE_NUMBERS // size)]

    def improve(self, start_NL: IntArray, most_rounds: int = 8, width: int = 0) -> IntArray:  # noqa: N803
        """Descend from schedules, then from the best known plan as long as that improves it.

        Args:
            start_NL: the schedules, feasible or not, shape (n, L); may be empty.
            most_rounds: maximum number of descents from the best plan.
            width: width of a beam search from the best plan once it stops improving, for changes that several moves
                together make cheaper; 0: no beam search.

        Returns:
            The evaluated schedules at the ends of the descents, (m, L).
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
            theta = self.throughputs(self.lowest, *(around * factor for factor in _SPREAD))
            if key in self._polished:
                if not width or key in self._left:
                    break
                self._left.add(key)
                ends.append(self._beam(best, theta[:1], width))
                continue
            self._polished.add(key)
            ends.append(self._descend_and_evaluate(best[None], theta))
        return np.concatenate(ends)

    def _around(self) -> float:
        best = self.evaluator.best
        if best is not None:
            return max(best.throughput, self.lowest)
        return self.lowest if self.segments.floor else self.highest / 4

    def _descend_and_evaluate(self, start: IntArray, theta: FloatArray) -> IntArray:
        """Descend from every schedule at every throughput and evaluate the ends."""
        at = np.tile(np.arange(len(theta)), len(start))
        points, assignment = self.points(theta), np.repeat(start, len(theta), axis=0)
        step = max(1, _NUMBERS // (len(self.first) * self.segments.num_pools))
        ends = [assignment[:0]]
        for begin in range(0, len(assignment), step):
            if self.should_stop():
                break
            rows = slice(begin, begin + step)
            ends.append(distinct(self.descend(assignment[rows], points, at[rows])))
            self.evaluator.rates(ends[-1])
        return np.concatenate(ends)

    def _beam(self, best: IntArray, theta: FloatArray, width: int) -> IntArray:
        """Make several moves from a schedule, always to the cheapest unseen schedules; evaluate them."""
        every = [best[None]]
        for throughput in theta:
            points = self.points(np.array([throughput]))
            pods, price = self._priced(points)
            beam, seen = best[None], {best.tobytes()}
            for _ in range(_DEPTH):
                if self.should_stop():
                    break
                charge = np.repeat(self.price[None] * _STRICT, len(beam), axis=0)
                cost = self.neighbours(beam, pods, price, points.room, np.zeros(len(beam), dtype=np.intp), charge)
                stage = (beam[:, 1:] != beam[:, :-1]).cumsum(axis=1)
                stage = np.concatenate([np.zeros((len(beam), 1), dtype=np.intp), stage], axis=1)
                row, segment = (stage[:, self.first] == stage[:, self.last]).nonzero()
                cost[row, segment, beam[row, self.first[segment]]] = np.inf  # a move without effect
                cost = cost.reshape(len(beam), -1)
                count = min(_SAME * width, cost.size - 1)
                cheapest = np.argpartition(cost, count, axis=None)[:count]
                cheapest = cheapest[np.argsort(cost.ravel()[cheapest], kind="stable")]
                origin, move = np.divmod(cheapest, cost.shape[1])
                moved = distinct(self._moved(beam[origin], move))
                fresh = [i for i, schedule in enumerate(moved) if schedule.tobytes() not in seen][:width]
                if not fresh:
                    break
                beam = moved[fresh]
                seen.update(schedule.tobytes() for schedule in beam)
                every.append(beam)
        found = distinct(np.concatenate(every))
        self.evaluator.rates(found)
        return found

    def points(self, theta_S: FloatArray) -> Points:  # noqa: N803
        """Return the pods of all segments at throughputs, even beyond limits, and the free pods of each pool."""
        points = Points(self.unlimited, self.price, theta_S)
        points.room = np.tile(self.segments.limit_T, (len(theta_S), 1))
        points.room[:, self.segments.server_pool] -= points.server
        return points

    def descend(self, assignment_NL: IntArray, points: Points, at_N: IntArray) -> IntArray:  # noqa: N803
        """Repeat the best segment move until none helps.

        Args:
            assignment_NL: schedules, shape (n, L).
            points: the throughputs.
            at_N: index of the throughput of each schedule.

        Returns:
            Schedules that no segment move makes cheaper at their throughput and with the charges at the end, (n, L).
        """
        pods, price = self._priced(points)
        result = assignment_NL.copy()
        charge = np.outer(np.resize(_EXCESS, len(result)), self.price)
        going = np.arange(len(result))
        value = np.full(len(result), np.inf)
        for _ in range(_MOST_MOVES):
            if self.should_stop():
                break
            cost = self.neighbours(result[going], pods, price, points.room, at_N[going], charge[going])
            best = cost.reshape(len(going), -1).argmin(axis=1)
            lowest = cost.reshape(len(going), -1)[np.arange(len(going)), best]
            better = lowest < value[going] * (1 - _GAIN)
            ended = going[~better]
            moved, best, value[going[better]] = going[better], best[better], lowest[better]
            result[moved] = self._moved(result[moved], best)
            beyond = self._used(result[ended], pods, at_N[ended]) > points.room[at_N[ended]]
            beyond &= charge[ended] < _STRICT * self.price
            charge[ended] *= np.where(beyond, _GROWTH, 1.0)
            again = ended[beyond.any(axis=1)]
            value[again] = np.inf
            going = np.concatenate([moved, again])
            if not len(going):
                break
        return result

    def _priced(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Return pods and dollars per hour of all segments; 0 pods and a large price for impossible ones."""
        possible = np.isfinite(points.pods)
        pods = np.where(possible, points.pods, 0.0)
        # A longer impossible segment costs more, so that cutting it pays although its pieces are impossible too.
        length = np.subtract.outer(np.arange(pods.shape[1]), np.arange(pods.shape[1])).T + 1.0
        worst = _IMPOSSIBLE * float(self.price.sum()) * length**2
        return pods, np.where(possible, pods * self.price, worst[:, :, None])

    def _moved(self, assignment: IntArray, move: IntArray) -> IntArray:
        """Return schedules after one segment move each, given as indices into the flat (M, T)."""
        segment, pool = np.divmod(move, self.segments.num_pools)
        layers = np.arange(assignment.shape[1])
        inside = (layers >= self.first[segment][:, None]) & (layers <= self.last[segment][:, None])
        return np.where(inside, pool[:, None], assignment)

    def _used(self, assignment: IntArray, pods: FloatArray, at: IntArray) -> FloatArray:
        """Return the pods of each pool that schedules take, (n, T)."""
        n, num_layers = assignment.shape
        layer = np.arange(num_layers)
        changes = assignment[:, 1:] != assignment[:, :-1]
        begins = np.concatenate([np.ones((n, 1), bool), changes], axis=1)
        ends = np.concatenate([changes, np.ones((n, 1), bool)], axis=1)
        begin = np.maximum.accumulate(np.where(begins, layer, 0), axis=1)
        row, last = ends.nonzero()
        pool = assignment[row, last]
        used = np.zeros((n, self.segments.num_pools))
        np.add.at(used, (row, pool), pods[at[row], begin[row, last], last, pool])
        return used

    def neighbours(
        self,
        assignment: IntArray,
        pods: FloatArray,
        price: FloatArray,
        room: FloatArray,
        at: IntArray,
        charge: FloatArray,
    ) -> FloatArray:
        """Price every segment move of every schedule.

        Args:
            assignment: (n, L).
            pods: (S, L, L, T), 0 for segments that cannot be stages.
            price: (S, L, L, T), dollars per hour, large for segments that cannot be stages.
            room: (S, T), pods of each pool that the stages may use.
            at: (n,), index into the throughputs.
            charge: (n, T), dollars per hour for a pod beyond its pool's limit.

        Returns:
            (n, M, T) dollars per hour with the charge for broken limits; moves without effect are included.
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
        # The rest of a stage that is cut after, or before, each layer.
        head = (at[:, None], begin, layer, assignment)
        tail = (at[:, None], layer, end, assignment)
        on_pool = assignment[:, :, None] == pools  # (n, L, T)

        def before(values: FloatArray, counted: NDArray[np.bool_]) -> FloatArray:
            """Sum the whole stages before the stage of each layer, by pool: (n, L, T)."""
            spread = np.where(on_pool & counted[:, :, None], values[:, :, None], 0.0)
            return spread.cumsum(axis=1)

        head_pods, tail_pods = pods[head], pods[tail]
        done = before(head_pods, ends)  # whole stages that end at or before a layer
        whole = np.concatenate([np.zeros((n, 1, num_pools)), done], axis=1)
        left_pods = np.zeros((n, num_layers, num_pools))  # entry i: stages before layer i, without the cut one
        left_pods[:, 1:] = whole[row, begin[:, :-1]]
        total = done[:, -1:]
        right_pods = np.zeros((n, num_layers, num_pools))  # entry j: stages after layer j, without the cut one
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
            others *= charge[:, None]
            others = others.sum(axis=2, keepdims=True) - others
        else:
            others = np.zeros((1, 1, 1))
        own = pods.ravel()[flat]
        own += left_pods[:, i]
        own += right_pods[:, j]
        own -= free
        np.maximum(own, 0.0, out=own)
        own *= charge[:, None]
        own += others
        cost += own
        return cost
