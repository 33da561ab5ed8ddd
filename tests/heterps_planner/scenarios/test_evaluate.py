"""Hand-written plans."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_planner import Infeasible, Plan, Problem, ProblemError, evaluate, plan
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.plans.plan import choice_of
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

HAND = Problem.from_json(document())
GOOD: list[dict[str, Any]] = [{"pool": "cpu", "lastLayer": "embedding"}, {"pool": "gpu", "lastLayer": "dense"}]


def plan_of(result: Plan | Infeasible) -> Plan:
    assert isinstance(result, Plan)
    return result


def refusal_of(result: Plan | Infeasible) -> Infeasible:
    assert isinstance(result, Infeasible)
    return result


def test_open_units_are_chosen_for_exactly_these_stages() -> None:
    result = plan_of(evaluate(HAND, GOOD))
    assert [stage.units for stage in result.stages] == [2, 1]
    assert result.cost == pytest.approx(2.25)
    assert result.optimal
    assert result.method == "fixed"


def test_given_units_are_kept_and_the_gap_says_what_they_cost() -> None:
    # 3 cpus: 1500 samples/s; 2 gpus: 4000; 5.5 $/h: 3.667 $ instead of 2.25 $.
    result = plan_of(evaluate(HAND, [GOOD[0] | {"units": 3}, GOOD[1] | {"units": 2}]))
    assert [stage.units for stage in result.stages] == [3, 2]
    assert result.throughput == pytest.approx(1500)
    assert result.cost == pytest.approx(5.5 / 1.5)
    assert result.lower_bound == pytest.approx(2.25)
    assert result.gap == pytest.approx(1 - 2.25 * 1.5 / 5.5)
    assert not result.optimal


def test_some_units_may_be_given_and_others_left_open() -> None:
    result = plan_of(evaluate(HAND, [GOOD[0] | {"units": 4}, GOOD[1]]))
    assert [stage.units for stage in result.stages] == [4, 1]


def test_layers_may_be_given_by_index_and_the_last_one_left_out() -> None:
    assert plan_of(evaluate(HAND, [{"pool": "cpu", "lastLayer": 0}, {"pool": "gpu"}])).cost == pytest.approx(2.25)


@pytest.mark.parametrize("seed", range(20))
def test_the_optimal_plan_given_by_hand_is_the_optimal_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = with_floor(random_problem(rng, 6, 3, pods=True, server=["none", "rate", "fixed"][seed % 3]), 0.7)
    best = plan_of(plan(problem))
    stages = [{"pool": stage.pool, "lastLayer": stage.last_layer} for stage in best.stages]
    again = plan_of(evaluate(problem, stages))
    assert again.cost == pytest.approx(best.cost, rel=1e-8)
    assert again.optimal
    fixed = [{**stage, "units": s.units} for stage, s in zip(stages, best.stages, strict=True)]
    assert plan_of(evaluate(problem, fixed)).cost == pytest.approx(best.cost, rel=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_any_schedule_is_provisioned_as_well_as_possible(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    problem = with_floor(random_problem(rng, 3, 2, most_pods=5), 0.3)
    segments = build_segments(problem)
    result = evaluate(problem, [{"pool": "pool1", "lastLayer": 1}, {"pool": "pool0"}])
    costs = []
    for pods in itertools.product(range(1, 6), repeat=2):
        if pods[0] <= segments.limit_T[1] and pods[1] <= segments.limit_T[0]:
            choice = choice_of(segments, [(0, 1, 1), (2, 2, 0)], list(pods), 0)
            if choice.throughput >= problem.min_samples_per_second * (1 - 1e-9):
                costs.append(choice.price / choice.throughput)
    if costs:
        assert plan_of(result).cost_per_hour / plan_of(result).throughput == pytest.approx(min(costs), rel=1e-8)
    else:
        assert refusal_of(result).best_throughput < problem.min_samples_per_second


BAD: list[tuple[Any, str, str]] = [
    (None, "scheduling.stages", "must be a list"),
    ([], "scheduling.stages", "must not be empty"),
    (GOOD * 2, "scheduling.stages", "at most 2"),
    (["cpu"], "scheduling.stages[0]", "must be an object"),
    ([{"lastLayer": 0}], "scheduling.stages[0].pool", "is missing"),
    ([{"pool": "cpus", "lastLayer": 0}, GOOD[1]], "scheduling.stages[0].pool", "did you mean 'cpu'"),
    ([{"pool": "cpu"}, GOOD[1]], "scheduling.stages[0].lastLayer", "is missing"),
    ([{"pool": "cpu", "lastLayer": "embeding"}, GOOD[1]], "scheduling.stages[0].lastLayer", "did you mean 'embedding'"),
    ([{"pool": "cpu", "lastLayer": 2}, GOOD[1]], "scheduling.stages[0].lastLayer", "must be <= 1"),
    ([{"pool": "cpu", "lastLayer": True}, GOOD[1]], "scheduling.stages[0].lastLayer", "name or the index"),
    ([{"pool": "cpu", "lastLayer": 0.5}, GOOD[1]], "scheduling.stages[0].lastLayer", "name or the index"),
    ([GOOD[0], {"pool": "gpu", "lastLayer": "embedding"}], "scheduling.stages[1].lastLayer", "must be 'dense'"),
    ([GOOD[0]], "scheduling.stages[0].lastLayer", "must end with the last layer 'dense'"),
    ([{"pool": "cpu", "lastLayer": 1}, GOOD[1]], "scheduling.stages[1]", "in earlier stages already"),
    ([GOOD[0], {"pool": "cpu", "lastLayer": 1}], "scheduling.stages[1].pool", "are one stage"),
    ([{"pool": "gpu", "lastLayer": 1}], "scheduling.stages[0].pool", "cannot run layer 'embedding'"),
    ([GOOD[0] | {"units": 0}, GOOD[1]], "scheduling.stages[0].units", "must be >= 1"),
    ([GOOD[0] | {"units": 1.5}, GOOD[1]], "scheduling.stages[0].units", "whole number"),
    ([GOOD[0] | {"units": 11}, GOOD[1]], "scheduling.stages[0].units", "take 11 units of pool 'cpu', which has 10"),
    ([GOOD[0] | {"unit": 1}, GOOD[1]], "scheduling.stages[0].unit", "did you mean 'units'"),
]


@pytest.mark.parametrize(("stages", "path", "words"), BAD)
def test_a_wrong_stage_is_named(stages: Any, path: str, words: str) -> None:
    with pytest.raises(ProblemError) as caught:
        evaluate(HAND, stages)
    assert caught.value.path == path
    assert words in str(caught.value)


def test_the_units_of_the_parameter_servers_are_counted() -> None:
    problem = replace(HAND, parameter_server=ParameterServer("cpu", units=2))
    assert plan_of(evaluate(problem, [GOOD[0] | {"units": 8}, GOOD[1]])).stages[0].pods == 8
    with pytest.raises(ProblemError, match=r"take 9 units of pool 'cpu', which has 10, and .* take 2 of them"):
        evaluate(problem, [GOOD[0] | {"units": 9}, GOOD[1]])


def test_units_must_fill_pods() -> None:
    problem = replace(HAND, pools=(replace(HAND.pools[0], units_per_pod=2), HAND.pools[1]))
    with pytest.raises(
        ProblemError, match=r"^scheduling\.stages\[0\]\.units: must be a multiple of the 2 units per pod"
    ):
        evaluate(problem, [GOOD[0] | {"units": 3}, GOOD[1]])
    assert plan_of(evaluate(problem, [GOOD[0] | {"units": 4}, GOOD[1]])).stages[0].pods == 2


def test_a_floor_out_of_reach_is_explained_with_the_best_throughput_and_who_limits_it() -> None:
    # 10 cpus: 0.0005 + 0.00005 = 0.00055 s per sample; 4 gpus 0.000125. Transfer 0.0003 + 0.00001.
    result = refusal_of(evaluate(replace(HAND, min_samples_per_second=1900.0), GOOD))
    assert result.reason == "ThroughputFloorUnreachable"
    assert result.best_throughput == pytest.approx(1 / 0.00055)
    assert result.limiting_pools == ("cpu",)
    assert "stage-0 on cpu" in result.message
    assert result.to_json()["bestThroughput"] == pytest.approx(1 / 0.00055)


def test_given_units_that_miss_the_floor_are_named_as_the_reason() -> None:
    result = refusal_of(evaluate(replace(HAND, min_samples_per_second=1200.0), [GOOD[0] | {"units": 1}, GOOD[1]]))
    assert result.best_throughput == pytest.approx(1000)
    assert result.limiting_pools == ()
    assert "leave its units out" in result.message


def test_a_ceiling_that_these_stages_exceed_is_named_as_the_reason() -> None:
    result = refusal_of(evaluate(replace(HAND, max_cost_per_hour=2.9), [GOOD[0] | {"units": 2}, GOOD[1]]))
    assert result.reason == "CostCeilingExceeded"
    assert "3.00 $/h" in result.message
