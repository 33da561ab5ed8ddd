"""Layers with tables of measured times (erratum 10): against trying all numbers of pods, and in problem files."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_planner import Layer, LayerTimes, Plan, Pool, Problem, plan
from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.pieces import lines
from heterps_planner.model.problem import MeasuredTimes
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.explain import explain
from heterps_planner.plans.frontier import frontier
from heterps_planner.scenarios.evaluate import evaluate
from heterps_planner.search.limits import fastest
from heterps_planner.search.points import fastest_bound
from heterps_planner.search.sweep import cheapest_at, minimise
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor, with_memory, with_tables


def seconds_on(times: LayerTimes, problem: Problem, units: float, pieces: int) -> float:
    """Seconds per sample of one layer, by interpolating its table in 1/k; independent of the planner's lines."""
    table = times.measured
    fixed = times.compute_fixed_seconds
    if table is None:
        alpha = times.parallel_fraction
        scaled = (times.compute_seconds - fixed) * (1 - alpha + alpha / units)
    else:
        k, t = table.units, [seconds - fixed for seconds in table.compute_seconds]
        par = [(t[i] - t[i + 1]) / (1 / k[i] - 1 / k[i + 1]) for i in range(len(k) - 1)]
        if units < k[0]:
            scaled = t[0] + max(par[0], 0.0) * (1 / units - 1 / k[0])
        elif units > k[-1]:
            sequential = t[-1] - par[-1] / k[-1]
            scaled = sequential + par[-1] / units if sequential >= 0 else t[-1] * k[-1] / units
        else:
            scaled = float(np.interp(-1 / units, [-1 / n for n in k], t))
    return pieces * fixed / problem.training_batch_size + scaled / problem.batch_size


def stage_seconds(problem: Problem, first: int, last: int, pool: int, pods: int) -> float:
    where = problem.pools[pool]
    units = pods * where.units_per_pod
    alone = (first, last) == (0, len(problem.layers) - 1)
    layers = problem.layers[first : last + 1]
    if any(where.name not in layer.pools for layer in layers):
        return math.inf
    pieces = 1 if alone else problem.micro_batches
    compute = sum(seconds_on(layer.pools[where.name], problem, units, pieces) for layer in layers)
    if last == len(problem.layers) - 1:
        return compute
    end = layers[-1].pools[where.name]
    fixed, beta = end.transfer_fixed_seconds, end.transfer_parallel_fraction
    transfer = problem.micro_batches * fixed / problem.training_batch_size
    transfer += (end.transfer_seconds - fixed) / problem.batch_size * (1 - beta + beta / units)
    return max(compute, transfer)


def by_trying_everything(problem: Problem) -> tuple[float, float]:
    """The least cost per throughput and the highest throughput over all schedules and all numbers of pods."""
    best, fastest_of_all = math.inf, 0.0
    num_layers, num_pools = len(problem.layers), len(problem.pools)
    limits = [pool.max_pods for pool in problem.pools]
    prices = [pool.price_per_unit_hour * pool.units_per_pod for pool in problem.pools]
    for assignment in itertools.product(range(num_pools), repeat=num_layers):
        cuts = [i for i in range(num_layers) if i == num_layers - 1 or assignment[i] != assignment[i + 1]]
        firsts = [0, *(cut + 1 for cut in cuts[:-1])]
        stages = [(a, b, assignment[b]) for a, b in zip(firsts, cuts, strict=True)]
        times = [[stage_seconds(problem, *stage, k + 1) for k in range(limits[stage[2]])] for stage in stages]
        for pods in itertools.product(*(range(1, limits[t] + 1) for _, _, t in stages)):
            used = [0] * num_pools
            for (_, _, t), k in zip(stages, pods, strict=True):
                used[t] += k
            if any(u > n for u, n in zip(used, limits, strict=True)):
                continue
            throughput = 1 / max(time[k - 1] for time, k in zip(times, pods, strict=True))
            fastest_of_all = max(fastest_of_all, throughput)
            if throughput > 0 and throughput >= problem.min_samples_per_second * (1 - 1e-9):
                best = min(best, sum(prices[t] * u for t, u in enumerate(used)) / throughput)
    return best, fastest_of_all


def draw(seed: int, num_layers: int, num_pools: int, most_pods: int) -> Problem:
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        num_layers,
        num_pools,
        most_pods=most_pods,
        fixed=bool(rng.random() < 0.3),
        pods=bool(rng.random() < 0.4),
        holes=bool(rng.random() < 0.3),
        specialised=bool(rng.random() < 0.7),
        stage_overhead=False,
    )
    return with_tables(rng, problem)


def test_optimum_and_highest_throughput_equal_those_of_trying_all_numbers_of_pods() -> None:
    rising = 0
    for seed in range(50):
        problem = draw(seed, 3, 2, 6)
        highest = by_trying_everything(problem)[1]
        best, _ = fastest(build_segments(problem))
        assert best == pytest.approx(highest, rel=1e-8), seed
        problem = replace(problem, min_samples_per_second=highest * (0.3 + 0.7 * (seed % 10) / 9))
        segments = build_segments(problem)
        oracle = by_trying_everything(problem)[0]
        assert minimise(segments).rate == pytest.approx(oracle, rel=1e-8), seed
        assert enumerate_schedules(segments).rate == pytest.approx(oracle, rel=1e-8), seed
        tables = [t.measured for layer in problem.layers for t in layer.pools.values() if t.measured is not None]
        rising += any(b > a for table in tables for a, b in itertools.pairwise(table.compute_seconds))
    assert rising >= 19  # more units are slower somewhere


def test_the_optimum_equals_brute_force_with_tables_and_memory_limits() -> None:
    infeasible = memory_matters = 0
    for seed in range(300):
        rng = np.random.default_rng(90_000 + seed)
        num_layers, num_pools = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        problem = draw(80_000 + seed, num_layers, num_pools, int(rng.choice([4, 8, 30])))
        if seed % 2:
            problem = with_memory(rng, problem)
        segments = build_segments(problem)
        segments = replace(segments, floor=fastest_bound(segments) * float(rng.uniform(0.2, 0.9)))
        oracle = enumerate_schedules(segments)
        result = minimise(segments)
        assert result.finished, seed
        if not oracle.stages:
            infeasible += 1
            assert result.choice is None, seed
            continue
        assert result.rate == pytest.approx(oracle.rate, rel=1e-8), seed
        memory_matters += minimise(segments.without_memory_limits()).rate < result.rate * (1 - 1e-6)
    assert 10 <= infeasible <= 125
    assert memory_matters >= 30


def test_a_table_that_follows_amdahl_changes_nothing() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        plain = with_floor(random_problem(rng, 5, 3, most_pods=20, pods=True, fixed=True), 0.8)

        def tabulated(times: LayerTimes) -> LayerTimes:
            fixed, alpha = times.compute_fixed_seconds, times.parallel_fraction
            seconds = [fixed + (times.compute_seconds - fixed) * (1 - alpha + alpha / k) for k in (1, 2, 5, 8)]
            return replace(times, measured=MeasuredTimes((1, 2, 5, 8), tuple(seconds)))

        layers = [replace(x, pools={name: tabulated(t) for name, t in x.pools.items()}) for x in plain.layers]
        tables = replace(plain, layers=tuple(layers))
        assert minimise(build_segments(tables)).rate == pytest.approx(minimise(build_segments(plain)).rate, rel=1e-9)


@pytest.mark.parametrize("units", [1, 2, 3, 4, 6, 8, 16])
def test_erratum_10_a_synchronisation_that_grows_with_the_units_is_taken_as_measured(units: int) -> None:
    # 1, 2, 4, 8 units take 1.0, 0.6, 0.5, 0.9 s: the best number is 4, and 16 are extrapolated to 1.1 s.
    table = MeasuredTimes((1, 2, 4, 8), (1.0, 0.6, 0.5, 0.9))
    layer = Layer("l", {"p": LayerTimes(1.0, 0.9, measured=table)})
    problem = Problem(1, 1.0, (Pool("p", "GPU", 1.0, 16),), (layer,))
    segments = build_segments(problem)
    expected = {1: 1.0, 2: 0.6, 3: 0.6 - 0.1 * (1 / 2 - 1 / 3) / (1 / 4), 4: 0.5, 8: 0.9, 16: 1.1}
    expected[6] = 0.5 + 0.4 * (1 / 4 - 1 / 6) / (1 / 8)
    assert segments.stage_time(0, 0, 0, units) == pytest.approx(expected[units])
    assert fastest(segments)[0] == pytest.approx(2.0)
    at_floor = cheapest_at(segments, 1.9).choice
    assert at_floor is not None
    assert at_floor.pods == (4,)


def test_lines_of_a_table() -> None:
    assert lines([1, 2], [1.0, 0.75]) == [(0.0, 0.5, 0.5), (1.0, 0.5, 0.5), (2.0, 0.5, 0.5)]
    # Faster than in proportion: beyond the table it stays in proportion, no time becomes negative.
    assert lines([1, 2], [1.0, 0.25])[-1] == (2.0, 0.0, 0.5)
    # Slower with more units: fewer units than measured are not assumed faster.
    assert lines([2, 4], [1.0, 1.5])[0] == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("waits", [False, True])
def test_stages_by_hand_frontier_and_explanation_know_tables(*, waits: bool) -> None:
    problem = draw(3, 4, 2, 8)
    if waits:
        layers = tuple(replace(layer, waits_for_commit=True) for layer in problem.layers)
        problem = replace(problem, layers=layers, micro_batches=4)
    problem = with_floor(problem, 0.7)
    found = plan(problem)
    assert isinstance(found, Plan)
    stages = [{"pool": s.pool, "lastLayer": s.last_layer, "units": s.units} for s in found.stages]
    by_hand = evaluate(problem, stages)
    assert isinstance(by_hand, Plan)
    assert by_hand.cost == pytest.approx(found.cost)
    assert by_hand.gap == 0.0
    open_stages = [{"pool": s.pool, "lastLayer": s.last_layer} for s in found.stages]
    chosen = evaluate(problem, open_stages)
    assert isinstance(chosen, Plan)
    assert chosen.cost == pytest.approx(found.cost)
    points = frontier(problem, 20).points
    assert points[0].throughput >= problem.min_samples_per_second * (1 - 1e-9)
    assert min(p.cost for p in points) >= found.cost * (1 - 1e-9)
    assert len(found.stages) > 1
    for stage, budget in zip(found.stages, explain(problem, found).stages, strict=True):
        assert (budget.bubble > 0) == waits
        slower = max(budget.compute_sequential + budget.compute_parallel + budget.bubble, budget.transfer)
        assert 1 / slower == pytest.approx(stage.throughput)


def test_layers_with_and_without_tables_share_a_stage() -> None:
    table = MeasuredTimes((1, 4), (0.4, 0.1))
    layers = (
        Layer("a", {"p": LayerTimes(0.4, 1.0, measured=table)}),
        Layer("b", {"p": LayerTimes(0.2, 0.5)}),
    )
    segments = build_segments(Problem(1, 1.0, (Pool("p", "CPU", 1.0, 8),), layers))
    assert segments.stage_time(0, 1, 0, 2) == pytest.approx(0.2 + 0.15)
    assert segments.stage_time(0, 1, 0, 8) == pytest.approx(0.05 + 0.1125)


def table_document(**table: Any) -> dict[str, Any]:
    value = document()
    del value["layers"][1]["pools"]["gpu"]["computeSeconds"]
    del value["layers"][1]["pools"]["gpu"]["parallelFraction"]
    value["layers"][1]["pools"]["gpu"]["measured"] = {"units": [1, 2, 4], "computeSeconds": [0.05, 0.03, 0.02]} | table
    return value


def test_a_table_replaces_the_two_numbers_of_amdahls_law() -> None:
    problem = Problem.from_json(table_document())
    times = problem.layers[1].pools["gpu"]
    assert times.measured == MeasuredTimes((1, 2, 4), (0.05, 0.03, 0.02))
    assert times.compute_seconds == 0.05
    assert times.parallel_fraction == pytest.approx(0.8)
    assert build_segments(problem).stage_time(1, 1, 1, 2) == pytest.approx(0.0003)
    assert Problem.from_json(problem.to_json()) == problem


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"units": [1, 1, 4]}, r"units\[1\]: must be larger than the 1 before it, is 1"),
        ({"units": [4, 2, 1]}, r"units\[1\]: must be larger than the 4 before it, is 2"),
        ({"units": [1, 2]}, r"computeSeconds: must have one entry for each of the 2 units, has 3"),
        ({"units": [1], "computeSeconds": [1.0]}, r"units: must have at least 2 entries"),
        ({"units": []}, r"units: must not be empty"),
        ({"computeSeconds": [0.05, 0, 0.01]}, r"computeSeconds\[1\]: must be > 0, is 0"),
        ({"seconds": [1]}, r"seconds: unknown field 'seconds'"),
        ({"units": list(range(1, 66))}, r"units: must have at most 64 entries, has 65"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^problem\.layers\[1\]\.pools\.gpu\.measured\." + message):
        Problem.from_json(table_document(**table))


def test_too_many_different_numbers_of_units_are_refused() -> None:
    value = document()
    value["layers"] = []
    for i in range(400):
        table = {"units": [1 + i, 1000 + i], "computeSeconds": [0.2, 0.1]}
        value["layers"].append({"name": f"l{i}", "pools": {"cpu": {"measured": table}}})
    with pytest.raises(
        ValueError, match=r"^problem\.layers: tables with 800 different numbers of units for 400 layers"
    ):
        Problem.from_json(value)
