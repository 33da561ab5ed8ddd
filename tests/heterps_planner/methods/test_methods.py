"""Properties of every registered method, and of each of the paper's baselines."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from heterps_planner import METHODS, DeadlineError, Infeasible, Plan, Problem, plan
from heterps_planner.errors import MissingPackageError
from heterps_planner.methods import Task, bayesian
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator, stages_of
from heterps_planner.plans.plan import NOTHING_FOUND, THROUGHPUT_FLOOR_UNREACHABLE
from heterps_planner.policy import learning
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

ROOT = Path(__file__).parents[3]
HAND = Problem.from_json(document())
EXACT = ("optimal", "brute-force")
RESTRICTED = ("cpu", "gpu", "heuristic", "heuristic-gpu-first")
RANDOM, MODELLED = 2, 1  # schedules of the Bayesian method
NUMBERS = 20 * 48  # rounds x size of the problems below
SEEDS = {"bayesian": 2}  # each of its plans takes two seconds


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial of a Gaussian process takes tenths of a second, each round of a policy hundredths."""
    monkeypatch.setattr(learning, "_MOST_NUMBERS", NUMBERS)
    monkeypatch.setattr(bayesian, "_RANDOM", RANDOM)
    monkeypatch.setitem(METHODS, "bayesian", partial(bayesian.find, modelled=MODELLED))


def easy_problem(seed: int) -> Problem:
    """Several pools with room, and a floor."""
    rng = np.random.default_rng(seed)
    return with_floor(random_problem(rng, 4, 3, most_pods=200, pods=True, server="rate" if seed % 2 else "none"), 0.05)


def check_plan(problem: Problem, result: Plan) -> None:
    """A plan keeps the floor, the limits and the ceiling, and covers all layers once."""
    assert result.throughput >= problem.min_samples_per_second * (1 - 2e-9)
    used = {pool.name: 0 for pool in problem.pools}
    layer = 0
    for stage in result.stages:
        used[stage.pool] += stage.units
        assert stage.first_layer == layer
        layer = stage.last_layer + 1
        for i in range(stage.first_layer, layer):
            assert stage.pool in problem.layers[i].pools
    assert layer == len(problem.layers)
    if problem.parameter_server is not None:
        used[result.parameter_server.pool] += result.parameter_server.units
    for pool in problem.pools:
        assert used[pool.name] <= pool.max_units
    if problem.max_cost_per_hour is not None:
        assert result.cost_per_hour <= problem.max_cost_per_hour * (1 + 1e-8)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_gives_a_plan_that_is_never_below_the_optimum(method: str) -> None:
    found = 0
    for seed in range(SEEDS.get(method, 3)):
        problem = easy_problem(seed)
        best = plan(problem)
        assert isinstance(best, Plan)
        result = plan(problem, method, seed=seed)
        if isinstance(result, Infeasible):
            assert method in RESTRICTED, result.message
            assert result.best_throughput < problem.min_samples_per_second
            continue
        found += 1
        check_plan(problem, result)
        assert result.method == method
        assert result.cost >= best.cost * (1 - 1e-9)
        assert result.lower_bound == pytest.approx(best.cost, rel=1e-8)
        assert result.optimal == (result.gap == 0)
        assert result.optimal or method not in EXACT
    assert found >= 2


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_keeps_tight_limits_and_the_ceiling_or_says_that_it_found_nothing(method: str) -> None:
    for seed in range(SEEDS.get(method, 3)):
        rng = np.random.default_rng(50 + seed)
        problem = with_floor(random_problem(rng, 4, 3, most_pods=6, specialised=True, holes=seed == 1), 0.8)
        best = plan(problem)
        assert isinstance(best, Plan)
        problem = replace(problem, max_cost_per_hour=best.cost_per_hour * 1.1)
        result = plan(problem, method, seed=seed)
        if isinstance(result, Plan):
            check_plan(problem, result)
            assert result.cost >= best.cost * (1 - 1e-9)
        else:
            assert method not in EXACT
            assert result.method == method


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_method_returns_a_plan_where_there_is_none(method: str) -> None:
    problem = with_floor(random_problem(np.random.default_rng(7), 3, 2), 1.2)
    result = plan(problem, method)
    assert isinstance(result, Infeasible)
    assert result.reason == THROUGHPUT_FLOOR_UNREACHABLE
    assert result.best_throughput < problem.min_samples_per_second


def plan_with_seed(method: str) -> str:
    return json.dumps(plan(easy_problem(3), method, seed=5).to_json() | {"seconds": 0})


@pytest.fixture(scope="module")
def plans_of_another_process() -> dict[str, str]:
    program = f"""
import json
from functools import partial
from heterps_planner.methods import METHODS, bayesian
from heterps_planner.policy import learning
from tests.heterps_planner.methods.test_methods import plan_with_seed
bayesian._RANDOM, learning._MOST_NUMBERS = {RANDOM}, {NUMBERS}
METHODS["bayesian"] = partial(bayesian.find, modelled={MODELLED})
print(json.dumps({{method: plan_with_seed(method) for method in METHODS}}))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    plans: dict[str, str] = json.loads(run.stdout)
    return plans


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_same_seed_gives_the_same_plan(method: str, plans_of_another_process: dict[str, str]) -> None:
    """The other process has made the plans of all methods before it in one go."""
    assert plan_with_seed(method) == plans_of_another_process[method]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("moment", [0, 1, 2, 6])
def test_a_deadline_gives_the_best_plan_so_far_or_an_error(method: str, moment: int) -> None:
    """The clock is the number of times that a method read it."""
    problem = easy_problem(1)
    now = -1.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    try:
        result = plan(problem, method, deadline=float(moment), clock=clock)
    except DeadlineError:
        return
    if isinstance(result, Infeasible):
        # For the whole problem this would be wrong; for some schedules it must be true.
        assert method in RESTRICTED
        assert isinstance(plan(problem, method), Infeasible)
        return
    check_plan(problem, result)
    best = plan(problem)
    assert isinstance(best, Plan)
    assert result.lower_bound <= best.cost * (1 + 1e-9)


@pytest.mark.parametrize("method", ["bayesian", "brute-force", "genetic", "greedy", "optimal"])
def test_a_deadline_that_has_passed_before_any_plan_is_an_error(method: str) -> None:
    problem = with_floor(random_problem(np.random.default_rng(1), 15, 2), 0.9)
    floor_missed = replace(problem, min_samples_per_second=problem.min_samples_per_second * 1.2)
    with pytest.raises(DeadlineError):
        plan(floor_missed, method, deadline=0.0, clock=lambda: 1.0)


@pytest.mark.parametrize("method", ["bayesian", "genetic", "greedy"])
def test_a_search_asks_for_the_time_after_every_batch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_floor(random_problem(np.random.default_rng(2), 8, 4, most_pods=20), 0.3)
    batches: list[int] = []
    scores = Evaluator.scores

    def count(self: Evaluator, assignment: Any) -> Any:
        batches.append(len(assignment))
        return scores(self, assignment)

    monkeypatch.setattr(Evaluator, "scores", count)
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    try:
        METHODS[method](Task(problem, build_segments(problem), 0, should_stop))
    except DeadlineError:
        assert method != "genetic"  # its first batch contains feasible plans
    assert asked == 4
    assert len(batches) == 3
    assert max(batches) <= 256


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        *((HAND, method) for method in sorted(METHODS) if method != "pretrained"),  # refuses two layers
        *((easy_problem(2), method) for method in sorted(METHODS)),
    ],
)
def test_progress_never_falls_and_ends_at_one(problem: Problem, method: str) -> None:
    seen: list[float] = []
    plan(problem, method, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_schema_of_a_job_names_every_method() -> None:
    crd = yaml.safe_load((ROOT / "crds/heterps.io_heterpsjobs.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert list(METHODS) == spec["scheduling"]["properties"]["method"]["enum"]


def test_a_search_that_found_nothing_does_not_call_the_problem_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_floor(random_problem(np.random.default_rng(51), 4, 3, most_pods=6, specialised=True), 0.8)
    best = plan(problem)
    assert isinstance(best, Plan)
    monkeypatch.setitem(METHODS, "unlucky", lambda task: Evaluator(task.segments).found())
    result = plan(problem, "unlucky")
    assert isinstance(result, Infeasible)
    assert result.reason == NOTHING_FOUND
    assert "use the method 'optimal'" in result.message
    assert result.best_throughput >= problem.min_samples_per_second * (1 - 2e-9)


def pools_of(result: Plan | Infeasible) -> list[str]:
    assert isinstance(result, Plan)
    return [stage.pool for stage in result.stages for _ in stage.layers]


def roomy_problem(num_layers: int = 5) -> Problem:
    """pool0 is a CPU pool, pool1 and pool2 are GPUs; everything runs everywhere."""
    return with_floor(random_problem(np.random.default_rng(8), num_layers, 3, most_pods=500), 0.01)


def test_erratum_18_the_heuristic_is_there_both_ways_round() -> None:
    problem = roomy_problem()
    types = {pool.name: pool.device_type for pool in problem.pools}
    first = [types[name] for name in pools_of(plan(problem, "heuristic"))]
    second = [types[name] for name in pools_of(plan(problem, "heuristic-gpu-first"))]
    assert first == ["CPU", "GPU", "GPU", "GPU", "GPU"]
    assert second == ["GPU", "CPU", "CPU", "CPU", "CPU"]


@pytest.mark.parametrize(
    ("method", "first", "rest"), [("heuristic", [0], [1, 2]), ("heuristic-gpu-first", [1, 2], [0])]
)
def test_the_heuristics_take_the_cheapest_concrete_pools(method: str, first: list[int], rest: list[int]) -> None:
    problem = roomy_problem()
    evaluator = Evaluator(build_segments(problem))
    rates = evaluator.rates(np.array([[a, b, b, b, b] for a in first for b in rest]))
    result = plan(problem, method)
    assert isinstance(result, Plan)
    assert result.cost_per_hour / result.throughput == pytest.approx(rates.min(), rel=1e-9)


def test_greedy_takes_the_cheapest_prefix_layer_by_layer() -> None:
    problem = roomy_problem(4)
    segments = build_segments(problem)
    chosen: list[int] = []
    for layer in range(4):
        # The oracle: a problem that really ends after this layer, with a last stage that sends nothing.
        short = build_segments(replace(problem, layers=problem.layers[: layer + 1]))
        rates = Evaluator(short).rates(np.array([[*chosen, t] for t in range(3)]))
        chosen.append(int(rates.argmin()))
    assert pools_of(plan(problem, "greedy")) == [problem.pools[t].name for t in chosen]
    assert np.isfinite(Evaluator(segments).rates(np.array([chosen]))[0])


def test_greedy_leaves_room_for_later_layers_when_the_first_pass_does_not() -> None:
    """gpu is cheapest for both layers but has one unit, and only gpu can run the second one."""
    value = document(minSamplesPerSecond=900)
    value["pools"][1] |= {"maxUnits": 1}
    value["layers"][0]["pools"]["gpu"] = {"computeSeconds": 0.01, "parallelFraction": 1.0}
    value["layers"][0]["pools"]["cpu"] = {"computeSeconds": 0.1, "parallelFraction": 1.0}
    value["layers"][1]["pools"] = {"gpu": {"computeSeconds": 0.105, "parallelFraction": 1.0}}
    problem = Problem.from_json(value)
    first = Evaluator(build_segments(problem))
    assert first.rates(np.array([[0], [1]])).argmin() == 1
    assert np.isinf(first.rates(np.array([[1, 1]]))[0])
    assert pools_of(plan(problem, "greedy")) == ["cpu", "gpu"]


@pytest.mark.parametrize("num_pools", [2, 5])
def test_greedy_finds_a_plan_where_limits_are_tight(num_pools: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        problem = with_floor(random_problem(rng, 9, num_pools, most_pods=12, specialised=True, server="rate"), 0.95)
        result = plan(problem, "greedy")
        assert isinstance(result, Plan)
        check_plan(problem, result)


def test_the_genetic_method_finds_plans_among_many_tightly_limited_pools() -> None:
    """Without homogeneous seeds and a graded penalty a population finds nothing here."""
    rng = np.random.default_rng(9)
    problem = with_floor(random_problem(rng, 16, 32, most_pods=8, specialised=True), 0.7)
    segments = build_segments(problem)
    assert np.isinf(Evaluator(segments).rates(rng.integers(32, size=(3000, 16)))).all()
    result = plan(problem, "genetic")
    assert isinstance(result, Plan)
    check_plan(problem, result)


def test_the_genetic_method_improves_on_its_first_population() -> None:
    problem = with_floor(random_problem(np.random.default_rng(4), 12, 4, most_pods=60, specialised=True), 0.3)
    segments = build_segments(problem)
    asked = 0

    def after_one_generation() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    early = METHODS["genetic"](Task(problem, segments, 0, after_one_generation)).choice
    late = METHODS["genetic"](Task(problem, segments, 0)).choice
    assert early is not None
    assert late is not None
    assert late.price / late.throughput < 0.95 * early.price / early.throughput


def test_the_bayesian_method_learns_from_what_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its proposals cost less on average than the same number of random schedules."""
    problem = roomy_problem(6)
    segments = build_segments(problem)
    seen: list[float] = []
    scores = Evaluator.scores

    def note(self: Evaluator, assignment: Any) -> Any:
        result = scores(self, assignment)
        seen.extend(result.tolist())
        return result

    monkeypatch.setattr(Evaluator, "scores", note)
    bayesian.find(Task(problem, segments, 1), 6)
    proposed = seen[3 + RANDOM :]
    assert len(proposed) == 6
    monkeypatch.undo()
    random = Evaluator(segments).scores(np.random.default_rng(0).integers(3, size=(300, 6)))
    assert np.mean(proposed) < np.mean(random)


def test_the_bayesian_method_stops_in_the_middle_of_a_fit() -> None:
    """The clock is the number of times it was read; the fit reads it at each of its many steps."""
    problem = roomy_problem(6)
    trials = 3 + RANDOM + MODELLED
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > trials + 10

    seen: list[float] = []
    found = METHODS["bayesian"](Task(problem, build_segments(problem), 1, should_stop, seen.append))
    assert asked == trials + 11
    assert found.num_tried == 3 + RANDOM
    assert seen[-1] < 1


@pytest.mark.parametrize("missing", ["optuna", "torch"])
def test_the_bayesian_method_says_how_to_get_what_it_needs(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec: Callable[..., ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(MissingPackageError, match=rf"needs {missing}: pip install 'heterps\[bayesian\]'"):
        plan(HAND, "bayesian")


def test_only_the_bayesian_method_loads_its_library() -> None:
    program = """
import sys
from heterps_planner import METHODS
assert "bayesian" in METHODS
assert not {"optuna", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_schedules_of_searches_are_those_of_their_plans() -> None:
    segments = build_segments(easy_problem(0))
    evaluator = Evaluator(segments)
    evaluator.scores(np.random.default_rng(1).integers(3, size=(50, 4)))
    found = evaluator.found()
    assert found.num_tried == evaluator.num_evaluated
    assert found.choice is not None
    assert evaluator.best_assignment is not None
    assert list(found.choice.stages) == stages_of(evaluator.best_assignment)
