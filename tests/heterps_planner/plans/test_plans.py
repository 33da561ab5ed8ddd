"""Plans as users see them: JSON, methods, refusals, explanations, deadlines."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import heterps_planner
from heterps_planner import (
    DeadlineError,
    Infeasible,
    Plan,
    Problem,
    ProblemError,
    TooLargeError,
    UnknownNameError,
    explain,
    frontier,
    plan,
)
from heterps_planner.model.servers import ParameterServer
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

HAND = Problem.from_json(document())


def plan_of(result: Plan | Infeasible) -> Plan:
    assert isinstance(result, Plan)
    return result


def refusal_of(result: Plan | Infeasible) -> Infeasible:
    assert isinstance(result, Infeasible)
    return result


def test_the_public_names_are_those_in_all() -> None:
    assert heterps_planner.__all__ == sorted(heterps_planner.__all__, key=lambda n: (not n.isupper(), n))
    assert all(hasattr(heterps_planner, name) for name in heterps_planner.__all__)


def test_a_plan_has_the_documented_json() -> None:
    value = json.loads(json.dumps(plan_of(plan(HAND)).to_json()))
    assert list(value) == [
        "version", "method", "feasible", "seconds", "stages", "parameterServer", "throughput", "costPerHour", "cost",
        "lowerBound", "gap", "optimal", "bindingLimits", "shadowPrices",
    ]  # fmt: skip
    stage = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 0, "layers": ["embedding"]}
    assert value["stages"][0] == stage | {"units": 2, "pods": 2}
    assert value["parameterServer"] == {"pool": "cpu", "replicas": 1, "units": 1}
    assert value["feasible"] is True
    assert value["optimal"] is True


def test_an_infeasible_problem_has_the_documented_json() -> None:
    value = json.loads(json.dumps(refusal_of(plan(replace(HAND, min_samples_per_second=1e6))).to_json()))
    assert value["feasible"] is False
    assert value["reason"] == "ThroughputFloorUnreachable"
    assert value["bestThroughput"] == pytest.approx(1 / 0.00055)
    assert value["limitingPools"] == ["cpu"]
    assert "1,818 samples/s" in value["message"]
    assert "cpu (10 units)" in value["message"]


def test_limits_that_allow_no_plan_at_all_are_named() -> None:
    problem = replace(HAND, pools=(replace(HAND.pools[0], max_units=0), HAND.pools[1]))
    result = refusal_of(plan(problem))
    assert result.best_throughput == 0
    assert result.limiting_pools == ("cpu",)
    assert "even at the lowest throughput" in result.message


def test_a_sequential_part_that_no_limit_cures_is_said() -> None:
    pools = tuple(replace(pool, max_units=10**6) for pool in HAND.pools)
    result = refusal_of(plan(replace(HAND, pools=pools, min_samples_per_second=2100.0)))
    assert result.limiting_pools == ()
    assert "sequential parts" in result.message


def test_a_ceiling_below_the_price_of_the_floor_is_the_reason() -> None:
    # 1000 samples/s take one cpu and one gpu: 2.5 $/h.
    result = refusal_of(plan(replace(HAND, max_cost_per_hour=2.4)))
    assert result.reason == "CostCeilingExceeded"
    assert "2.50 $/h" in result.message
    # 2.4 $/h pay for 4 cpus: 1 / (0.0005 + 0.0105 / 4) = 320 samples/s.
    assert result.best_throughput == pytest.approx(1 / (0.0005 + 0.0105 / 4))


def test_binding_limits_have_shadow_prices() -> None:
    problem = replace(HAND, pools=(replace(HAND.pools[0], max_units=1), HAND.pools[1]))
    result = plan_of(plan(problem))
    assert result.binding_limits == ("cpu",)
    # With one cpu: 2.5 $ for 1000/s; with two: 3.0 / 1333.3. The saving is paid out at 1000 samples/s.
    assert result.shadow_prices == {"cpu": pytest.approx(2.5 - 2.25)}


def test_a_homogeneous_method_without_such_a_pool_is_infeasible() -> None:
    result = refusal_of(plan(HAND, "gpu"))  # the gpu cannot run the first layer
    assert result.best_throughput == 0
    assert "method 'gpu'" in result.message


def test_an_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UnknownNameError, match=r"^scheduling\.method: unknown method 'optimale'; did you mean 'optimal'"
    ):
        plan(HAND, "optimale")


def test_brute_force_refuses_absurd_sizes_and_names_the_way_out() -> None:
    with pytest.raises(TooLargeError, match=r"4\^20 schedules.*use the method 'optimal'"):
        plan(random_problem(np.random.default_rng(0), 20, 4), "brute-force")


@pytest.mark.parametrize("method", ["optimal", "brute-force"])
def test_a_deadline_that_has_passed_before_any_plan_is_an_error(method: str) -> None:
    problem = with_floor(random_problem(np.random.default_rng(1), 15, 2), 0.9)
    floor_missed = replace(problem, min_samples_per_second=problem.min_samples_per_second * 1.2)
    with pytest.raises(DeadlineError):
        plan(floor_missed, method, deadline=0.0, clock=lambda: 1.0)


def test_parameter_servers_go_where_they_are_told() -> None:
    assert plan_of(plan(HAND, ps_replicas=3)).parameter_server.to_json() == {"pool": "cpu", "replicas": 3, "units": 3}
    assert plan_of(plan(HAND, ps_pool="gpu")).parameter_server.pool == "gpu"
    pods = replace(HAND, pools=(replace(HAND.pools[0], units_per_pod=2), HAND.pools[1]))
    assert plan_of(plan(pods, ps_replicas=2)).parameter_server.units == 4
    gpus = replace(HAND, pools=(replace(HAND.pools[0], device_type="XPU"), HAND.pools[1]))
    assert plan_of(plan(gpus)).parameter_server.pool == "cpu"  # no CPU pool: the first one


def test_charged_parameter_servers_have_one_process_per_pod_unless_told() -> None:
    problem = replace(HAND, parameter_server=ParameterServer("cpu", units=4))
    assert plan_of(plan(problem)).parameter_server.to_json() == {"pool": "cpu", "replicas": 4, "units": 4}
    assert plan_of(plan(problem, ps_replicas=2)).parameter_server.to_json() == {
        "pool": "cpu",
        "replicas": 2,
        "units": 4,
    }


def test_wrong_parameter_servers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"^parameterServer\.pool"):
        plan(HAND, ps_pool="tpu")
    with pytest.raises(ProblemError, match=r"^parameterServer\.replicas: must be >= 0, is -1"):
        plan(HAND, ps_replicas=-1)


def test_the_reasons_price_every_alternative() -> None:
    reasons = explain(HAND, plan_of(plan(HAND)))
    table = {a.name: a for a in reasons.alternatives}
    assert set(table) == {
        "only cpu", "only gpu", "without cpu", "without gpu", "first layer on cpu, rest on gpu",
        "first layer on gpu, rest on cpu",
    }  # fmt: skip
    assert table["first layer on cpu, rest on gpu"].extra_percent == pytest.approx(0)
    assert not table["only gpu"].feasible
    assert not table["only cpu"].feasible  # 10 cpus reach 645 samples/s
    assert reasons.bottleneck == "stage-0"
    budget = reasons.stages[1]
    assert budget.throughput == pytest.approx(2000)
    assert budget.busy_fraction == pytest.approx(2 / 3)
    assert budget.compute_parallel == pytest.approx(0.0005)
    assert budget.cost_share == pytest.approx(2 / 3)
    value = json.loads(json.dumps(reasons.to_json()))
    assert set(value["stages"][0]) >= {"busyFraction", "computeSequential", "costShare"}


def test_an_alternative_costs_what_its_optimum_costs() -> None:
    problem = replace(HAND, min_samples_per_second=100.0)
    reasons = explain(problem, plan_of(plan(problem)))
    table = {a.name: a for a in reasons.alternatives}
    only = table["only cpu"]
    best = plan_of(plan(problem, "cpu"))
    assert only.cost == pytest.approx(best.cost)
    assert only.extra_percent == pytest.approx((best.cost / plan_of(plan(problem)).cost - 1) * 100)


def test_parameter_servers_can_be_the_bottleneck() -> None:
    problem = replace(HAND, parameter_server=ParameterServer("gpu", cores_per_sample_per_second=0.0021))
    result = plan_of(plan(problem))
    slowest = min(stage.throughput for stage in result.stages)
    assert result.throughput < slowest
    assert explain(problem, result).bottleneck == "parameterServer"


def test_the_frontier_of_the_problem_that_is_solved_by_hand() -> None:
    whole = frontier(HAND)
    points = whole.points
    assert whole.complete
    by_price = {round(p.cost_per_hour, 2): p.throughput for p in points}
    assert by_price[2.5] == pytest.approx(1000)
    assert by_price[3.0] == pytest.approx(4000 / 3)
    assert points[-1].throughput == pytest.approx(1 / 0.00055)
    assert frontier(replace(HAND, min_samples_per_second=1e6)).points == ()
    assert json.loads(json.dumps(points[0].to_json()))["plan"]["method"] == "frontier"


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_the_number_of_frontier_points_is_bounded(count: int) -> None:
    with pytest.raises(ProblemError, match=r"^frontier\.maxPoints"):
        frontier(HAND, count)
