"""Changing a running plan: exact over all plans, and more likely to change with more remaining samples."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.migration import Move, plan_from
from tests.heterps_planner.helpers.every_plan import every_plan
from tests.heterps_planner.helpers.problems import random_problem, with_floor

RESTART, START = 40.0, 90.0


def planned(problem: Problem) -> Plan:
    found = plan(problem)
    assert isinstance(found, Plan)
    return found


def changed_world(seed: int, layers: int = 3, pools: int = 2, most_pods: int = 5) -> tuple[Plan, Problem]:
    """A running plan, and the problem after prices, limits and the floor have changed."""
    rng = np.random.default_rng([seed, 11])
    server = str(rng.choice(["none", "none", "rate", "fixed"]))
    before = random_problem(
        rng, layers, pools, most_pods=most_pods, specialised=True, pods=seed % 3 == 0, server=server
    )
    before = with_floor(before, float(rng.uniform(0.2, 0.8)))
    running = planned(before)
    after = replace(
        before,
        pools=tuple(
            replace(pool, price_per_unit_hour=pool.price_per_unit_hour * float(rng.uniform(0.3, 3)))
            for pool in before.pools
        ),
        samples=float(10 ** rng.uniform(2, 7)),
    )
    if seed % 2:
        pool = int(rng.integers(pools))
        narrower = replace(after.pools[pool], max_units=max(after.pools[pool].max_units - 1, 0))
        after = replace(after, pools=(*after.pools[:pool], narrower, *after.pools[pool + 1 :]))
    if seed % 5 == 0:
        after = replace(after, min_samples_per_second=after.min_samples_per_second * float(rng.uniform(0.5, 1.5)))
    return running, after


def decide(problem: Problem, running: Plan, left: float | None = None) -> Move | Infeasible:
    return plan_from(problem, running, restart_seconds=RESTART, pod_start_seconds=START, samples_left=left)


def best_of_all(problem: Problem, running: Plan) -> float:
    """The least cost over all plans, each with its own cost of change; exhaustive."""
    plans = every_plan(problem)
    have = dict.fromkeys((pool.name for pool in problem.pools), 0)
    for stage in running.stages:
        have[stage.pool] += stage.units
    if problem.parameter_server is not None:
        have[running.parameter_server.pool] += running.parameter_server.units
    kept = np.array([have[pool.name] // pool.units_per_pod for pool in problem.pools])
    price = np.array([pool.price_per_unit_hour * pool.units_per_pod for pool in problem.pools])
    best = math.inf
    for choice, used in zip(plans.choices, plans.used, strict=True):
        stages = [(a, b, problem.pools[t].name, n) for (a, b, t), n in zip(choice.stages, choice.pods, strict=True)]
        same = stages == [(s.first_layer, s.last_layer, s.pool, s.pods) for s in running.stages]
        same = same and used.tolist() == kept.tolist()
        cost = choice.price * problem.samples / choice.throughput / 3600
        if not same:
            cost += choice.price * RESTART / 3600 + float(price @ np.maximum(used - kept, 0)) * START / 3600
        best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_decision_is_the_best_of_all(seed: int) -> None:
    running, problem = changed_world(seed, 3, 2 + seed % 2, 4)
    best = best_of_all(problem, running)
    found = decide(problem, running)
    if best == math.inf:
        assert isinstance(found, Infeasible)
        return
    assert isinstance(found, Move)
    assert found.optimal
    assert found.cost == pytest.approx(best, rel=2e-8)
    assert found.cost == pytest.approx(found.plan.cost + found.switch_cost)
    assert (found.decision == "stay") == (found.switch_cost == 0) or RESTART == 0


@pytest.mark.parametrize("seed", range(6))
def test_more_samples_left_never_make_it_more_reluctant(seed: int) -> None:
    running, problem = changed_world(2 * seed, 4, 3, 8)
    stays = []
    savings = []
    for left in (1e2, 1e4, 1e5, 1e6, 1e7, 1e9, 1e11):
        found = decide(problem, running, left)
        if isinstance(found, Infeasible) or found.saving is None:
            return
        stays.append(found.decision == "stay")
        savings.append(found.saving)
    assert stays == sorted(stays, reverse=True)
    assert savings == sorted(savings)


def test_all_decisions_occur() -> None:
    decisions = set()
    for seed in (2, 5, 37):
        running, problem = changed_world(seed, 4, 3, 8)
        found = decide(problem, running, 1e6)
        if isinstance(found, Move):
            decisions.add(found.decision)
    assert decisions == {"stay", "provision", "move"}


def test_an_unchanged_world_is_no_reason_to_change() -> None:
    problem = with_floor(random_problem(np.random.default_rng(3), 6, 3, specialised=True), 0.5)
    running = planned(problem)
    found = decide(problem, running)
    assert isinstance(found, Move)
    assert (found.decision, found.switch_cost, found.optimal) == ("stay", 0.0, True)
    assert found.plan.stages == running.stages
    assert found.saving == 0.0


def test_a_change_for_nothing_is_made_for_the_smallest_saving() -> None:
    running, problem = next(
        (running, problem)
        for running, problem in map(changed_world, range(0, 80, 2))
        if isinstance(found := decide(problem, running, 1e9), Move) and found.saving
    )
    free = plan_from(problem, running, restart_seconds=0, pod_start_seconds=0, samples_left=1.0)
    assert isinstance(free, Move)
    assert free.decision != "stay"
    assert free.plan.gap == 0.0


def test_a_pool_that_is_gone_forces_a_move() -> None:
    problem = with_floor(random_problem(np.random.default_rng(8), 4, 3, specialised=True), 0.3)
    running = planned(problem)
    gone = running.stages[0].pool
    without = replace(
        problem,
        pools=tuple(pool for pool in problem.pools if pool.name != gone),
        layers=tuple(replace(x, pools={n: t for n, t in x.pools.items() if n != gone}) for x in problem.layers),
        min_samples_per_second=0.0,
    )
    found = decide(without, running)
    assert isinstance(found, Move)
    assert (found.decision, found.stay_cost, found.saving) == ("move", None, None)
    assert found.switch_cost > 0


def test_a_floor_out_of_reach_is_infeasible() -> None:
    problem = with_floor(random_problem(np.random.default_rng(8), 4, 3), 0.3)
    running = planned(problem)
    found = decide(with_floor(problem, 1.3), running)
    assert isinstance(found, Infeasible)
    assert found.best_throughput > 0


def test_wrong_numbers_are_refused() -> None:
    problem = random_problem(np.random.default_rng(8), 2, 2)
    running = planned(problem)
    with pytest.raises(ProblemError, match=r"^restartSeconds: must be >= 0, is -1"):
        plan_from(problem, running, restart_seconds=-1, pod_start_seconds=0)
    with pytest.raises(ProblemError, match=r"^podStartSeconds: must be a finite number"):
        plan_from(problem, running, restart_seconds=0, pod_start_seconds=math.nan)
    with pytest.raises(ProblemError, match=r"^samplesLeft: must be > 0, is 0"):
        plan_from(problem, running, restart_seconds=0, pod_start_seconds=0, samples_left=0)


def test_the_json_says_what_it_costs() -> None:
    running, problem = changed_world(2)
    found = decide(problem, running)
    assert isinstance(found, Move)
    value = json.loads(json.dumps(found.to_json()))
    assert value["cost"] == pytest.approx(value["plan"]["cost"] + value["switchCost"])
