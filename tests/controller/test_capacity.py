"""Jobs that share pools: what others leave is what a job plans with and waits for."""

from __future__ import annotations

from heterps_operator.values import Action, ComputePlan, StartProcess
from tests.controller.world import PLAN, PROFILE, World, make_job

INFEASIBLE = {"feasible": False, "reason": "ThroughputFloorUnreachable", "message": "the best is 31,000"}


def profiled(**free: int) -> World:
    world = World()
    world.profiles = {"cpu": PROFILE, "gpu": PROFILE}
    world.cached = frozenset(world.profiles)
    world.free_units = dict(free)
    return world


def limits(actions: list[Action]) -> list[dict[str, int]]:
    problems = [action.problem for action in actions if isinstance(action, ComputePlan)]
    return [{pool["name"]: pool["maxUnits"] for pool in problem["pools"]} for problem in problems]


def test_a_job_plans_with_what_others_leave() -> None:
    world = profiled(cpu=3, gpu=0)
    assert limits(world.settle()) == [{"cpu": 3, "gpu": 0}]


def test_a_job_keeps_its_own_limit_where_others_leave_more() -> None:
    world = profiled(cpu=100)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 2}]


def waiting(**free: int) -> World:
    """A job that has a plan with all units of its pools, and none in what is free."""
    world = profiled(**free)
    world.settle()
    world.answer(INFEASIBLE)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 2}], "would there be a plan without the others?"
    world.answer(PLAN)
    assert limits(world.settle()) == [free]
    world.answer(INFEASIBLE)
    assert world.settle() == []
    return world


def test_no_plan_in_what_is_free_is_no_failure_but_a_reason_to_wait() -> None:
    world = waiting(cpu=3, gpu=0)
    condition = world.status.condition("Planned")
    assert (world.status.phase, condition.reason) == ("Planning", "WaitingForCapacity")
    assert "3 of 8 of cpu, 0 of 2 of gpu are free" in condition.message
    assert "the best is 31,000" in condition.message


def test_a_job_without_a_plan_in_whole_pools_does_not_wait_for_others() -> None:
    world = profiled(cpu=3, gpu=0)
    world.settle()
    world.answer(INFEASIBLE)
    world.settle()
    world.answer({**INFEASIBLE, "message": "the best is 48,000"})
    world.settle()
    assert world.status.phase == "Failed"
    assert world.status.failure is not None
    assert (world.status.failure.reason, world.status.failure.message) == (INFEASIBLE["reason"], "the best is 48,000")


def test_what_has_come_free_meanwhile_is_taken_at_once() -> None:
    world = profiled(cpu=3, gpu=0)
    world.settle()
    world.answer(INFEASIBLE)
    world.settle()
    world.free_units = {"cpu": 8, "gpu": 1}
    world.answer(PLAN)
    world.settle()
    assert world.status.condition("Planned").reason == "PlanComputed"


def test_a_plan_by_hand_that_does_not_fit_waits_too() -> None:
    world = profiled(cpu=1, gpu=2)
    world.job = make_job(stages_by_hand=({"pool": "cpu", "lastLayer": "head", "units": 4},))
    refusal = "scheduling.stages[0].units: takes 4 units of pool 'cpu', which has 1"
    world.settle()
    world.answer(error=refusal)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 2}]
    world.answer({**PLAN, "stages": [{**PLAN["stages"][0], "units": 4, "pods": 4, "lastLayer": 2}]})
    assert limits(world.settle()) == [{"cpu": 1, "gpu": 2}]
    world.answer(error=refusal)
    assert world.settle() == []
    condition = world.status.condition("Planned")
    assert condition.reason == "WaitingForCapacity"
    assert condition.message.startswith("scheduling.stages[0].units: takes 4")


def test_a_waiting_job_plans_again_as_soon_as_more_is_free() -> None:
    world = waiting(cpu=3, gpu=0)
    world.free_units = {"cpu": 4, "gpu": 0}
    assert limits(world.settle()) == [{"cpu": 4, "gpu": 0}]
    world.answer(INFEASIBLE)
    assert world.settle() == [], "that it could run alone is known already"
    world.free_units = {"cpu": 3, "gpu": 1}
    assert limits(world.settle()) == [{"cpu": 3, "gpu": 1}]
    world.answer(PLAN)
    world.settle()
    assert world.status.condition("Planned").reason == "PlanComputed"


def test_a_job_that_has_all_pools_to_itself_and_no_plan_fails() -> None:
    world = profiled(cpu=8, gpu=2)
    world.settle()
    world.answer(INFEASIBLE)
    world.settle()
    assert world.status.phase == "Failed"


def test_a_plan_that_others_were_faster_than_is_made_again() -> None:
    world = profiled(cpu=8, gpu=2)
    world.settle()
    world.free_units = {"cpu": 8, "gpu": 0}  # somebody else took the cards while the planner was at work
    world.answer(PLAN)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 0}]
    assert world.status.plan is None


def test_a_plan_that_still_fits_is_taken() -> None:
    world = profiled(cpu=8, gpu=2)
    world.settle()
    world.free_units = {"cpu": 6, "gpu": 1}
    world.answer(PLAN)
    world.settle()
    assert world.status.plan_revision == 1


def test_a_pool_without_a_free_pod_is_measured_later() -> None:
    world = World()
    world.free_units = {"cpu": 0, "gpu": 2}
    world.settle()
    world.listen()
    assert world.settle() == []
    condition = world.status.condition("Profiled")
    assert condition.reason == "WaitingForCapacity"
    assert "0 of 8 of cpu" in condition.message
    world.free_units = {"cpu": 1, "gpu": 2}
    assert [a.spec.name for a in world.settle() if isinstance(a, StartProcess)] == ["profile-cpu"]
