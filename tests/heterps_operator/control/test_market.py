"""Prices that change: when a running job gets another plan, and when it does not."""

from __future__ import annotations

import copy
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.control.problem import build_problem, cost_per_sample
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.prices import PriceStep, followed_by
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.trials import Cause
from heterps_operator.state.values import ComputePlan, Departure, RequestStop
from tests.heterps_operator.helpers.world import PLAN, PROFILE, World, make_job

STEPS = 10_000_000  # of 512 samples, so that a small saving pays
CHEAP = {**PLAN, "stages": [{**PLAN["stages"][0], "lastLayer": 2, "layers": ["embedding", "mlp", "head"], "units": 4,
                             "pods": 4}], "throughput": 50_000.0, "costPerHour": 0.2}  # fmt: skip


def following(**job: Any) -> World:
    """A job that trains on the pools cpu and gpu, whose prices are followed."""
    world = World(make_job(min_samples_per_second=0.0, **job))
    world.prices = {"cpu": (PriceStep(Decimal("0.04"), 0.0),), "gpu": (PriceStep(Decimal("0.10"), 0.0),)}
    world.training()
    world.set_phase("Training", totalSteps=STEPS, committedSteps=100)
    world.settle()
    world.actions.clear()
    world.events.clear()
    return world


def change(world: World, pool: str, price: str) -> None:
    world.prices[pool] = followed_by(world.prices[pool], Decimal(price), world.time)


def wait(world: World, seconds: float, answer: dict[str, Any] = CHEAP) -> None:
    """Let time pass, with a turn every ten seconds, and one for each answer of the planner, which comes at once."""
    for _ in range(int(seconds / 10)):
        world.time += 10
        world.turn()
        if world.planning:
            world.answer(answer)
            world.turn()


def questions(world: World) -> list[ComputePlan]:
    return [action for action in world.actions if isinstance(action, ComputePlan)]


def moves(world: World) -> list[str]:
    return [event.message for event in world.events if event.reason == "Replanned"]


def test_a_price_that_rises_moves_the_job_to_a_cheaper_plan() -> None:
    world = following()
    change(world, "gpu", "2.42")
    wait(world, 50)
    assert questions(world) == [], "the price has not held for the cooldown yet"
    wait(world, 70)
    [question] = questions(world)
    assert {pool["name"]: pool["pricePerUnitHour"] for pool in question.problem["pools"]} == {"cpu": 0.04, "gpu": 2.42}
    [text] = moves(world)
    assert text.startswith("pool gpu costs $2.42 per unit and hour after $0.10: the rest of training costs $")
    assert "with plan 1 and $" in text
    assert "with cpu x4 [embedding..head], and the move $" in text
    assert RequestStop() in world.actions
    assert world.status.phase == Phase.STOPPING

    world.set_phase("Stopped")
    world.settle()
    for name in sorted(world.running()):
        world.end(name, 0)
    world.settle()
    assert (world.status.plan_revision, world.status.plan_reason) == (2, "Replanned")
    assert world.status.plan is not None
    assert world.status.plan.summary == "cpu x4 [embedding..head]"
    assert (world.status.failures, world.status.incarnation, world.status.moving) == (0, 2, "")
    assert text == f"{world.status.history[-1].message}; the job saves a checkpoint and continues with that plan"
    assert len(questions(world)) == 1, "the plan that was judged is carried out, no other"
    assert world.status.offer is None


def test_the_running_plan_shows_its_price_of_now() -> None:
    world = following(elasticity={"price_policy": "Stay"})
    assert world.status.plan is not None
    assert world.status.plan.cost_per_hour == pytest.approx(3 * 0.04 + 0.10)
    change(world, "gpu", "2.42")
    world.settle()
    assert world.status.plan is not None
    assert world.status.plan.cost_per_hour == pytest.approx(3 * 0.04 + 2.42)
    assert world.status.plan_revision == 1


@pytest.mark.parametrize("elasticity", [{"mode": "Disabled"}, {"price_policy": "Stay"}])
def test_a_job_that_is_told_to_stay_stays(elasticity: dict[str, Any]) -> None:
    world = following(elasticity=elasticity)
    change(world, "gpu", "2.42")
    wait(world, 600)
    assert (questions(world), moves(world)) == ([], [])


def test_a_flapping_price_moves_nothing_and_asks_nothing() -> None:
    world = following()
    for _ in range(50):
        for price in ("2.42", "0.10"):
            change(world, "gpu", price)
            wait(world, 50)
    assert (questions(world), moves(world)) == ([], [])


def test_a_price_that_flaps_slowly_moves_nothing_as_long_as_staying_costs_less_than_a_move() -> None:
    world = following(elasticity={"cooldown_seconds": 10.0})
    world.status = Status.from_json({**world.status.to_json(), "start_seconds": 3600.0})  # a move costs a lot
    for _ in range(30):
        for price in ("2.42", "0.10"):
            change(world, "gpu", price)
            wait(world, 120)
    assert moves(world) == []
    change(world, "gpu", "2.42")
    wait(world, 600)
    assert len(moves(world)) == 1, "then it holds, and staying has cost what the move costs"


def test_a_price_that_trembles_is_one_price() -> None:
    """A market's price is never the same for long: small changes begin nothing anew."""
    world = following()
    for number in range(12):
        change(world, "gpu", "2.42" if number % 2 else "2.40")
        wait(world, 10)
    assert len(questions(world)) == 1
    [text] = moves(world)
    assert " per unit and hour after $0.10: " in text


def test_a_small_change_asks_nothing() -> None:
    world = following()
    change(world, "gpu", "0.104")
    wait(world, 600)
    assert questions(world) == []
    assert world.status.prices["gpu"] == "0.104"


@pytest.mark.slow
def test_a_price_that_goes_back_takes_the_offer_away() -> None:
    world = following()
    world.status = Status.from_json({**world.status.to_json(), "start_seconds": 36_000.0})
    change(world, "gpu", "2.42")
    wait(world, 120)
    assert world.status.offer is not None
    change(world, "gpu", "0.10")
    world.settle()
    assert world.status.offer is None
    wait(world, 30_000, PLAN)
    assert moves(world) == []


def test_a_move_has_to_pay_within_the_samples_that_are_left() -> None:
    world = following()
    change(world, "gpu", "2.42")
    world.set_phase("Training", totalSteps=200)
    wait(world, 600)
    assert len(questions(world)) == 1, "once for these prices"
    assert (moves(world), world.status.offer) == ([], None)


def test_a_small_saving_moves_nothing() -> None:
    world = following()
    change(world, "gpu", "0.11")
    problem = build_problem(world.job, world.profiles)
    plan = copy.deepcopy(CHEAP)
    for units in range(1, 40):  # as many as make it hardly cheaper
        plan["stages"][0] |= {"units": units, "pods": units}
        saves = 1 - cost_per_sample(problem, JobPlan.from_json(plan)) / cost_per_sample(
            problem, JobPlan.from_json(PLAN)
        )
        if saves < 0.05:
            break
    wait(world, 7200, plan)
    assert len(questions(world)) == 1
    assert moves(world) == []


def test_a_move_waits_until_its_units_are_free() -> None:
    world = following()
    world.free_units = {"cpu": 3, "gpu": 1}
    change(world, "gpu", "2.42")
    wait(world, 300)
    assert moves(world) == []
    world.free_units = {"cpu": 8, "gpu": 1}
    wait(world, 20)
    assert len(moves(world)) == 1


def test_a_job_that_is_suspended_on_the_way_keeps_its_plan() -> None:
    world = following()
    change(world, "gpu", "2.42")
    wait(world, 120)
    world.stop_requested = True
    world.set_phase("Stopped")
    world.settle()
    assert world.status.outcome == Phase.SUSPENDED
    assert (world.status.plan_revision, world.status.offer) == (1, None)


def test_a_node_that_is_drained_takes_the_offer_along() -> None:
    """The job stops anyway, so the move costs nothing more."""
    world = following()
    world.status = Status.from_json({**world.status.to_json(), "start_seconds": 360_000.0})
    change(world, "gpu", "2.42")
    world.set_phase("Training", totalSteps=100 * STEPS)
    wait(world, 120)
    assert world.status.offer is not None
    world.processes["ps-0"] = replace(world.processes["ps-0"], leaves=Departure("a", "is cordoned"))
    world.settle()
    world.set_phase("Stopped")
    world.settle()
    assert world.status.plan_revision == 2


def test_a_question_that_is_lost_in_a_restart_is_asked_again() -> None:
    world = following()
    change(world, "gpu", "2.42")
    world.time += 60
    world.turn()
    assert world.status.review is not None
    assert world.status.review.cause == Cause.PRICES
    world.planning = False  # the next operator's planner knows nothing
    world.status = Status.from_json(world.status.to_json())
    world.turn()
    world.turn()
    assert len(questions(world)) == 2


def test_an_answer_without_a_plan_changes_nothing() -> None:
    world = following()
    change(world, "gpu", "2.42")
    world.time += 60
    world.turn()
    world.answer(error="no memory")
    world.settle()
    wait(world, 600)
    assert len(questions(world)) == 1
    assert moves(world) == []


def test_an_offer_survives_a_restart_of_the_operator() -> None:
    world = following()
    world.status = Status.from_json({**world.status.to_json(), "start_seconds": 3600.0})
    change(world, "gpu", "2.42")
    wait(world, 80)
    offer = world.status.offer
    assert offer is not None
    world.status = Status.from_json(world.status.to_json())
    assert world.status.offer == offer
    wait(world, 600)
    assert len(moves(world)) == 1


def test_the_time_of_a_start_is_measured() -> None:
    world = World(make_job())
    world.planned()
    world.time += 42
    world.join("ps-0", "worker-0-0", "worker-0-1", "worker-1-0")
    world.set_phase("Training", committedSteps=1)
    world.settle()
    assert world.status.start_seconds == 42


def test_without_prices_that_change_nothing_is_asked() -> None:
    world = World(make_job(min_samples_per_second=0.0)).training()
    world.actions.clear()
    wait(world, 600)
    assert questions(world) == []
    assert world.status.prices == {}


def test_the_profile_prices_the_running_and_the_other_plan_alike() -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    plan = JobPlan.from_json(PLAN)
    dear = build_problem(
        make_job().priced({"gpu": Decimal("4.84"), "cpu": Decimal("0.08")}), {"cpu": PROFILE, "gpu": PROFILE}
    )
    assert cost_per_sample(dear, plan) == pytest.approx(2 * cost_per_sample(problem, plan))
    with pytest.raises(ValueError, match="another model"):
        cost_per_sample({**problem, "layers": problem["layers"][:2]}, plan)
