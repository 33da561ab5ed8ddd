"""The number of parameter servers: as many as the throughput needs, and as the wait for them is worth."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner import Infeasible, Layer, LayerTimes, ParameterServer, Plan, Pool, Problem, plan
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.explain import explain
from heterps_planner.scenarios.evaluate import evaluate
from heterps_planner.search import sweep
from heterps_planner.search.servers import cheapest_at, minimise
from tests.heterps_planner.helpers.every_plan import every_plan
from tests.heterps_planner.helpers.problems import random_problem, with_cuts, with_tables, with_waits

# For 100 samples: 1 ms fixed, 20 ms that workers share, 2 ms of waiting for one server, which works 20 ms for them.
LAYER = Layer("table", {"cpu": LayerTimes(0.023, 20 / 22, compute_fixed_seconds=0.001, server_seconds=0.002)})
CPU = Pool("cpu", "CPU", 1.0, 100)
PROBLEM = Problem(100, 1e6, (CPU,), (LAYER,), parameter_server=ParameterServer("cpu", 2e-4))


def plan_of(result: Plan | Infeasible) -> Plan:
    assert isinstance(result, Plan), result
    return result


def test_the_number_of_servers_follows_the_floor() -> None:
    slow = plan_of(plan(replace(PROBLEM, min_samples_per_second=2_000)))
    assert slow.parameter_server.to_json() == {"pool": "cpu", "replicas": 1, "units": 1}
    # One server sustains 5,000 samples/s, so 14,000 take three.
    fast = plan_of(plan(replace(PROBLEM, min_samples_per_second=14_000)))
    assert fast.parameter_server.to_json() == {"pool": "cpu", "replicas": 3, "units": 3}
    assert fast.stages[0].units == 4
    assert fast.throughput == pytest.approx(100 / (0.001 + 0.002 / 3 + 0.020 / 4))
    assert fast.optimal


def test_one_more_server_may_cost_less_than_more_workers() -> None:
    slow = Layer("table", {"cpu": LayerTimes(0.029, 19 / 28, compute_fixed_seconds=0.001, server_seconds=0.009)})
    problem = replace(PROBLEM, layers=(slow,), parameter_server=ParameterServer("cpu", 1e-4))
    found = plan_of(plan(replace(problem, min_samples_per_second=9_000)))
    throughputs = {
        (servers, workers): min(100 / (0.001 + 0.009 / servers + 0.019 / workers), servers * 10_000)
        for servers in range(1, 20)
        for workers in range(1, 20)
    }
    best = min((n for n in throughputs if throughputs[n] >= 9_000), key=lambda n: sum(n) / throughputs[n])
    assert (found.parameter_server.replicas, found.stages[0].units) == best
    assert best == (3, 4), "one server would sustain it, but waiting 9 of the 11 ms per batch takes 18 workers"


def test_servers_share_the_wait_for_dense_parameters_which_no_batch_makes_longer() -> None:
    """Each micro-batch of a pipeline counts the fixed part of its layers once more."""
    dense = LayerTimes(0.029, 20 / 21, compute_fixed_seconds=0.008, server_fixed_seconds=0.006)
    for batch, micro_batches in ((100, 1), (400, 4)):
        problem = replace(
            PROBLEM,
            layers=(Layer("mlp", {"cpu": dense}),),
            global_batch_size=batch,
            micro_batches=micro_batches,
            parameter_server=ParameterServer("cpu", 2e-4, units=3),
        )
        one = build_segments(problem).stage_time(0, 0, 0, 4)
        assert one == pytest.approx((0.002 + 0.006 / 3) / batch + (0.001 + 0.020 / 4) / 100)
        two = build_segments(replace(problem, layers=problem.layers * 2))
        pieces = micro_batches * (0.002 + 0.006 / 3) / batch + (0.001 + 0.020 / 4) / 100
        assert two.stage_time(0, 0, 0, 4) == pytest.approx(pieces)
        assert two.stage_time(0, 1, 0, 4) == pytest.approx(2 * one), "a plan of one stage has no micro-batches"


def test_a_fixed_number_of_servers_is_kept_and_limits_the_throughput() -> None:
    two = replace(PROBLEM, parameter_server=ParameterServer("cpu", 2e-4, units=2), min_samples_per_second=9_000)
    found = plan_of(plan(two))
    assert found.parameter_server.replicas == 2
    assert found.throughput == pytest.approx(10_000)
    assert explain(two, found).bottleneck == "parameterServer"
    refused = plan(replace(two, min_samples_per_second=11_000))
    assert isinstance(refused, Infeasible)
    assert refused.best_throughput == pytest.approx(10_000)
    assert "2 parameter servers on cpu sustain 10,000 samples/s" in refused.message
    assert "more parameter servers" in refused.message


def test_a_floor_that_no_number_of_servers_reaches_is_refused() -> None:
    small = replace(PROBLEM, pools=(replace(CPU, max_units=4),), min_samples_per_second=16_000)
    refused = plan(small)
    assert isinstance(refused, Infeasible)
    assert refused.limiting_pools == ("cpu",)
    assert refused.best_throughput == pytest.approx(100 / 0.012)  # of two servers and two workers
    assert "cpu (4 units)" in refused.message


@pytest.mark.parametrize("seed", range(60))
def test_the_number_of_servers_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(700 + seed)
    problem = random_problem(rng, int(rng.integers(1, 4)), int(rng.integers(1, 3)), most_pods=6, pods=bool(seed % 2))
    problem = with_waits(rng, with_cuts(rng, problem) if seed % 3 else problem)
    everything = every_plan(problem)
    best = float(everything.throughput.max(initial=1.0))
    problem = replace(problem, min_samples_per_second=best * float(rng.choice([0.0, 0.5, 0.9, 1.01])))
    everything = every_plan(problem)
    found = minimise(build_segments(problem))
    if not everything.choices:
        assert found.choice is None
        return
    rates = everything.price / everything.throughput
    assert found.choice is not None
    assert found.rate == pytest.approx(rates.min(), rel=1e-8)
    assert found.bound == pytest.approx(rates.min(), rel=1e-8)
    middle = float(np.median(everything.throughput))
    cheapest = cheapest_at(build_segments(problem), middle).choice
    assert cheapest is not None
    enough = everything.throughput >= middle * (1 - 1e-9)
    assert cheapest.price == pytest.approx(everything.price[enough].min(), rel=1e-8)


def test_the_numbers_of_servers_of_the_sample_differ() -> None:
    numbers: Counter[int] = Counter()
    for seed in range(60):
        rng = np.random.default_rng(700 + seed)
        problem = with_waits(rng, random_problem(rng, 2, 2, most_pods=12))
        choice = minimise(build_segments(replace(problem, min_samples_per_second=1.0))).choice
        numbers[choice.server_pods if choice else 0] += 1
    assert numbers[1] >= 10
    assert sum(count for number, count in numbers.items() if number > 1) >= 10


@pytest.mark.parametrize("seed", range(10))
def test_hand_written_stages_get_the_best_number_of_servers(seed: int) -> None:
    rng = np.random.default_rng(800 + seed)
    problem = with_waits(rng, random_problem(rng, 2, 2, most_pods=8))
    problem = replace(problem, pools=(replace(problem.pools[0], max_units=6), replace(problem.pools[1], max_units=3)))
    for units in (None, 2):
        stages = [{"pool": "pool0", "lastLayer": 0}, {"pool": "pool1"} | ({} if units is None else {"units": units})]
        found = evaluate(problem, stages)
        values = []
        for servers in range(1, 6):
            fixed = replace(
                problem,
                parameter_server=replace(problem.parameter_server, units=servers),  # type: ignore[type-var]
            )
            alone = evaluate(fixed, stages)
            values.append(alone.cost if isinstance(alone, Plan) else math.inf)
        assert (found.cost if isinstance(found, Plan) else math.inf) == pytest.approx(min(values), rel=1e-8)


def test_every_method_plans_for_the_same_servers_or_better() -> None:
    rng = np.random.default_rng(3)
    problem = with_waits(rng, random_problem(rng, 4, 2, most_pods=12))
    exact = plan_of(plan(problem))
    for method in ("brute-force", "greedy", "genetic", "cpu", "pretrained"):
        found = plan(problem, method)
        if isinstance(found, Plan):
            assert found.cost >= exact.cost * (1 - 1e-9)
            assert found.lower_bound == pytest.approx(exact.cost, rel=1e-8)


def test_the_refusal_of_any_method_considers_all_numbers_of_servers() -> None:
    small = replace(PROBLEM, pools=(replace(CPU, max_units=4),), min_samples_per_second=16_000)
    refused = plan(small, "greedy")
    assert isinstance(refused, Infeasible)
    assert refused.best_throughput == pytest.approx(100 / 0.012)


def test_tables_of_measured_times_and_waits_go_together() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        problem = with_tables(rng, with_waits(rng, random_problem(rng, 2, 2, most_pods=6)))
        everything = every_plan(problem)
        found = minimise(build_segments(problem))
        assert found.rate == pytest.approx(float((everything.price / everything.throughput).min()), rel=1e-8)


def test_without_waits_nothing_is_searched_twice() -> None:
    problem = replace(PROBLEM, layers=(Layer("table", {"cpu": LayerTimes(0.020, 0.5)}),))
    segments = build_segments(problem)
    assert segments.wait_LLT is None
    assert minimise(segments).rate == sweep.minimise(segments).rate
