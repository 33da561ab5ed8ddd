"""Robust plans, in worlds drawn after planning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_planner import Infeasible, Plan, Problem, ProblemError, explain, plan
from heterps_planner.model.pieces import FloatArray
from tests.heterps_planner.helpers.problems import random_problem, with_floor

NUM_WORLDS = 2_000


def throughputs(problem: Problem, found: Plan, error: float, rng: np.random.Generator) -> FloatArray:
    """The throughput of a plan in worlds whose times differ from the profile by independent lognormal errors."""
    slowest = np.zeros(NUM_WORLDS)
    for stage in found.stages:
        compute = np.zeros(NUM_WORLDS)
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]:
            times = layer.pools[stage.pool]
            share = 1 - times.parallel_fraction * (1 - 1 / stage.units)
            compute += times.compute_seconds * share * np.exp(error * rng.standard_normal(NUM_WORLDS))
        if stage.last_layer < len(problem.layers) - 1:
            times = problem.layers[stage.last_layer].pools[stage.pool]
            share = 1 - times.transfer_parallel_fraction * (1 - 1 / stage.units)
            transfer = times.transfer_seconds * share * np.exp(error * rng.standard_normal(NUM_WORLDS))
            compute = np.maximum(compute, transfer)
        slowest = np.maximum(slowest, compute / problem.batch_size)
    return 1 / slowest


def problems(number: int) -> list[Problem]:
    return [
        with_floor(random_problem(np.random.default_rng(700 + seed), 8, 3, most_pods=60), 0.5) for seed in range(number)
    ]


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2])
def test_the_robust_plan_keeps_the_floor_in_worlds_where_the_nominal_one_misses_it(error: float) -> None:
    missed_nominal, missed_robust, dearer = [], [], []
    for seed, problem in enumerate(problems(12)):
        nominal, robust = plan(problem), plan(problem, robust=error)
        assert isinstance(nominal, Plan)
        if isinstance(robust, Infeasible):
            continue
        rng = np.random.default_rng(seed)
        floor = problem.min_samples_per_second
        missed_nominal.append(float((throughputs(problem, nominal, error, rng) < floor).mean()))
        reached = throughputs(problem, robust, error, rng)
        missed_robust.append(float((reached < floor).mean()))
        assert robust.robust is not None
        assert robust.robust.confidence == pytest.approx(1 - missed_robust[-1], abs=0.02)
        # The promised throughput is the guaranteed one, the expected throughput that of a correct profile.
        assert float((reached < robust.throughput).mean()) <= 0.06
        assert float(np.median(reached)) <= robust.robust.expected_throughput * 1.05
        assert robust.robust.expected_throughput >= robust.throughput
        expected = robust.cost_per_hour / robust.robust.expected_throughput
        dearer.append(expected / (nominal.cost_per_hour / nominal.throughput) - 1)
    assert len(missed_robust) >= 10
    assert max(missed_robust) < 0.05
    assert max(missed_nominal) > 0.2
    # A margin has a price, in this sample about three times the error: sequential parts make speed expensive.
    assert -1e-9 <= float(np.mean(dearer)) < 4 * error


def test_no_error_changes_nothing() -> None:
    problem = problems(1)[0]
    exact, robust = plan(problem), plan(problem, robust=0.0)
    assert replace(exact, seconds=0.0) == replace(robust, seconds=0.0)


def test_robust_plans_are_optimal_among_plans_with_margins_and_say_so_in_the_plan_file() -> None:
    problem = problems(1)[0]
    found = plan(problem, robust=0.1)
    assert isinstance(found, Plan)
    assert found.optimal
    value = found.to_json()["robust"]
    assert value["error"] == 0.1
    assert 0.95 <= value["confidence"] <= 1
    assert value["expectedThroughput"] > found.throughput
    assert explain(problem, found).stages[0].throughput == pytest.approx(found.stages[0].throughput)


def test_a_larger_error_never_costs_less_and_every_method_knows_it() -> None:
    problem = replace(problems(2)[1], min_samples_per_second=0.0)
    costs = [plan(problem, robust=error).to_json()["cost"] for error in (0.0, 0.05, 0.1, 0.3)]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]
    by_hand = plan(problem, "cpu", robust=0.1)
    assert isinstance(by_hand, Plan)
    assert by_hand.robust is not None
    assert by_hand.lower_bound == pytest.approx(costs[2], rel=1e-8)


def test_a_floor_that_leaves_no_room_for_the_margin_is_refused_and_the_margin_is_named() -> None:
    problem = with_floor(random_problem(np.random.default_rng(1), 5, 2, most_pods=10), 0.99)
    assert isinstance(plan(problem), Plan)
    refused = plan(problem, robust=0.2)
    assert isinstance(refused, Infeasible)
    assert refused.message.startswith("no plan with a margin for a profile error of 20% reaches")


@pytest.mark.parametrize("error", [-0.1, 1.5, float("nan")])
def test_an_error_out_of_range_is_refused(error: float) -> None:
    with pytest.raises(ProblemError, match=r"^robust: must be a relative error in 0\.\.1"):
        plan(problems(1)[0], robust=error)
