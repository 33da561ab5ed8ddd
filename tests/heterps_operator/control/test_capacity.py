"""Jobs that share pools: a job plans with and waits for the units that others leave."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from heterps_operator.control.problem import build_problem
from heterps_operator.state.values import (
    Action,
    ComputePlan,
    PodProblem,
    RequestStop,
    StartProcess,
    StopProcess,
    SubmitPlan,
)
from tests.heterps_operator.helpers.world import JOB_PLAN, MEMBERS, PLAN, PROFILE, World, make_job

BIG = {**PLAN, "parameterServer": {"pool": "cpu", "replicas": 1, "units": 3}}  # 5 of cpu and 1 of gpu
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


def test_a_job_that_may_have_to_wait_holds_nothing_while_the_planner_works() -> None:
    world = profiled(cpu=8, gpu=1)
    world.holders = {"gpu": (("ml/a", 1),)}
    world.settle()
    assert world.running() == set()


def test_a_job_keeps_its_own_limit_where_others_leave_more() -> None:
    world = profiled(cpu=100)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 2}]


def waiting(**free: int) -> World:
    """A job whose plan uses all units of its pools while none is free."""
    world = profiled(**free)
    world.settle()
    world.answer(INFEASIBLE)
    assert limits(world.settle()) == [{"cpu": 8, "gpu": 2}], "would there be a plan without the others?"
    world.answer(PLAN)
    assert world.settle() == [StopProcess("coordinator", 5.0)], "a job that waits holds nothing"
    world.end("coordinator", -15)
    assert world.settle() == []
    return world


def test_a_waiting_job_gives_up_the_room_of_its_coordinator_and_gets_another_one_for_its_plan() -> None:
    """The room of a coordinator may be what another job, or this one, lacks on a small node."""
    world = waiting(cpu=3, gpu=0)
    assert world.running() == set()
    assert (world.status.failures, world.status.outcome, world.status.incarnation) == (0, None, 1)
    world.free_units = {"cpu": 8, "gpu": 2}
    world.settle()
    world.answer(PLAN)
    world.settle()
    coordinator = world.processes["coordinator"]
    assert (coordinator.running, coordinator.spec.attempt) == (True, 2)
    world.listen()
    world.settle()
    world.join(*MEMBERS)
    world.set_phase("Training", committedSteps=1, samplesPerSecond=50_000.0)
    world.settle()
    assert world.status.phase == "Running"


def test_a_profiler_at_work_keeps_its_coordinator_when_the_pool_shrinks() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    assert world.running() == {"coordinator", "profile-cpu"}
    world.free_units = {"cpu": 0}
    assert world.settle() == []
    assert world.status.condition("Profiled").reason == "WaitingForCapacity"
    world.deliver("cpu")
    world.free_units = {"cpu": 8, "gpu": 0}
    assert StopProcess("coordinator", 5.0) in world.settle(), "now nothing needs it"
    assert world.status.failures == 0


def test_what_a_coordinator_says_that_is_to_end_is_not_for_the_next_plan() -> None:
    world = profiled(cpu=3, gpu=0)
    world.settle()
    world.listen()
    for document in (INFEASIBLE, PLAN):
        world.answer(document)
        world.settle()
    assert world.processes["coordinator"].stopping
    world.free_units = {"cpu": 8, "gpu": 2}
    world.settle()
    world.answer(PLAN)
    assert not any(isinstance(action, SubmitPlan) for action in world.settle())
    world.end("coordinator", -15)
    assert [action.spec.attempt for action in world.settle() if isinstance(action, StartProcess)] == [2]


def test_no_plan_in_what_is_free_is_no_failure_but_a_reason_to_wait() -> None:
    world = waiting(cpu=3, gpu=0)
    condition = world.status.condition("Planned")
    assert (world.status.phase, condition.reason) == ("Planning", "WaitingForCapacity")
    assert condition.message == (
        "its plan needs 3 of cpu and 1 of gpu; 0 of 2 of gpu are free, though no job holds any; kubectl "
        "describe devicepool gpu shows its nodes"
    )


def test_a_job_without_a_plan_in_whole_pools_does_not_wait_for_others() -> None:
    world = profiled(cpu=3, gpu=0)
    world.settle()
    world.answer(INFEASIBLE)
    world.settle()
    world.answer({**INFEASIBLE, "message": "the best is 48,000"})
    world.settle()
    world.end("coordinator", -15)
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
    assert world.settle() == [StopProcess("coordinator", 5.0)]
    condition = world.status.condition("Planned")
    assert condition.reason == "WaitingForCapacity"
    assert condition.message.startswith("its plan needs 5 of cpu; 1 of 8 of cpu")


def test_a_waiting_job_plans_again_as_soon_as_more_is_free() -> None:
    world = waiting(cpu=3, gpu=0)
    world.free_units = {"cpu": 4, "gpu": 0}
    assert limits(world.settle()) == [{"cpu": 4, "gpu": 0}]
    world.answer(INFEASIBLE)
    assert limits(world.settle()) == [], "that it could run alone is known already"
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
    world.end("coordinator", -15)
    world.settle()
    assert world.status.phase == "Failed"


def test_a_plan_that_others_were_faster_than_is_made_again() -> None:
    world = profiled(cpu=8, gpu=2)
    world.settle()
    world.free_units = {"cpu": 8, "gpu": 0}  # another job took the cards while the planner was running
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
    assert world.settle() == []  # a waiting job holds nothing
    condition = world.status.condition("Profiled")
    assert (world.status.phase, condition.reason) == ("Pending", "WaitingForCapacity")
    assert "0 of 8 of cpu" in condition.message
    world.time += 100_000.0  # the start deadline of pods does not run
    assert world.settle() == []
    world.free_units = {"cpu": 1, "gpu": 2}
    world.settle()
    world.listen()
    assert [a.spec.name for a in world.settle() if isinstance(a, StartProcess)] == ["profile-cpu"]
    assert (world.status.phase, world.status.condition("Profiled").status) == ("Profiling", "Unknown")


def test_a_job_that_waits_says_who_has_the_units() -> None:
    world = profiled(cpu=3, gpu=0)
    world.holders = {"cpu": (("ml/a", 4), ("ml/b", 1)), "gpu": (("ml/a", 2),)}
    world.settle()
    world.answer(INFEASIBLE)
    world.settle()
    world.answer(BIG)
    world.settle()
    message = world.status.condition("Planned").message
    assert "3 of 8 of cpu, 0 of 2 of gpu are free (ml/a has 4 of cpu and 2 of gpu, ml/b has 1 of cpu); " in message


def suspended() -> World:
    """A job that was suspended during training."""
    world = World().training()
    world.stop_requested = True
    world.settle()
    world.set_phase("Stopped")
    for name in [*world.running()]:
        world.end(name, 0)
    world.settle()
    return world


def test_a_plan_whose_units_others_took_while_the_job_was_suspended_is_made_anew() -> None:
    world = suspended()
    assert world.status.phase == "Suspended"
    world.stop_requested, world.processes = False, {}
    world.accepted.clear()
    world.status = world.status.begin_again(world.time)
    world.free_units = {"cpu": 1, "gpu": 0}
    assert limits(world.settle()) == [{"cpu": 1, "gpu": 0}]
    assert world.running() <= {"coordinator"}
    world.free_units = {}
    world.answer(PLAN)
    world.settle()
    assert (world.status.plan, world.status.plan_revision, world.status.plan_reason) == (JOB_PLAN, 2, "Replanned")
    assert [event.reason for event in world.events][-1:] == ["Replanned"]


def homeless() -> World:
    """A training job with a returning worker whose pool has no room for it."""
    world = World().training()
    world.end("worker-0-1", None, reason="NodeLost")
    world.settle()
    world.time += 60
    world.settle()
    problem = PodProblem("Unschedulable", "no node has room")
    world.processes["worker-0-1"] = replace(world.processes["worker-0-1"], problem=problem)
    world.time += world.job.elasticity.cooldown_seconds + 1
    return world


def test_a_plan_that_a_pool_has_no_room_for_any_more_is_given_up() -> None:
    world = homeless()
    world.room = {"cpu": 2, "gpu": 2}
    assert [a for a in world.settle() if isinstance(a, RequestStop)] == [RequestStop()]
    condition = world.status.condition("Planned")
    assert (condition.status, condition.reason) == ("False", "PoolShrunk")
    assert condition.message.startswith("pool cpu has 2 of the 3 units of plan 1, and worker-0-1 does not fit; ")
    assert "PoolShrunk" in [event.reason for event in world.events]
    world.room = {"cpu": 3, "gpu": 2}
    assert world.settle() == [], "what was begun is brought to its end"
    assert world.status.phase == "Stopping"


def test_a_pool_with_room_is_waited_for() -> None:
    world = homeless()
    world.room = {"cpu": 3, "gpu": 2}
    assert world.settle() == []
    assert world.status.phase == "Running"


def test_servers_are_planned_where_there_is_room() -> None:
    job = make_job()
    cheap = replace(job.pool("cpu"), name="cheap", price_per_unit_hour=Decimal("0.01"))
    job = replace(job, pools=(cheap, job.pool("cpu")))
    profiles = {"cheap": PROFILE, "cpu": PROFILE}
    for free, expected in (({}, "cheap"), ({"cheap": 0}, "cpu"), ({"cheap": 0, "cpu": 0}, "cheap")):
        problem = build_problem(job.limited(free), profiles)
        assert problem["parameterServer"] == {"pool": expected, "units": 1}


def test_a_pool_that_shrinks_and_grows_leaves_a_job_alone_whose_pods_run() -> None:
    world = World().training()
    for number in range(240):
        world.time += 30
        world.room = {"cpu": 2 if number % 2 else 8, "gpu": 2}
        assert world.settle() == []
    assert world.status.plan_revision == 1


def test_a_pod_that_finds_room_within_the_pause_is_waited_for_however_often_the_pool_shrinks() -> None:
    world = World().training()
    problem = PodProblem("Unschedulable", "no node has room")
    pause = world.job.elasticity.cooldown_seconds
    for _ in range(50):
        world.room = {"cpu": 2, "gpu": 2}
        process = world.processes["worker-0-1"]
        world.processes["worker-0-1"] = replace(process, started=world.time, problem=problem)
        world.time += pause
        assert world.settle() == []
        world.room = {"cpu": 8, "gpu": 2}
        world.processes["worker-0-1"] = replace(process, started=world.time)
        world.time += pause
        assert world.settle() == []
    assert world.status.plan_revision == 1


def test_a_pool_that_shrinks_again_and_again_costs_one_plan() -> None:
    """The new plan fits the least room so far, so the same loss of room cannot cost another plan."""
    world = suspended()
    world.stop_requested, world.processes = False, {}
    world.accepted.clear()
    world.status = world.status.begin_again(world.time)
    world.room = world.free_units = {"cpu": 2, "gpu": 2}
    world.settle()
    first, second = PLAN["stages"]
    world.answer({**PLAN, "stages": [{**first, "units": 1, "pods": 1}, second]})
    world.settle()
    world.listen()
    world.settle()
    world.join("ps-0", "worker-0-0", "worker-1-0")
    world.set_phase("Training", committedSteps=1, samplesPerSecond=20_000.0)
    world.settle()
    problem = PodProblem("Unschedulable", "no node has room")
    for number in range(240):
        world.time += 30
        world.room = world.free_units = {"cpu": 2 if number % 2 else 8, "gpu": 2}
        process = world.processes["worker-0-0"]
        world.processes["worker-0-0"] = replace(process, problem=problem if number % 20 < 10 else None)
        assert world.settle() == []
    assert (world.status.phase, world.status.plan_revision) == ("Running", 2)
