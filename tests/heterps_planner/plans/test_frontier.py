"""The frontier: every step of the staircase, each with the cheapest plan."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_planner.plans.frontier import frontier
from tests.heterps_planner.helpers.every_plan import every_plan
from tests.heterps_planner.helpers.problems import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_no_step_is_missing(seed: int) -> None:
    """Against all plans: the frontier holds the plans that no other plan beats in price without being slower."""
    rng = np.random.default_rng([seed, 5])
    server = ["none", "rate", "fixed"][seed % 3]
    problem = random_problem(rng, 3, 2, most_pods=4, specialised=True, pods=seed % 2 == 0, server=server)
    plans = every_plan(problem)
    expected: list[tuple[float, float]] = []
    for i in np.lexsort((-plans.throughput, plans.price)).tolist():
        if not expected or plans.throughput[i] > expected[-1][1] * (1 + 1e-7):
            if expected and plans.price[i] <= expected[-1][0] * (1 + 1e-9):
                expected.pop()
            expected.append((float(plans.price[i]), float(plans.throughput[i])))
    found = frontier(problem)
    assert found.complete
    assert [p.cost_per_hour for p in found.points] == pytest.approx([price for price, _ in expected])
    assert [p.throughput for p in found.points] == pytest.approx([throughput for _, throughput in expected], rel=1e-7)


@pytest.mark.parametrize("most", [1, 2, 5, 10])
def test_a_thinned_frontier_keeps_its_size_and_says_so(most: int) -> None:
    problem = random_problem(np.random.default_rng(4), 4, 3, most_pods=40, specialised=True)
    whole, thin = frontier(problem), frontier(problem, most)
    assert len(whole.points) > 10
    assert len(thin.points) <= most
    assert not thin.complete
    steps = {round(p.throughput, 6): p.cost_per_hour for p in whole.points}
    assert all(steps[round(p.throughput, 6)] == pytest.approx(p.cost_per_hour) for p in thin.points)
    if most > 1:
        assert thin.points[-1].throughput == pytest.approx(whole.points[-1].throughput)


def test_a_frontier_that_was_stopped_is_not_complete() -> None:
    problem = random_problem(np.random.default_rng(3), 4, 3)
    assert not frontier(problem, should_stop=lambda: True).complete
