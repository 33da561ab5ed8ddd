"""Work of a method after its deadline, counted in steps and not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from heterps_planner import METHODS, DeadlineError, Plan, Problem, plan, planning
from heterps_planner.methods import brute_force
from heterps_planner.model.segments import build_segments
from heterps_planner.planning import allowance
from heterps_planner.plans import assignments
from heterps_planner.plans.explain import explain
from heterps_planner.plans.frontier import frontier
from heterps_planner.scenarios.joint import plan_together
from heterps_planner.search import labels, path, points, sweep
from heterps_planner.search.limits import shadow_prices
from heterps_planner.search.sweep import SearchOptions, minimise
from tests.heterps_planner.helpers.problems import random_problem, with_rough_floor

# A path at one throughput, or a batch of schedules. Bound, shadow prices and the reasons of a refusal take a few.
MOST_STEPS = 6


def tight(num_layers: int, num_pools: int) -> Problem:
    """Limits bind, so that relaxations and label searches are needed."""
    rng = np.random.default_rng(3)
    return with_rough_floor(random_problem(rng, num_layers, num_pools, most_pods=30, specialised=True), 0.6)


class Steps:
    """A time limit that ends at the n-th reading of the clock, and the steps after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.left = looks
        self.after = 0
        for module, name in (
            (path, "cheapest_paths"),
            (sweep, "cheapest_paths"),
            (labels, "cheapest_paths"),
            (points, "cheapest_paths"),
            (assignments, "provision"),
            (brute_force, "provision"),
        ):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.after += self.left < 0
            return step(*arguments, **options)

        return counted

    def clock(self) -> float:
        self.left -= 1
        return float(self.left < 0)

    def should_stop(self) -> bool:
        return self.clock() > 0


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"bayesian"}))
@pytest.mark.parametrize("looks", [2, 5, 20, 60])
def test_a_method_ends_within_a_few_steps(method: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight(9, 3) if method == "brute-force" else tight(24, 8)
    steps = Steps(monkeypatch, looks)
    with suppress(DeadlineError):
        plan(problem, method, deadline=0.5, clock=steps.clock)
    assert steps.after <= MOST_STEPS


@pytest.mark.parametrize("looks", [1, 3, 10, 40])
def test_the_frontier_and_joint_plans_do_so_too(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight(24, 8)
    steps = Steps(monkeypatch, looks)
    frontier(problem, should_stop=steps.should_stop)
    assert steps.after <= MOST_STEPS
    steps.left, steps.after = looks, 0
    with suppress(DeadlineError):
        plan_together([tight(12, 4), tight(10, 4)], should_stop=steps.should_stop)
    assert steps.after <= 2 * MOST_STEPS


class Clock:
    """Seconds that pass at each reading."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_what_accompanies_a_plan_gets_as_long_as_the_plan_or_a_second() -> None:
    clock = Clock(0.0)
    short, long = allowance(lambda: False, 0.01, clock), allowance(lambda: False, 5.0, clock)
    limited = allowance(lambda: clock.now >= 0.5, 5.0, clock)
    clock.now = 0.6
    assert (short(), long(), limited()) == (False, False, True)
    clock.now = 1.0
    assert (short(), long()) == (True, False)
    clock.now = 5.0
    assert long()


def test_shadow_prices_that_take_too_long_are_left_out_and_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, clock = tight(24, 8), Clock(0.0)
    whole = plan(problem, clock=clock)
    assert isinstance(whole, Plan)
    assert whole.limits_examined
    assert "limitsExamined" not in whole.to_json()

    def slow(*arguments: Any) -> Any:
        clock.step = 0.1  # from here on, time passes
        return shadow_prices(*arguments)

    monkeypatch.setattr(planning, "shadow_prices", slow)
    hasty = plan(problem, clock=clock)
    assert isinstance(hasty, Plan)
    assert not hasty.limits_examined
    assert hasty.to_json()["limitsExamined"] is False
    assert hasty.optimal
    assert hasty.cost == whole.cost
    assert set(hasty.binding_limits) <= set(whole.binding_limits)


@pytest.mark.parametrize("looks", [0, 3, 9, 40])
def test_alternatives_that_take_too_long_are_left_out_and_the_others_are_true(looks: int) -> None:
    problem = tight(24, 8)
    found = plan(problem)
    assert isinstance(found, Plan)
    left = looks

    def should_stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    whole, part = explain(problem, found), explain(problem, found, should_stop)
    assert whole.complete
    assert not part.complete
    assert part.to_json()["complete"] is False
    assert part.alternatives == whole.alternatives[: len(part.alternatives)]
    assert len(part.alternatives) < len(whole.alternatives)


@pytest.mark.parametrize("looks", [30, 300, 1000])
def test_a_large_problem_ends_at_its_limit_with_a_plan_and_its_bound(looks: int) -> None:
    segments = build_segments(tight(60, 20))
    left = looks

    def should_stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    optimum, found = minimise(segments), minimise(segments, SearchOptions(should_stop=should_stop))
    assert optimum.bound == optimum.rate
    assert found.bound <= optimum.rate * (1 + 1e-9) <= found.rate * (1 + 2e-9)
    assert found.bound > 0.5 * optimum.rate
