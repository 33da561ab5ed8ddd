"""Schedules as layer -> pool: stages, costs and scores against the provisioning of single schedules and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.assignments import Evaluator, schedules_from_assignments, stages_of
from heterps_planner.search.provisioning import provision, schedule_of
from tests.heterps_planner.helpers.problems import random_problem, small_problem, with_floor


def every_assignment(segments: Segments) -> np.ndarray:
    grid = np.indices((segments.num_pools,) * segments.num_layers)
    return grid.reshape(segments.num_layers, -1).T.astype(np.intp)


def test_neighbouring_layers_on_one_pool_are_one_stage_and_the_servers_come_last() -> None:
    segments = build_segments(random_problem(np.random.default_rng(0), 4, 3, server="rate"))
    assignment = np.array([[2, 2, 0, 2], [1, 1, 1, 1]])
    assert stages_of(assignment[0]) == [(0, 1, 2), (2, 2, 0), (3, 3, 2)]
    assert stages_of(assignment[1]) == [(0, 3, 1)]
    schedules = schedules_from_assignments(segments, assignment)
    assert schedules.seq.shape == (2, 4)
    np.testing.assert_array_equal(schedules.pool[:, -1], segments.server_pool)
    np.testing.assert_array_equal(schedules.par[:, -1], segments.server_par)
    np.testing.assert_array_equal(schedules.least, [[1, 1, 1, 1], [1, 0, 0, 1]])
    assert schedules.seq[0, 1] == segments.seq_LLT[2, 2, 0]


def test_the_best_of_all_assignments_is_the_plan_of_brute_force() -> None:
    feasible = 0
    for seed in range(60):
        segments = build_segments(small_problem(seed))
        oracle = enumerate_schedules(segments)
        evaluator = Evaluator(segments)
        rates = evaluator.rates(every_assignment(segments))
        assert rates.min() == pytest.approx(oracle.rate, rel=1e-12), seed
        assert evaluator.best_rate == rates.min()
        if not oracle.stages:
            assert evaluator.best is None
            continue
        feasible += 1
        best = evaluator.best
        assert best is not None
        assert best.price / best.throughput == pytest.approx(oracle.rate, rel=1e-9)
        assert best.throughput >= segments.floor * (1 - 2e-9)
        used = np.bincount([t for _, _, t in best.stages], best.pods, minlength=segments.num_pools)
        used[segments.server_pool] += best.server_pods
        assert (used <= segments.limit_T).all()
        assert evaluator.best_assignment is not None
        assert stages_of(evaluator.best_assignment) == list(best.stages)
    assert feasible >= 40


def test_each_rate_is_that_of_the_schedule_alone() -> None:
    rng = np.random.default_rng(3)
    segments = build_segments(with_floor(random_problem(rng, 7, 4, most_pods=12, server="rate"), 0.5))
    assignment = rng.integers(0, 4, size=(40, 7))
    rates = Evaluator(segments).rates(assignment)
    for row, rate in zip(assignment, rates, strict=True):
        stages = stages_of(row)
        alone = provision(schedule_of(segments, stages, [None] * len(stages)), segments)
        assert rate == pytest.approx(float(alone.rate[0]), rel=1e-12)
    assert np.isfinite(rates).any()


def test_a_schedule_seen_before_is_not_provisioned_again() -> None:
    rng = np.random.default_rng(4)
    evaluator = Evaluator(build_segments(random_problem(rng, 5, 2)))
    once = every_assignment(evaluator.segments)
    first = evaluator.rates(once)
    assert evaluator.num_evaluated == 32
    shuffled = rng.permutation(np.concatenate([once, once]))
    again = evaluator.rates(shuffled)
    assert evaluator.num_evaluated == 32
    codes = shuffled @ (2 ** np.arange(4, -1, -1))
    np.testing.assert_array_equal(again, first[codes])


@pytest.mark.parametrize("seed", range(12))
def test_scores_put_every_infeasible_schedule_above_every_feasible_one(seed: int) -> None:
    rng = np.random.default_rng(70 + seed)
    problem = random_problem(rng, 5, 3, holes=seed % 2 == 0, server="fixed" if seed % 3 == 0 else "none")
    segments = build_segments(with_floor(problem, 0.7))
    evaluator = Evaluator(segments)
    assignment = every_assignment(segments)
    rates, scores = evaluator.rates(assignment), evaluator.scores(assignment)
    assert np.isfinite(scores).all()
    feasible = np.isfinite(rates)
    assert feasible.any()
    assert not feasible.all()
    np.testing.assert_allclose(scores[feasible], np.log(rates[feasible]))
    assert scores[~feasible].min() > scores[feasible].max()


def test_the_penalty_grows_with_the_distance_from_the_limits() -> None:
    problem = random_problem(np.random.default_rng(5), 4, 2, most_pods=6)
    segments = build_segments(with_floor(problem, 0.9))
    one = np.array([[0, 0, 0, 0]])
    scores = []
    for factor in (1.0, 2.0, 4.0, 1e6):  # the floor rises; in the end no number of pods suffices
        harder = Segments(**{**segments.__dict__, "floor": segments.floor * factor})
        evaluator = Evaluator(harder)
        assert math.isinf(evaluator.rates(one)[0])
        scores.append(float(evaluator.scores(one)[0]) - evaluator.worst_feasible_score)
    assert scores == sorted(scores)
    assert len(set(scores)) == 4
