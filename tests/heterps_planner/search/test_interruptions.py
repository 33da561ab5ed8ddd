"""Pools whose units are interrupted: the certified optimum against every plan, one by one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_planner import Plan, Problem, plan
from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import Interruption, ParameterServer
from heterps_planner.plans.explain import explain
from heterps_planner.plans.plan import choice_of
from heterps_planner.search.points import cost_rate, lost_time
from heterps_planner.search.servers import minimise
from tests.heterps_planner.helpers.every_plan import every_plan
from tests.heterps_planner.helpers.problems import document, random_problem, small_problem, with_rough_floor, with_waits

NUM_TINY, NUM_SMALL, NUM_WAITING = 120, 200, 15


def interrupted(rng: np.random.Generator, problem: Problem) -> Problem:
    """Interrupt the units of some pools, at a discount that is about worth it for a few units."""
    cost = Interruption(
        worker_seconds=float(10 ** rng.uniform(0, 2.5)),
        server_seconds=float(10 ** rng.uniform(1, 3)),
        checkpoint_samples=float(rng.choice([0, 1e3, 1e5])),
    )
    pools = []
    for pool in problem.pools:
        loss = float(10 ** rng.uniform(-1.5, 0.5)) * (rng.random() < 0.7)  # of time, by one unit
        price = pool.price_per_unit_hour / (1 + loss * float(rng.uniform(1, 4)))
        rate = min(loss * 3600 / cost.worker_seconds, 1000.0)
        pools.append(replace(pool, interruptions_per_unit_hour=rate, price_per_unit_hour=price))
    return replace(problem, pools=tuple(pools), interruption=cost)


def test_the_optimum_is_the_least_of_all_plans() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(NUM_TINY):
        rng = np.random.default_rng(seed)
        server = str(rng.choice(["none", "rate", "fixed"]))
        tiny = random_problem(rng, int(rng.integers(1, 4)), int(rng.integers(2, 4)), most_pods=4, server=server)
        problem = interrupted(rng, with_rough_floor(tiny, float(rng.uniform(0, 0.9))))
        segments, every = build_segments(problem), every_plan(problem)
        found = minimise(segments)
        if not every.choices:
            assert found.choice is None, seed
            continue
        rates = [cost_rate(segments, choice) for choice in every.choices]
        assert found.choice is not None, seed
        assert found.rate == pytest.approx(min(rates), rel=2e-8), seed
        assert found.bound == found.rate, f"{seed}: certified"
        assert found.rate == pytest.approx(cost_rate(segments, found.choice), rel=1e-9)
        blind = minimise(build_segments(problem.without_interruptions())).choice
        assert blind is not None
        kinds["loses time"] += lost_time(segments, found.choice) > 1e-4
        kinds["another plan than without"] += cost_rate(segments, blind) > found.rate * 1.001
    assert kinds["loses time"] > NUM_TINY // 4
    assert kinds["another plan than without"] > NUM_TINY // 8, kinds


def test_the_optimum_equals_brute_force() -> None:
    proven = 0
    for seed in range(NUM_SMALL):
        problem = interrupted(np.random.default_rng(seed), small_problem(seed, with_rough_floor))
        segments = build_segments(problem)
        found, oracle = minimise(segments), enumerate_schedules(segments)
        assert (found.choice is None) == (not oracle.stages), seed
        if found.choice is None:
            continue
        assert found.rate == pytest.approx(oracle.rate, rel=2e-8), seed
        assert found.bound <= oracle.rate * (1 + 1e-9), f"{seed}: a lower bound in any case"
        proven += found.bound == found.rate
    assert proven > 0.95 * NUM_SMALL * 0.8


def test_the_number_of_servers_is_part_of_the_optimum() -> None:
    for seed in range(NUM_WAITING):
        rng = np.random.default_rng(seed)
        problem = interrupted(rng, with_waits(rng, random_problem(rng, 2, 2, most_pods=4)))
        segments, every = build_segments(problem), every_plan(problem)
        found = minimise(segments)
        assert found.choice is not None
        assert found.rate == pytest.approx(min(cost_rate(segments, c) for c in every.choices), rel=2e-8), seed


def spot(**changes: Any) -> dict[str, Any]:
    """Two equal CPU pools, one at a discount whose units are interrupted; the floor takes five units."""
    times = {"computeSeconds": 0.5, "parallelFraction": 1.0}
    pools = [
        {"name": "on-demand", "deviceType": "CPU", "pricePerUnitHour": 1.0, "maxUnits": 40},
        {"name": "spot", "deviceType": "CPU", "pricePerUnitHour": 0.9, "maxUnits": 40, "interruptionsPerUnitHour": 1.0},
    ]
    layers = [{"name": "all", "pools": {"on-demand": times, "spot": times}}]
    return document(pools=pools, layers=layers) | changes


def planned(value: dict[str, Any]) -> Plan:
    found = plan(Problem.from_json(value))
    assert isinstance(found, Plan)
    assert found.optimal
    return found


@pytest.mark.parametrize(("seconds", "pool"), [(0, "spot"), (60, "spot"), (120, "on-demand")])
def test_a_discount_pays_as_long_as_interruptions_cost_less(seconds: float, pool: str) -> None:
    """Five units lose 5 * seconds / 3600 of the time, and a tenth off the price is worth 80 s."""
    found = planned(spot(interruption={"workerSeconds": seconds}))
    assert found.stages[0].pool == pool


def test_the_cost_counts_the_lost_time_and_the_plan_says_how_much() -> None:
    found = planned(spot(interruption={"workerSeconds": 36}))
    assert found.stages[0].units == 5
    assert found.lost_time == pytest.approx(5 * 36 / 3600)
    assert found.cost == pytest.approx(5 * 0.9 * 3_600_000 / found.throughput / 3600 * 1.05)
    assert found.to_json()["lostTime"] == found.lost_time
    assert "lostTime" not in planned(spot(interruption={"workerSeconds": 0})).to_json()
    only = {a.name: a for a in explain(Problem.from_json(spot(interruption={"workerSeconds": 36})), found).alternatives}
    assert only["only spot"].cost == pytest.approx(found.cost)
    assert only["only on-demand"].cost == pytest.approx(5.0 * 3_600_000 / found.throughput / 3600)


def test_a_server_costs_the_work_since_the_last_checkpoint() -> None:
    value = spot(
        parameterServer={"pool": "spot", "units": 2},
        interruption={"workerSeconds": 0, "serverSeconds": 18, "checkpointSamples": 36_000},
    )
    problem = Problem.from_json(value)
    segments = build_segments(problem)
    choice = choice_of(segments, [(0, 0, 1)], [5], 2)
    assert choice.throughput == pytest.approx(1000)
    assert lost_time(segments, choice) == pytest.approx(2 * (18 + 36_000 / 2 / 1000) / 3600)


def test_interruptions_of_servers_that_are_not_charged_are_not_counted() -> None:
    assert planned(spot(interruption={"workerSeconds": 0})).lost_time == 0


@pytest.mark.parametrize("method", ["greedy", "brute-force", "genetic", "rl-lstm", "cpu"])
def test_other_methods_see_interruptions_too(method: str) -> None:
    problem = Problem.from_json(spot(interruption={"workerSeconds": 120}))
    found = plan(problem, method)
    assert isinstance(found, Plan)
    assert found.stages[0].pool == "on-demand"
    assert found.optimal


def test_a_problem_keeps_what_interruptions_cost() -> None:
    problem = Problem.from_json(spot(interruption={"workerSeconds": 1, "serverSeconds": 2, "checkpointSamples": 3}))
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    assert Problem.from_json(spot()).interruption == Interruption()
    assert "interruption" not in Problem.from_json(spot()).to_json()
    assert problem.without_interruptions().pools[1].interruptions_per_unit_hour == 0
    server = ParameterServer("spot", units=1)
    assert build_segments(replace(problem, parameter_server=server).without_interruptions()).interrupted is False
