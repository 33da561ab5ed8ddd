"""Segment moves: prices of all neighbours against a direct computation, and the results of descents."""

from __future__ import annotations

import numpy as np

from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator, stages_of
from heterps_planner.policy.segment_moves import SegmentMoves, distinct
from heterps_planner.search.points import lowest_throughput
from heterps_planner.search.sweep import minimise
from tests.heterps_planner.helpers.problems import random_problem, with_floor


def test_the_price_of_every_neighbour_is_that_of_its_stages() -> None:
    compared = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        problem = random_problem(
            rng, 6, 3, most_pods=6, specialised=True, holes=seed % 3 == 0, server="rate" if seed % 2 else "none"
        )
        segments = build_segments(with_floor(problem, float(rng.uniform(0.3, 0.9))))
        moves = SegmentMoves(Evaluator(segments))
        theta = lowest_throughput(segments, segments.floor)
        points = moves.points(np.array([theta]))
        assignment = rng.integers(3, size=(2, 6))
        possible = np.isfinite(points.pods)
        pods = np.where(possible, points.pods, 0.0)
        price = np.where(possible, pods * moves.price, 1e9)
        weight = np.array([4.0, 0.7])
        cost = moves.neighbours(
            assignment, pods, price, points.room, np.zeros(2, dtype=np.intp), np.outer(weight, moves.price)
        )
        for row in range(2):
            for m, (i, j) in enumerate(zip(moves.first, moves.last, strict=True)):
                for pool in range(3):
                    neighbour = assignment[row].copy()
                    neighbour[i : j + 1] = pool
                    stages = stages_of(neighbour)
                    used = np.zeros(3)
                    expected = 0.0
                    for first, last, t in stages:
                        used[t] += pods[0, first, last, t]
                        expected += price[0, first, last, t]
                    expected += weight[row] * float(np.maximum(used - points.room[0], 0) @ moves.price)
                    np.testing.assert_allclose(cost[row, m, pool], expected, rtol=1e-9)
                    compared += 1
    assert compared == 4 * 2 * 21 * 3


def test_descents_end_where_no_move_helps_and_come_close_to_the_optimum() -> None:
    near = 0
    for seed in range(6):
        rng = np.random.default_rng(100 + seed)
        problem = with_floor(random_problem(rng, 8, 4, most_pods=30, specialised=True), 0.4)
        segments = build_segments(problem)
        best = minimise(segments).rate
        evaluator = Evaluator(segments)
        moves = SegmentMoves(evaluator)
        starts = np.repeat(np.arange(4)[:, None], 8, axis=1)
        ends = moves.improve(starts)
        assert np.isfinite(evaluator.rates(ends)).any()
        assert evaluator.best_rate >= best * (1 - 1e-9)
        assert evaluator.best_rate <= evaluator.rates(starts).min()
        near += evaluator.best_rate <= best * 1.02
        again = evaluator.best_rate
        assert evaluator.best_assignment is not None
        moves.improve(evaluator.best_assignment[None])
        assert evaluator.best_rate <= again
    assert near >= 5


def test_a_descent_starts_from_infeasible_schedules_too() -> None:
    problem = with_floor(random_problem(np.random.default_rng(51), 6, 3, most_pods=8, specialised=True), 0.7)
    segments = build_segments(problem)
    evaluator = Evaluator(segments)
    starts = np.repeat(np.arange(3)[:, None], 6, axis=1)
    assert np.isinf(evaluator.rates(starts)).all()
    SegmentMoves(evaluator).improve(starts)
    assert evaluator.best is not None


def test_nothing_is_evaluated_once_the_time_is_up() -> None:
    segments = build_segments(with_floor(random_problem(np.random.default_rng(1), 6, 3), 0.5))
    evaluator = Evaluator(segments)
    ends = SegmentMoves(evaluator, lambda: True).improve(np.zeros((1, 6), dtype=np.intp))
    assert len(ends) == 0
    assert evaluator.num_evaluated == 0


def test_distinct_keeps_the_first_of_equal_schedules_in_order() -> None:
    rows = np.array([[2, 1], [0, 0], [2, 1], [1, 1], [0, 0]], dtype=np.intp)
    assert distinct(rows).tolist() == [[2, 1], [0, 0], [1, 1]]
