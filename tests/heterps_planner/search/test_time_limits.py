"""Work of a method after its deadline, counted in steps and not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from heterps_planner import METHODS, DeadlineError, Problem, plan
from heterps_planner.methods import brute_force
from heterps_planner.plans import assignments
from heterps_planner.plans.frontier import frontier
from heterps_planner.scenarios.joint import plan_together
from heterps_planner.search import labels, path, points, sweep
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
