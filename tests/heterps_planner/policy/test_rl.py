"""The methods rl-lstm and rl-rnn: learning, reproducibility, termination; and Algorithm 1 with its errata."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from experiments.literal_rl import VARIANTS, Variant, direction, features_of_paper, run

from heterps_operator.terminal.explanation import describe_contributions
from heterps_planner import Plan, plan
from heterps_planner.methods import METHODS, Task
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.learning import Learning, Settings, learn
from heterps_planner.search.sweep import minimise
from tests.heterps_planner.helpers.problems import random_problem, with_floor

CELLS = ["lstm", "elman"]
SHORT = Settings(rounds=8, samples=16)


def problem_of(seed: int, num_layers: int = 8, num_pools: int = 4) -> Problem:
    rng = np.random.default_rng(seed)
    return with_floor(random_problem(rng, num_layers, num_pools, most_pods=40, specialised=True), 0.4)


def learned(problem: Problem, cell: str, seed: int, settings: Settings) -> tuple[Learning, Evaluator]:
    evaluator = Evaluator(build_segments(problem))
    return learn(evaluator, cell, seed, settings=settings), evaluator


@pytest.mark.parametrize("cell", CELLS)
def test_the_policy_itself_gets_better_than_its_first_samples(cell: str) -> None:
    """Without segment moves: the network's own draws improve, on average and not only at best."""
    settings = Settings(rounds=60, samples=32, patience=60, starts=0, replayed=8)
    learning, _ = learned(problem_of(3), cell, 0, settings)
    first, last = np.mean(learning.mean_score[:3]), np.mean(learning.mean_score[-3:])
    assert last < first - 0.3  # log cost: a quarter cheaper or much closer to feasible
    assert learning.entropy[-1] < 0.7 * learning.entropy[0]
    assert learning.best_score == sorted(learning.best_score, reverse=True)


@pytest.mark.parametrize("method", ["rl-lstm", "rl-rnn"])
def test_the_plans_are_within_a_percent_of_the_optimum(method: str) -> None:
    for seed, num_pools in ((0, 2), (1, 6)):
        problem = problem_of(seed, num_layers=6, num_pools=num_pools)
        segments = build_segments(problem)
        choice = METHODS[method](Task(problem, segments, seed)).choice
        assert choice is not None
        assert choice.price / choice.throughput <= minimise(segments).rate * 1.01


@pytest.mark.parametrize("cell", CELLS)
def test_the_seed_decides_and_not_the_clock(cell: str) -> None:
    problem = problem_of(5, num_layers=5)
    (first, one), (second, two) = learned(problem, cell, 7, SHORT), learned(problem, cell, 7, SHORT)
    assert first == second
    assert one.best == two.best
    assert one.num_evaluated == two.num_evaluated
    assert learned(problem, cell, 8, SHORT)[0].mean_score != first.mean_score


def test_both_cells_see_the_same_problem_but_learn_differently() -> None:
    problem = problem_of(5, num_layers=5)
    lstm, elman = (learned(problem, cell, 7, SHORT)[0] for cell in CELLS)
    assert lstm.mean_score != elman.mean_score


def test_learning_ends_when_it_has_converged() -> None:
    problem = problem_of(2, num_layers=3, num_pools=2)
    learning, evaluator = learned(problem, "lstm", 0, Settings(rounds=100, samples=8, patience=5))
    assert learning.converged
    assert len(learning.mean_score) < 20
    assert evaluator.num_evaluated <= 8  # the number of all schedules


def test_the_record_says_which_part_found_the_plan() -> None:
    problem = problem_of(5, num_layers=6)
    segments = build_segments(problem)
    only_learning, evaluator = learned(problem, "lstm", 0, replace(SHORT, starts=0))
    assert only_learning.learned is not None
    assert only_learning.learned.num_searched == 0
    assert only_learning.learned.searched_rate == np.inf
    assert only_learning.learned.drawn_rate == pytest.approx(evaluator.best_rate)
    assert only_learning.learned.found_by == "learning"
    both, evaluator = learned(problem, "lstm", 0, SHORT)
    assert both.learned is not None
    least = min(both.learned.drawn_rate, both.learned.searched_rate)
    assert least == pytest.approx(evaluator.best_rate)
    assert evaluator.num_evaluated == both.learned.num_drawn + both.learned.num_searched + segments.num_pools
    assert 1 <= both.learned.found_in_round <= both.learned.num_rounds == 8


def test_a_learned_plan_tells_its_users_which_part_found_it() -> None:
    problem = problem_of(5, num_layers=5)
    found = plan(problem, "rl-lstm")
    assert isinstance(found, Plan)
    assert found.learned is not None
    document = found.to_json()["learned"]
    costs = [part["cost"] for part in (document["learning"], document["search"]) if part["cost"] is not None]
    assert min(costs) == pytest.approx(found.cost)
    first, second = describe_contributions(found)
    assert first.startswith({"learning": "learning", "search": "search"}[found.learned.found_by])
    assert f"{found.learned.num_drawn} schedules by learning" in second
    exact = plan(problem)
    assert isinstance(exact, Plan)
    assert "learned" not in exact.to_json()
    assert describe_contributions(exact) == []


def test_learning_stops_within_a_round_of_the_deadline() -> None:
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 12

    evaluator = Evaluator(build_segments(problem_of(6)))
    learning = learn(evaluator, "lstm", 0, should_stop=should_stop)
    assert learning.stopped
    assert not learning.converged
    assert len(learning.mean_score) <= 12


def test_large_problems_get_fewer_rounds() -> None:
    problem = random_problem(np.random.default_rng(1), 150, 30, most_pods=50)
    seen: list[float] = []
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    learn(Evaluator(build_segments(problem)), "lstm", 0, should_stop=should_stop, progress=seen.append)
    assert seen[0] == pytest.approx(1 / 11)  # 8 million numbers / (150 * 150 * 30)


CORRECTED = replace(VARIANTS["best plan"], rounds=80, plans=16, rate=2e-2)


def gain(variant: Variant, num_layers: int = 6) -> float:
    """Return how much cheaper the plans of the last rounds are than those of the first; without a floor all have a
    cost.
    """
    problem = random_problem(np.random.default_rng(4), num_layers, 2, most_pods=400)
    costs = run(problem, variant, 0).mean_cost
    return 1 - float(np.mean(costs[-5:]) / np.mean(costs[:5]))


def test_erratum_13_as_printed_the_plans_get_dearer() -> None:
    assert gain(CORRECTED) > 0.1
    assert gain(replace(CORRECTED, sign=False)) < -0.1


def test_erratum_14_as_printed_the_choices_for_later_layers_than_there_are_types_teach_nothing() -> None:
    rng = np.random.default_rng(0)
    probability = rng.dirichlet(np.ones(3), size=7)
    drawn, advantage = rng.integers(3, size=(20, 7)), rng.standard_normal(20)
    printed = direction(probability, drawn, advantage, all_layers=False)
    corrected = direction(probability, drawn, advantage, all_layers=True)
    np.testing.assert_array_equal(printed[:3], corrected[:3])
    assert (printed[3:] == 0).all()
    assert (np.abs(corrected[3:]).sum(axis=1) > 0).all()
    # By hand: the sum over plans of advantage * d log P / d logit.
    expected = sum(
        a * ((1 if plan[5] == 2 else 0) - probability[5, 2]) for plan, a in zip(drawn, advantage, strict=True)
    )
    assert corrected[5, 2] == pytest.approx(expected)


def test_erratum_15_a_baseline_from_zero_begins_with_steps_that_have_nothing_to_do_with_the_plans() -> None:
    """With all rewards near -1 and b = 0, every plan of the first round is punished."""
    problem = random_problem(np.random.default_rng(4), 6, 2, most_pods=400)
    plain = replace(CORRECTED, adam=False, rounds=30)
    from_zero = run(problem, replace(plain, first_mean=False), 0).mean_cost
    from_mean = run(problem, plain, 0).mean_cost
    assert from_zero[0] == from_mean[0]
    assert from_zero[1:] != from_mean[1:]


def test_erratum_16_plans_not_drawn_from_the_policy_do_not_get_cheaper() -> None:
    assert abs(gain(replace(CORRECTED, own_plans=False))) < 0.1


def test_erratum_16_the_best_plan_evaluated_is_never_dearer_than_the_most_probable_one() -> None:
    problem = problem_of(5, num_layers=6, num_pools=3)
    optimum = minimise(build_segments(problem)).rate
    probable, best = (run(problem, replace(CORRECTED, best_plan=best), 1).rate for best in (False, True))
    assert optimum * (1 - 1e-9) <= best
    assert best <= probable


def test_erratum_17_the_features_of_the_paper_say_nothing_of_speeds_prices_and_limits() -> None:
    """Two clusters that differ in all three look the same to the paper's network."""
    problem, other = problem_of(5), problem_of(5)
    pools = tuple(
        type(pool)(pool.name, pool.device_type, pool.price_per_unit_hour * (t + 1), pool.max_units + 5)
        for t, pool in enumerate(other.pools)
    )
    changed = type(other)(other.batch_size, other.samples, pools, other.layers, other.min_samples_per_second)
    np.testing.assert_array_equal(features_of_paper(problem), features_of_paper(changed))
