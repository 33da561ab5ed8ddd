"""Training of the shipped policy: jobs with their optima, stored groups, and a network that learns from them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from experiments import train_policy
from experiments.train_policy import Group, solve_group, train
from experiments.training_jobs import random_job, random_recommender, solved_job

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.network import Inputs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_policy, "LAYERS", (3, 4))
    monkeypatch.setattr(train_policy, "POOLS", (2, 3))


def test_the_label_of_a_job_is_its_optimum() -> None:
    solved = 0
    for seed in range(8):
        item = solved_job(np.random.default_rng(seed), 5, 3)
        if item is not None:
            rate = Evaluator(build_segments(item.problem)).rates(item.assignment[None])[0]
            assert rate == pytest.approx(item.rate, rel=1e-8)
            solved += 1
    assert solved >= 5


@pytest.mark.parametrize("num_layers", [3, 4, 9, 24])
def test_jobs_are_valid_problems_of_the_size_that_was_asked_for(num_layers: int) -> None:
    for make in (random_recommender, random_job):
        problem = make(np.random.default_rng(num_layers), num_layers, 6)
        assert (len(problem.layers), len(problem.pools)) == (num_layers, 6)
        assert Problem.from_json(problem.to_json()).min_samples_per_second > 0


@pytest.mark.usefixtures("small")
def test_a_group_that_was_kept_is_the_same_as_one_that_is_drawn(tmp_path: Path) -> None:
    drawn, kept = solve_group(7, 2, tmp_path), solve_group(7, 2, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    for field in fields(Inputs):
        np.testing.assert_array_equal(getattr(drawn.inputs, field.name), getattr(kept.inputs, field.name))
    for name in ("action", "lowest", "highest"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(kept, name))


@pytest.mark.usefixtures("small")
def test_imitation_makes_the_optima_more_probable_and_the_seed_decides(tmp_path: Path) -> None:
    groups: list[Group] = [solve_group(7, number, tmp_path) for number in (2, 3)]

    def run(seed: int) -> tuple[list[float], bytes]:
        said: list[str] = []
        weights = train(groups, 12, seed, said.append, embedding=8, hidden=8, rate=2e-2)
        return [float(line.split()[-3]) for line in said], weights["query"].tobytes()

    likelihood, query = run(1)
    assert likelihood[-1] > likelihood[0] + 0.1
    assert run(1) == (likelihood, query)
    assert run(2)[1] != query
