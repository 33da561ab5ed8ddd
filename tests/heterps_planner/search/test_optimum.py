"""The exact method against independent oracles: brute force over all schedules, and HiGHS at a fixed throughput."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.plan import choice_of
from heterps_planner.search import sweep
from heterps_planner.search.labels import search
from heterps_planner.search.limits import fastest, shadow_prices
from heterps_planner.search.path import Stage, cheapest_paths, relax
from heterps_planner.search.points import Choice, Points, least_rate, search_prices
from heterps_planner.search.provisioning import fastest_provision, provision, schedule_of
from heterps_planner.search.sweep import SearchOptions, cheapest_at, minimise
from tests.heterps_planner.helpers.problems import (
    random_problem,
    small_problem,
    with_cuts,
    with_floor,
    with_memory,
    with_rough_floor,
    with_tables,
)

NUM_PROBLEMS = 2000


def check_choice(segments: Segments, choice: Choice, floor: float) -> None:
    """Assert that the plan is consistent."""
    again = choice_of(segments, list(choice.stages), list(choice.pods), choice.server_pods)
    assert again.throughput == pytest.approx(choice.throughput, rel=1e-12)
    assert again.throughput >= floor * (1 - 2e-9)
    used = np.zeros(segments.num_pools)
    used[segments.server_pool] += choice.server_pods
    for (_, _, pool), pods in zip(choice.stages, choice.pods, strict=True):
        used[pool] += pods
        assert pods >= 1
    assert (used <= segments.limit_T).all()
    assert choice.stages[0][0] == 0
    assert choice.stages[-1][1] == segments.num_layers - 1
    for before, after in itertools.pairwise(choice.stages):
        assert after[0] == before[1] + 1
        assert after[2] != before[2]


def test_the_optimum_equals_brute_force_on_two_thousand_random_problems() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(NUM_PROBLEMS):
        problem = small_problem(seed, with_rough_floor)
        segments = build_segments(problem)
        result = minimise(segments)
        oracle = enumerate_schedules(segments)
        prices = [pool.price_per_unit_hour for pool in problem.pools]
        kinds["one layer"] += len(problem.layers) == 1
        kinds["one pool"] += len(problem.pools) == 1
        kinds["equal prices"] += len(set(prices)) < len(prices)
        kinds["no floor"] += problem.min_samples_per_second == 0
        assert result.finished, seed
        if not oracle.stages:
            kinds["out of reach"] += 1
            assert result.choice is None, seed
            continue
        assert result.choice is not None, seed
        assert result.rate == pytest.approx(oracle.rate, rel=1e-8), seed
        assert result.bound == result.rate, seed
        kinds["limits matter"] += result.limits_mattered
        check_choice(segments, result.choice, problem.min_samples_per_second)
    # The sample is useful only if all of these occur; none may dominate. The next test has more limits.
    assert kinds.pop("limits matter") >= NUM_PROBLEMS // 50
    assert set(kinds) == {"one layer", "one pool", "equal prices", "no floor", "out of reach"}
    assert min(kinds.values()) >= NUM_PROBLEMS // 20, kinds
    assert max(kinds.values()) <= NUM_PROBLEMS // 2, kinds


def test_the_optimum_equals_brute_force_where_shared_limits_bind() -> None:
    binding = searched = 0
    for seed in range(120):
        rng = np.random.default_rng(6000 + seed)
        problem = random_problem(
            rng,
            6,
            3,
            most_pods=int(rng.choice([8, 20])),
            specialised=bool(rng.random() < 0.7),
            pods=bool(rng.random() < 0.3),
            server=str(rng.choice(["none", "rate"])),
        )
        problem = with_floor(problem, float(rng.uniform(0.85, 1.0)))
        segments = build_segments(problem)
        result = minimise(segments)
        assert result.choice is not None, seed
        assert result.rate == pytest.approx(enumerate_schedules(segments).rate, rel=1e-8), seed
        check_choice(segments, result.choice, problem.min_samples_per_second)
        unlimited = replace(segments, limit_T=segments.limit_T * 100)
        binding += minimise(unlimited).rate < result.rate * (1 - 1e-6)
        searched += result.num_labels > 0
    # The sample is useful only if limits bind and the label search is needed.
    assert binding >= 48
    assert searched >= 18


def test_the_optimum_equals_brute_force_with_messages_and_bubbles() -> None:
    other = 0
    for seed in range(60):
        rng = np.random.default_rng(9000 + seed)
        plain = random_problem(rng, 5, 3, most_pods=8, fixed=True, pods=bool(rng.random() < 0.3), specialised=True)
        plain = with_tables(rng, plain) if seed % 3 == 2 else plain
        problem = with_floor(with_cuts(rng, plain), float(rng.uniform(0.5, 1.0)))
        segments = build_segments(problem)
        result = minimise(segments)
        assert result.choice is not None, seed
        assert result.rate == pytest.approx(enumerate_schedules(segments).rate, rel=1e-8), seed
        check_choice(segments, result.choice, problem.min_samples_per_second)
        other += minimise(build_segments(plain)).rate < result.rate * (1 - 1e-6)
    assert other >= 30, "otherwise the sample would say little"


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_equals_brute_force_on_longer_models(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    problem = with_floor(random_problem(rng, 9, 3, most_pods=12), 0.8)
    segments = build_segments(problem)
    assert minimise(segments).rate == pytest.approx(enumerate_schedules(segments).rate, rel=1e-8)


def highs_price(segments: Segments, theta: float) -> float:
    """Least price per hour at a throughput by mixed-integer programming, infinity if infeasible."""
    need = segments.pods(np.array([theta]))[0]
    usable = [tuple(map(int, index)) for index in np.argwhere(np.isfinite(need))]
    pods = np.array([need[index] for index in usable])
    if not usable:
        return math.inf
    rows, lower, upper = [], [], []
    for layer in range(segments.num_layers):  # each layer is in exactly one segment
        rows.append([1.0 if a <= layer <= b else 0.0 for a, b, _ in usable])
        lower.append(1.0)
        upper.append(1.0)
    for cut in range(1, segments.num_layers):  # neighbours are on different pools
        for pool in range(segments.num_pools):
            rows.append([1.0 if t == pool and (b == cut - 1 or a == cut) else 0.0 for a, b, t in usable])
            lower.append(0.0)
            upper.append(1.0)
    servers = float(segments.server_need(np.array([theta]))[0])
    room = segments.limit_T.copy()
    room[segments.server_pool] -= servers
    if (room < 0).any():
        return math.inf
    for pool in range(segments.num_pools):
        rows.append([n if t == pool else 0.0 for n, (_, _, t) in zip(pods, usable, strict=True)])
        lower.append(0.0)
        upper.append(float(room[pool]))
    cost = np.array([n * segments.price_T[t] for n, (_, _, t) in zip(pods, usable, strict=True)])
    result = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), lower, upper),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(usable)),
        options={"mip_rel_gap": 0.0},
    )
    return float(result.fun + servers * segments.price_T[segments.server_pool]) if result.success else math.inf


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_plan_at_a_throughput_equals_highs(seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    problem = random_problem(
        rng, int(rng.integers(4, 11)), int(rng.integers(2, 5)), most_pods=10, server=str(rng.choice(["none", "rate"]))
    )
    segments = build_segments(problem)
    best, _ = fastest(segments)
    theta = best * float(rng.uniform(0.4, 1.02))
    ours = cheapest_at(segments, theta).choice
    theirs = highs_price(segments, theta * (1 - 1e-9))
    if ours is None:
        assert theirs == math.inf
    else:
        assert ours.price == pytest.approx(theirs, rel=1e-6)


def all_schedules(segments: Segments) -> list[list[Stage]]:
    schedules: list[list[Stage]] = []
    for assignment in itertools.product(range(segments.num_pools), repeat=segments.num_layers):
        stages: list[Stage] = []
        for layer, pool in enumerate(assignment):
            if stages and stages[-1][2] == pool:
                stages[-1] = (stages[-1][0], layer, pool)
            else:
                stages.append((layer, layer, pool))
        if all(np.isfinite(segments.seq_LLT[stage]) for stage in stages):
            schedules.append(stages)
    return schedules


@pytest.mark.parametrize("seed", range(60))
def test_the_highest_throughput_equals_that_of_the_best_of_all_schedules(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    problem = random_problem(
        rng, 4, 3, most_pods=5, pods=seed % 2 == 0, holes=True, server=["none", "rate", "fixed"][seed % 3]
    )
    segments = build_segments(problem)
    best, choice = fastest(segments)
    oracle = max(
        fastest_provision(schedule_of(segments, stages, [None] * len(stages)), segments)[0]
        for stages in all_schedules(segments)
    )
    assert best == pytest.approx(oracle, rel=1e-8)
    if choice is not None:
        check_choice(segments, choice, best)


@pytest.mark.parametrize("seed", range(40))
def test_provisions_of_one_schedule_equal_those_of_trying_all_unit_counts(seed: int) -> None:
    rng = np.random.default_rng(4000 + seed)
    problem = random_problem(rng, 3, 2, most_pods=5)
    problem = with_floor(with_cuts(rng, problem) if seed % 2 else problem, 0.6)
    segments = build_segments(problem)
    stages: list[Stage] = [(0, 0, 0), (1, 1, 1), (2, 2, 0)]
    costs, throughputs = [math.inf], [0.0]
    for pods in itertools.product(range(1, 6), repeat=3):
        used = [pods[0] + pods[2], pods[1]]
        if used[0] > segments.limit_T[0] or used[1] > segments.limit_T[1]:
            continue
        choice = choice_of(segments, stages, list(pods), 0)
        throughputs.append(choice.throughput)
        if choice.throughput >= problem.min_samples_per_second * (1 - 1e-9):
            costs.append(choice.price / choice.throughput)
    schedule = schedule_of(segments, stages, [None, None, None])
    assert provision(schedule, segments).rate[0] == pytest.approx(min(costs), rel=1e-8)
    assert fastest_provision(schedule, segments)[0] == pytest.approx(max(throughputs), rel=1e-8)


def test_shadow_prices_are_the_exact_savings_of_one_more_pod() -> None:
    num_binding = 0
    for seed in range(40):
        rng = np.random.default_rng(5000 + seed)
        segments = build_segments(with_floor(random_problem(rng, 5, 3, most_pods=6, pods=seed % 2 == 0), 0.9))
        result = minimise(segments)
        assert result.choice is not None
        prices = shadow_prices(segments, result.choice, result.rate).saving_T
        for pool in range(3):
            wider = enumerate_schedules(segments.with_limit(pool, float(segments.limit_T[pool]) + 1)).rate
            saving = (result.rate - wider) * result.choice.throughput / float(segments.units_T[pool])
            assert prices[pool] == pytest.approx(saving, rel=1e-5, abs=1e-7)
            num_binding += prices[pool] > 0
    assert num_binding >= 14


def test_a_search_that_is_stopped_still_gives_a_valid_bound() -> None:
    segments = build_segments(with_floor(random_problem(np.random.default_rng(42), 14, 4, most_pods=20), 0.7))
    optimum = minimise(segments)
    num_calls = 0
    for patience in range(0, 60, 3):
        num_calls = 0

        def should_stop(patience: int = patience) -> bool:
            nonlocal num_calls
            num_calls += 1
            return num_calls > patience

        stopped = minimise(segments, SearchOptions(should_stop=should_stop))
        assert 0.5 * optimum.rate <= stopped.bound <= optimum.rate * (1 + 1e-9)
        assert stopped.rate >= optimum.rate * (1 - 1e-9)
        assert not stopped.finished or stopped.rate == pytest.approx(optimum.rate, rel=1e-9)


def test_a_search_that_was_never_begun_gives_a_valid_bound_that_says_something() -> None:
    shares = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        problem = small_problem(7000 + seed, with_rough_floor)
        problem = [problem, with_memory(rng, problem), with_tables(rng, problem)][seed % 3]
        segments = build_segments(problem)
        optimum, bound = minimise(segments).rate, minimise(segments, SearchOptions(should_stop=lambda: True)).bound
        assert bound <= optimum * (1 + 1e-9), seed
        assert bound > 0, seed
        if math.isfinite(optimum):
            shares.append(bound / optimum)
    assert np.median(shares) > 0.6


def test_a_label_search_asks_for_the_time_again_and_again() -> None:
    """A thousand labels at a time, even if they come from one."""
    segments = build_segments(with_floor(random_problem(np.random.default_rng(5), 40, 6, most_pods=9), 0.93))
    points = Points(segments, search_prices(segments), np.array([segments.floor]))
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 5

    found = search(
        points.pods[0], search_prices(segments), points.room[0], np.zeros(6), set(range(6)), math.inf, should_stop
    )
    assert not found.finished
    assert asked == 5
    assert found.num_labels <= 5 * (512 + 40 * 6)


@pytest.mark.parametrize("eps", [0.01, 0.1])
def test_a_permitted_gap_is_kept(eps: float) -> None:
    for seed in range(20):
        segments = build_segments(with_floor(random_problem(np.random.default_rng(seed), 8, 3), 0.5))
        optimum, rough = minimise(segments), minimise(segments, SearchOptions(eps=eps))
        assert rough.bound <= optimum.rate * (1 + 1e-9)
        assert rough.rate <= optimum.rate * (1 + eps) * (1 + 1e-9)


def test_a_label_is_dropped_only_if_its_completions_are_left() -> None:
    """A label on another pool may not replace one whose completion begins on that pool; two such labels may."""
    inf = math.inf
    pods = np.full((2, 2, 3), inf)
    pods[0, 0] = [1, 2, 3]  # the cheapest start is on pool 0 ...
    pods[1, 1] = [1, 9, inf]  # ... where the cheapest end is, too
    found = search(pods, np.ones(3), np.full(3, 9.0), np.zeros(3), {0, 1, 2}, inf, lambda: False)
    assert found.stages == [(0, 0, 1), (1, 1, 0)]
    assert found.bound == 3


@pytest.mark.parametrize("seed", range(12))
def test_label_searches_on_larger_problems_equal_highs_with_any_multipliers(seed: int) -> None:
    rng = np.random.default_rng(8000 + seed)
    segments = build_segments(random_problem(rng, 12, 6, most_pods=8, specialised=True))
    best, _ = fastest(segments)
    theta = best * float(rng.uniform(0.7, 1.0)) * (1 - 1e-9)
    points, price = Points(segments, search_prices(segments), np.array([theta])), search_prices(segments)
    theirs = highs_price(segments, theta)
    for multipliers in (np.zeros(6), price * rng.uniform(0, 1, 6), price * 50):  # the last ones bound nothing
        found = search(points.pods[0], price, points.room[0], multipliers, set(), math.inf, lambda: False)
        assert found.stages is not None
        assert points.fits(0, found.stages)
        assert found.bound == pytest.approx(theirs, rel=1e-6)


def test_a_search_with_few_labels_says_that_it_is_not_finished() -> None:
    segments = build_segments(with_floor(random_problem(np.random.default_rng(5), 40, 6, most_pods=9), 0.93))
    price = search_prices(segments)
    points = Points(segments, price, np.array([segments.floor]))
    found = search(points.pods[0], price, points.room[0], np.zeros(6), set(range(6)), math.inf, lambda: False, 1000)
    assert not found.finished
    assert found.stages is None
    assert found.num_labels <= 1000 + 512 + 40 * 6
    assert 0 < found.bound <= cheapest_at(segments, segments.floor).rate * segments.floor * (1 + 1e-9)


def test_multipliers_are_found_without_a_plan() -> None:
    """Steps of a length for the ceiling, which is far above every bound, would raise nothing."""
    segments = build_segments(with_floor(random_problem(np.random.default_rng(9), 30, 6, specialised=True), 0.9))
    price = search_prices(segments)
    points = Points(segments, price, np.array([segments.floor]))
    free = float(cheapest_paths(points.pods * price).value_S[0])
    bounds = [
        relax(
            points.pods,
            price,
            points.room,
            np.zeros((1, 6)),
            np.array([free * factor]),
            20,
            lambda row, stages: math.inf,
            lambda: False,
        ).bound_S[0]
        for factor in (2.0, 1e6)
    ]
    assert bounds[0] > free * (1 + 1e-3)
    assert bounds[1] == pytest.approx(bounds[0], rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_halved_intervals_lead_to_the_same_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving begins after many labels; here, it begins at once."""
    rng = np.random.default_rng(9000 + seed)
    segments = build_segments(with_floor(random_problem(rng, 9, 3, most_pods=12, specialised=True), 0.8))
    halved = 0
    halve = sweep._Sweep.halve

    def counted(self: Any, *interval: float) -> Any:
        nonlocal halved
        halved += 1
        return halve(self, *interval)

    monkeypatch.setattr(sweep, "_FEW_LABELS", 0)
    monkeypatch.setattr(sweep._Sweep, "halve", counted)
    found = minimise(segments)
    assert found.finished
    assert found.rate == pytest.approx(enumerate_schedules(segments).rate, rel=1e-8)
    assert halved > 0 or not found.limits_mattered


def test_a_bound_of_the_rest_uses_the_prices_within_it() -> None:
    segments = build_segments(small_problem(1, with_rough_floor))
    state = sweep._Sweep(segments, SearchOptions())
    state.seen = [(1.0, 10.0), (1.5, 30.0)]
    # At least 10 $/h below 1.5 samples/s, and 30 from there on.
    assert state.bounds_of([(1.0, 3.0, 10.0)]) == [max(min(10 / 1.5, 30 / 3), least_rate(segments, state.price))]
