"""Following prices: every dollar is accounted for, interruptions are survived, and invalid series are explained."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Plan
from heterps_planner.scenarios.market import Followed, Tick, follow, read_ticks
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

HAND = Problem.from_json(document())  # one hour at 1000 samples/s


def run(problem: Problem, ticks: tuple[Tick, ...], *, moves: bool = True, horizon: float | None = None) -> Followed:
    return follow(problem, ticks, moves=moves, restart_seconds=10, pod_start_seconds=20, horizon_seconds=horizon)


def spot_market(seed: int) -> tuple[Problem, tuple[Tick, ...]]:
    """A job of some hours, and prices that jump every ten minutes."""
    rng = np.random.default_rng([seed, 13])
    problem = with_floor(random_problem(rng, 4, 3, most_pods=8, specialised=True), 0.3)
    first = plan(problem)
    assert isinstance(first, Plan)
    problem = replace(problem, samples=first.throughput * 3 * 3600)
    ticks = []
    for i in range(1, 19):
        pool = problem.pools[int(rng.integers(1, 3))]
        price = pool.price_per_unit_hour * float(rng.choice([0.2, 0.5, 1.0, 3.0]))
        ticks.append(Tick(600.0 * i, ((f"{pool.name}.pricePerUnitHour", price),)))
    return problem, tuple(ticks)


def test_without_ticks_training_costs_the_plan_and_the_start_of_its_pods() -> None:
    first = plan(HAND)
    assert isinstance(first, Plan)
    found = run(HAND, ())
    assert [step.decision for step in found.steps] == ["start"]
    assert found.cost == pytest.approx(first.cost + first.cost_per_hour * 20 / 3600)
    assert found.seconds == pytest.approx(HAND.samples / first.throughput)
    assert found.samples == HAND.samples


def test_staying_pays_each_price_for_as_long_as_it_holds() -> None:
    first = plan(HAND)
    assert isinstance(first, Plan)
    units = {stage.pool: stage.units for stage in first.stages}
    dear = (Tick(900.0, (("gpu.pricePerUnitHour", 5.0),)),)
    found = run(HAND, dear, moves=False)
    hours = HAND.samples / first.throughput / 3600
    expected = units["cpu"] * 0.5 * hours + units["gpu"] * (2.0 * 0.25 + 5.0 * (hours - 0.25))
    assert found.cost == pytest.approx(expected + first.cost_per_hour * 20 / 3600)
    assert (found.num_changes, found.num_interruptions) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_following_trains_all_samples_and_adds_up(seed: int) -> None:
    problem, ticks = spot_market(seed)
    for moves in (True, False):
        found = run(problem, ticks, moves=moves)
        assert found.samples == pytest.approx(problem.samples)
        assert found.cost == pytest.approx(sum(step.spent for step in found.steps))
        assert found.samples == pytest.approx(sum(step.samples for step in found.steps))
        assert found.seconds is not None


def test_following_pays_where_prices_fall_for_good() -> None:
    problem, _ = spot_market(1)
    running = plan(problem)
    assert isinstance(running, Plan)
    dear = max(running.stages, key=lambda stage: stage.units).pool
    ticks = (Tick(600.0, ((f"{dear}.pricePerUnitHour", 500.0),)),)
    followed, stayed = run(problem, ticks), run(problem, ticks, moves=False)
    assert followed.num_changes == 1
    assert stayed.num_changes == 0
    assert followed.cost < stayed.cost * 0.6


def test_a_short_horizon_makes_it_more_reluctant() -> None:
    changes = []
    for horizon in (None, 600.0, 1.0):
        changes.append(sum(run(*spot_market(seed), horizon=horizon).num_changes for seed in range(2)))
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > changes[-1] == 0


def test_an_interruption_changes_the_plan_even_of_those_who_stay() -> None:
    taken = (Tick(900.0, (("gpu.maxUnits", 1), ("minSamplesPerSecond", None))),)
    first = plan(HAND)
    assert isinstance(first, Plan)
    assert max(stage.units for stage in first.stages if stage.pool == "gpu") == 1
    gone = (Tick(900.0, (("gpu.maxUnits", 0), ("minSamplesPerSecond", None))),)
    assert run(HAND, taken, moves=False).num_interruptions == 0
    found = run(HAND, gone, moves=False)
    assert found.num_interruptions == 1
    assert [step.decision for step in found.steps] == ["start", "move"]
    assert found.steps[1].units == {"cpu": 1}
    assert found.samples == pytest.approx(HAND.samples)


def test_where_no_plan_is_possible_nothing_is_paid_until_there_is() -> None:
    ticks = (Tick(900.0, (("gpu.maxUnits", 0),)), Tick(1800.0, (("gpu.maxUnits", 4),)))
    found = run(HAND, ticks)
    assert [(step.decision, step.interrupted) for step in found.steps] == [
        ("start", False),
        ("wait", True),
        ("start", False),
    ]
    assert found.steps[1].spent == 0
    assert found.samples == pytest.approx(HAND.samples)
    never = run(HAND, ticks[:1])
    assert never.seconds is None
    assert 0 < never.samples < HAND.samples


def test_after_the_deadline_plans_are_kept() -> None:
    problem, ticks = spot_market(1)
    found = follow(problem, ticks, moves=True, restart_seconds=0, pod_start_seconds=0, should_stop=lambda: True)
    assert found.num_changes == 0
    assert found.seconds is not None


def test_csv_and_json_say_the_same() -> None:
    table = "seconds, gpu.pricePerUnitHour, gpu.maxUnits\n0, 1.5,\n60, , 2\n\n90.5,2,3\n"
    rows = [
        {"seconds": 0, "gpu.pricePerUnitHour": 1.5},
        {"seconds": 60, "gpu.maxUnits": 2},
        {"seconds": 90.5, "gpu.pricePerUnitHour": 2, "gpu.maxUnits": 3},
    ]
    assert read_ticks(table) == read_ticks(json.dumps(rows))
    assert len(read_ticks(table)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "prices: there are no ticks"),
        ("seconds,gpu.maxUnits\n", "prices: there are no ticks"),
        ("[]", "prices: there are no ticks"),
        ("[{]", "prices: is not JSON"),
        ("[" * 100_000, "prices: is not JSON"),
        ("[3]", "prices[0]: must be an object, is 3"),
        ('seconds,a\n1,"' + "9" * 200_000 + '"\n', "prices: line 2 is not CSV"),
        ("gpu.maxUnits\n3\n", "prices[0].seconds: is missing"),
        ("seconds,a\n1\n", "prices[0]: line 2 has 1 cells, the first line has 2"),
        ("seconds,a\nsoon,1\n", "prices[0].seconds: must be a number, is 'soon'"),
        ("seconds,a\n-1,1\n", "prices[0].seconds: must be >= 0, is -1"),
        ("seconds,a\n5,1\n5,2\n", "prices[1].seconds: must be above the tick before, is 5"),
        ("seconds,a\n5,nan\n", "prices[0].a: must be a number, is 'nan'"),
    ],
    ids=lambda value: value[:24],
)
def test_series_that_cannot_be_read_are_explained(text: str, words: str) -> None:
    with pytest.raises(ProblemError, match=re.escape(words)):
        read_ticks(text)


def test_a_field_that_nobody_has_is_named_with_its_tick() -> None:
    with pytest.raises(
        ProblemError, match=r"^prices\[1\]\.gpu\.price: unknown field of a pool 'price'; known: maxUnits"
    ):
        run(HAND, (Tick(0.0, ()), Tick(1.0, (("gpu.price", 3),))))


@pytest.mark.parametrize(("restart", "start", "horizon"), [(-1, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_numbers_out_of_range_are_refused(restart: float, start: float, horizon: float) -> None:
    with pytest.raises(ProblemError, match="Seconds: must be >"):
        follow(HAND, (), moves=True, restart_seconds=restart, pod_start_seconds=start, horizon_seconds=horizon)
