"""Invariants of any problem (Hypothesis draws the seeds)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.frontier import frontier
from heterps_planner.plans.plan import choice_of
from heterps_planner.search.path import Stage
from heterps_planner.search.sweep import SweepResult, cheapest_at, minimise
from tests.heterps_planner.helpers.problems import random_problem, small_problem

seeds = st.integers(0, 10**9)
bounded = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
TOLERANCE = 1 + 1e-8


def solve(problem: Problem) -> SweepResult:
    return minimise(build_segments(problem))


def with_pools(problem: Problem, **changes: object) -> Problem:
    return replace(problem, pools=tuple(replace(pool, **changes) for pool in problem.pools))  # type: ignore[arg-type]


def random_stages(segments: Segments, rng: np.random.Generator) -> list[Stage]:
    stages: list[Stage] = []
    for layer, pool in enumerate(rng.integers(0, segments.num_pools, segments.num_layers).tolist()):
        if stages and stages[-1][2] == pool:
            stages[-1] = (stages[-1][0], layer, pool)
        else:
            stages.append((layer, layer, pool))
    return stages


@bounded
@given(seeds)
def test_more_units_never_make_a_plan_slower(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = build_segments(random_problem(rng, 5, 3, fixed=True, stage_overhead=True))
    stages = random_stages(segments, rng)
    pods = rng.integers(1, 50, len(stages)).tolist()
    before = choice_of(segments, stages, pods, 0)
    pods[int(rng.integers(len(stages)))] += int(rng.integers(1, 20))
    after = choice_of(segments, stages, pods, 0)
    assert after.throughput >= before.throughput
    assert after.price > before.price


@bounded
@given(seeds)
def test_the_least_pods_reach_the_throughput_and_one_less_does_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = build_segments(random_problem(rng, 4, 2, most_pods=1000, fixed=True))
    theta = float(10 ** rng.uniform(0, 4))
    pods = segments.pods(np.array([theta]))[0]
    for first, last, pool in np.argwhere(np.isfinite(pods)).tolist():
        count = float(pods[first, last, pool])
        assert 1 / segments.stage_time(first, last, pool, count) >= theta * (1 - 1e-9)
        if count > 1:
            assert 1 / segments.stage_time(first, last, pool, count - 1) < theta


@bounded
@given(seeds)
def test_no_plan_that_keeps_the_limits_is_cheaper_than_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = build_segments(random_problem(rng, 5, 3))
    best = minimise(segments)
    stages = random_stages(segments, rng)
    pods = [int(rng.integers(1, segments.limit_T[t] + 1)) for _, _, t in stages]
    used = np.zeros(3)
    for (_, _, t), n in zip(stages, pods, strict=True):
        used[t] += n
    choice = choice_of(segments, stages, pods, 0)
    if (used <= segments.limit_T).all():
        assert best.rate <= choice.price / choice.throughput * TOLERANCE


@bounded
@given(seeds)
def test_a_higher_limit_never_raises_the_cost(seed: int) -> None:
    problem = small_problem(seed)
    wider = replace(
        problem,
        pools=tuple(
            replace(p, max_units=p.max_units + (i + seed) % 3 * p.units_per_pod) for i, p in enumerate(problem.pools)
        ),
    )
    assert solve(wider).rate <= solve(problem).rate * TOLERANCE


@bounded
@given(seeds, st.floats(0.01, 100))
def test_scaling_all_prices_scales_the_cost_and_keeps_the_plan(seed: int, factor: float) -> None:
    problem = small_problem(seed)
    scaled = replace(
        problem,
        pools=tuple(replace(p, price_per_unit_hour=p.price_per_unit_hour * factor) for p in problem.pools),
    )
    before, after = solve(problem), solve(scaled)
    if before.choice is None:
        assert after.choice is None
    else:
        assert after.rate == pytest.approx(before.rate * factor, rel=1e-8)


@bounded
@given(seeds)
def test_the_order_of_the_pools_does_not_matter(seed: int) -> None:
    problem = small_problem(seed)
    assert solve(replace(problem, pools=problem.pools[::-1])).rate == pytest.approx(solve(problem).rate, rel=1e-8)


@bounded
@given(seeds)
def test_a_pool_that_costs_more_and_is_slower_than_another_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 4, 2, most_pods=400)
    problem = with_pools(problem, max_units=100_000)
    best = problem.pools[1]
    worse = replace(best, name="worse", price_per_unit_hour=best.price_per_unit_hour * 1.5)
    layers = tuple(
        replace(layer, pools={**layer.pools, "worse": replace(t, compute_seconds=t.compute_seconds * 1.2)})
        for layer in problem.layers
        for t in [layer.pools[best.name]]
    )
    # An unlimited worse pool could only serve to split a stage in two (erratum 23); a single layer excludes that.
    one = replace(problem, layers=problem.layers[:1])
    assert solve(replace(one, pools=(*one.pools, worse), layers=layers[:1])).rate == pytest.approx(
        solve(one).rate, rel=1e-8
    )


@bounded
@given(seeds)
def test_merging_layers_never_makes_the_optimum_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 4, 3)
    segments = build_segments(problem)
    cut = int(rng.integers(0, 3))
    merged = np.ones_like(segments.seq_LLT, dtype=bool)
    merged[:, cut, :] = False  # no stage may end between the two layers
    assert minimise(segments.restricted(merged)).rate >= minimise(segments).rate / TOLERANCE


@bounded
@given(seeds)
def test_a_higher_floor_never_lowers_the_cost_nor_the_price_per_hour(seed: int) -> None:
    problem = small_problem(seed)
    higher = replace(problem, min_samples_per_second=problem.min_samples_per_second * 1.1 + 1)
    assert solve(higher).rate >= solve(problem).rate / TOLERANCE
    segments = build_segments(problem)
    low, high = cheapest_at(segments, 50.0).choice, cheapest_at(segments, 60.0).choice
    if high is not None:
        assert low is not None
        assert low.price <= high.price * TOLERANCE


@bounded
@given(seeds)
def test_the_frontier_rises_and_holds_the_cheapest_plan_between_its_ends(seed: int) -> None:
    problem = small_problem(seed)
    points = frontier(problem, 12).points
    best = solve(problem)
    if best.choice is None:
        assert points == ()
        return
    assert 1 <= len(points) <= 12
    for before, after in itertools.pairwise(points):
        assert after.throughput > before.throughput
        assert after.cost_per_hour > before.cost_per_hour
    assert points[0].throughput >= problem.min_samples_per_second * (1 - 2e-9)
    assert all(p.cost_per_hour / p.throughput >= best.rate / TOLERANCE for p in points)
    assert points[-1].throughput >= best.choice.throughput * (1 - 1e-8)


@bounded
@given(seeds)
def test_units_without_a_price_are_planned_too(seed: int) -> None:
    problem = small_problem(seed)
    free = with_pools(problem, price_per_unit_hour=0.0)
    assert (solve(free).choice is None) == (solve(problem).choice is None)


@bounded
@given(seeds)
def test_a_ceiling_forbids_exactly_the_plans_above_it(seed: int) -> None:
    problem = small_problem(seed)
    best = solve(problem)
    if best.choice is None:
        return
    assert solve(replace(problem, max_cost_per_hour=best.choice.price)).rate == pytest.approx(best.rate, rel=1e-8)
    at_floor = cheapest_at(build_segments(problem), problem.min_samples_per_second).choice
    assert at_floor is not None
    below = replace(problem, max_cost_per_hour=at_floor.price * 0.999)
    assert solve(below).choice is None
    between = solve(replace(problem, max_cost_per_hour=(at_floor.price + best.choice.price) / 2))
    assert between.choice is not None
    assert between.rate >= best.rate / TOLERANCE
