"""Decisions in each phase, on values alone."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from heterps_operator.api.job import PoolSpec
from heterps_operator.state.status import Phase
from heterps_operator.state.values import (
    Action,
    ComputePlan,
    PodProblem,
    ReportLost,
    RequestStop,
    SaveProfile,
    Shutdown,
    StartProcess,
    StopProcess,
    SubmitPlan,
)
from tests.heterps_operator.helpers.world import JOB_PLAN, MEMBERS, PLAN, PROFILE, World, make_job


def started(actions: list[Action]) -> list[str]:
    return [action.spec.name for action in actions if isinstance(action, StartProcess)]


def test_a_new_job_starts_the_coordinator_first_and_alone() -> None:
    world = World()
    assert started(world.settle()) == ["coordinator"]
    assert world.status.phase == "Profiling"


def test_pools_are_measured_one_after_the_other() -> None:
    world = World()
    world.settle()
    world.listen()
    assert started(world.settle()) == ["profile-cpu"]
    world.deliver("cpu")
    actions = world.settle()
    assert started(actions) == ["profile-gpu"]
    assert SaveProfile("cpu", PROFILE) in actions


def test_a_profiler_that_has_delivered_and_stays_is_ended_before_the_next_one_starts() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    world.profiles["cpu"] = PROFILE
    actions = world.settle()
    assert [a.name for a in actions if isinstance(a, StopProcess)] == ["profile-cpu"]
    assert started(actions) == []
    world.end("profile-cpu", -15)
    assert started(world.settle()) == ["profile-gpu"]
    assert world.status.failures == 0


def test_pools_without_a_common_node_are_measured_at_the_same_time() -> None:
    world = World()
    world.apart = {"cpu": frozenset({"gpu"}), "gpu": frozenset({"cpu"})}
    world.settle()
    world.listen()
    assert started(world.settle()) == ["profile-cpu", "profile-gpu"]
    world.deliver("gpu")
    assert started(world.settle()) == []
    world.deliver("cpu")
    assert any(isinstance(action, ComputePlan) for action in world.settle())


def test_a_pool_that_others_use_is_measured_later_and_the_first_one_is_waited_for() -> None:
    world = World()
    world.apart = {"cpu": frozenset({"gpu"}), "gpu": frozenset({"cpu"})}
    world.free_units = {"gpu": 0}
    world.settle()
    world.listen()
    assert started(world.settle()) == ["profile-cpu"]
    world.free_units = {}
    assert started(world.settle()) == ["profile-gpu"]
    world.free_units = {"cpu": 0}
    world.end("profile-cpu", 1)
    world.settle()
    assert world.status.condition("Profiled").reason == "WaitingForCapacity"
    assert world.running() == {"coordinator", "profile-gpu"}


def test_profiles_of_earlier_runs_are_not_measured_again() -> None:
    world = World()
    world.profiles = {"cpu": PROFILE, "gpu": PROFILE}
    world.cached = frozenset(world.profiles)
    actions = world.settle()
    assert [type(action) for action in actions] == [ComputePlan, StartProcess]
    assert started(actions) == ["coordinator"], "it loads while the planner works"
    assert world.status.phase == "Planning"


def test_the_problem_holds_pools_prices_limits_floor_and_samples() -> None:
    world = World().profiled()
    [problem] = [action.problem for action in world.actions if isinstance(action, ComputePlan)]
    assert problem["samples"] == 10_000
    assert problem["minSamplesPerSecond"] == 20_000
    assert [(p["name"], p["pricePerUnitHour"], p["maxUnits"]) for p in problem["pools"]] == [
        ("cpu", 0.04, 8),
        ("gpu", 2.42, 2),
    ]
    assert [layer["name"] for layer in problem["layers"]] == ["embedding", "mlp", "head"]


def test_steps_decide_the_samples_if_they_are_given() -> None:
    world = World(make_job(steps=7, epochs=None)).profiled()
    [problem] = [action.problem for action in world.actions if isinstance(action, ComputePlan)]
    assert problem["samples"] == 7 * 512


def test_profiles_that_do_not_fit_together_fail_the_job_with_the_pool_named() -> None:
    world = World()
    other = {**PROFILE, "layers": PROFILE["layers"][:2]}
    world.profiles = {"cpu": PROFILE, "gpu": other}
    world.settle()
    assert world.status.phase == "Failed"
    assert world.status.failure is not None
    assert "profile of pool gpu" in world.status.failure.message


def test_a_plan_is_submitted_before_any_member_starts() -> None:
    world = World().profiled()
    world.answer(PLAN)
    actions = world.settle()
    kinds = [type(action) for action in actions]
    assert kinds[0] is SubmitPlan
    assert started(actions) == list(MEMBERS)
    assert world.status.condition("Planned").status == "True"
    assert "cpu x2 [embedding] -> gpu x1 [mlp..head]" in world.status.condition("Planned").message


def test_members_get_their_place_units_and_threads_from_the_plan() -> None:
    cpu = PoolSpec("cpu", "CPU", Decimal("0.04"), 8, units_per_pod=2)
    world = World(make_job(pools=(cpu, make_job().pools[1])))
    world.profiled()
    world.answer(PLAN)
    world.settle()
    worker = world.processes["worker-0-1"].spec
    assert (worker.arguments, worker.pool, worker.units, worker.threads) == (
        ("worker", "--stage", "0", "--index", "1", "--pool", "cpu"),
        "cpu",
        2,
        2,
    )
    assert world.processes["worker-1-0"].spec.threads == 1
    assert world.processes["coordinator"].spec.pool is None


def test_an_infeasible_problem_fails_the_job_with_what_can_be_reached() -> None:
    world = World().profiled()
    world.answer({"feasible": False, "reason": "ThroughputFloorUnreachable", "message": "the best is 31,000"})
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.message == "the best is 31,000"
    condition = world.status.condition("Planned")
    assert (condition.status, condition.reason) == ("False", "ThroughputFloorUnreachable")


def test_a_planner_without_an_answer_fails_the_job_with_its_words() -> None:
    world = World().profiled()
    world.answer(error="problem.layers[3]: must be > 0")
    world.settle()
    assert world.status.failure is not None
    assert (world.status.failure.reason, world.status.failure.message) == (
        "PlannerFailed",
        "problem.layers[3]: must be > 0",
    )


def test_a_plan_that_the_coordinator_refuses_fails_the_job() -> None:
    world = World().profiled()
    world.refused = {"plan-1": "refused with 400: layer names differ"}
    world.answer(PLAN)
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.reason == "PlanRefused"


def test_mode_plan_ends_with_the_plan_and_no_process() -> None:
    world = World(make_job(goal="plan")).profiled()
    world.answer(PLAN)
    actions = world.settle()
    assert Shutdown() in actions
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Planned"
    assert world.status.plan == JOB_PLAN


def test_the_goal_profile_ends_without_a_plan() -> None:
    world = World(make_job(goal="profile")).profiled()
    assert world.cached == {"cpu", "gpu"}, "the last profile is kept, too"
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Profiled"
    assert not any(isinstance(action, ComputePlan) for action in world.actions)


def test_a_paused_job_is_left_alone() -> None:
    world = World(make_job(paused=True))
    assert world.settle() == []
    assert world.status.phase == "Paused"


def test_training_members_are_left_alone_and_conditions_tell_so() -> None:
    world = World().training()
    assert world.status.phase == "Running"
    assert world.status.condition("PodsReady").status == "True"
    world.set_phase("Training", committedSteps=50)
    assert world.settle() == []
    assert world.status.condition("ThroughputMet").status == "True"


def test_a_throughput_below_the_floor_is_said_once() -> None:
    world = World().training()
    world.set_phase("Training", committedSteps=50, samplesPerSecond=12_000.0)
    world.settle()
    world.set_phase("Training", committedSteps=51, samplesPerSecond=12_500.0)
    world.settle()
    assert [event.reason for event in world.events].count("BelowFloor") == 1
    assert world.status.condition("ThroughputMet").message == "12,500 samples/s, the floor is 20,000"


def test_resuming_is_said() -> None:
    world = World().planned()
    world.join(*MEMBERS)
    world.set_phase("Training", committedSteps=120, totalSteps=528, resumedFromStep=120)
    world.settle()
    assert "resuming from step 120 of 528" in [event.message for event in world.events]


def test_a_job_that_begins_with_the_model_of_another_says_so() -> None:
    world = World().training()
    world.set_phase("Training", committedSteps=1, totalSteps=528, resumedFromStep=0)
    world.turn()
    told = [(event.reason, event.message) for event in world.events]
    assert ("ModelImported", "beginning with the model of spec.model.initFrom") in told
    assert "Resumed" not in [reason for reason, _ in told]


def test_what_the_coordinator_warns_of_is_said_once() -> None:
    world = World().training()
    failed = {"time": 5.0, "type": "Warning", "reason": "CheckpointFailed", "message": "step 40: the disk is full"}
    written = {"time": 6.0, "type": "Normal", "reason": "CheckpointWritten", "message": "step 60"}
    world.set_phase("Training", committedSteps=50, events=[failed])
    world.settle()
    world.set_phase("Training", committedSteps=70, events=[failed, written])
    world.settle()
    told = [event for event in world.events if event.reason.startswith("Checkpoint")]
    assert [(event.type, event.message) for event in told] == [("Warning", "step 40: the disk is full")]


def test_a_coordinator_is_heard_whose_clock_is_behind_its_predecessors() -> None:
    world = World().training()
    late = {"time": 7_200.0, "type": "Warning", "reason": "CheckpointFailed", "message": "step 40: the disk is full"}
    world.set_phase("Training", committedSteps=50, events=[late])
    world.settle()
    early = [
        {"time": 5.0, "type": "Normal", "reason": "Resumed", "message": "from step 20"},
        {"time": 6.0, "type": "Warning", "reason": "CheckpointFailed", "message": "step 60: the disk is full"},
    ]
    for events in (early[:1], early, early):
        world.set_phase("Training", committedSteps=70, events=events)
        world.settle()
    told = [event.message for event in world.events if event.reason == "CheckpointFailed"]
    assert told == ["step 40: the disk is full", "step 60: the disk is full"]


@pytest.mark.parametrize(("ahead", "seconds"), [(3_600.0, 10.0), (-3_600.0, 10.0), (2.0, 8.0), (None, 10.0)])
def test_a_warning_has_the_time_of_the_cluster(ahead: float | None, seconds: float) -> None:
    world = World().training()
    told = world.time - seconds + (ahead or 0.0)
    warning = {"time": told, "type": "Warning", "reason": "CheckpointFailed", "message": "the disk is full"}
    of_document = {} if ahead is None else {"time": world.time + ahead}  # None: of a coordinator before this field
    world.set_phase("Training", committedSteps=50, events=[warning], **of_document)
    at = world.time
    world.turn()
    [event] = [event for event in world.events if event.reason == "CheckpointFailed"]
    assert event.time == pytest.approx(at - 10.0 if seconds == 10.0 else told)


def test_success_lets_members_leave_then_ends_the_coordinator() -> None:
    world = World().training()
    world.set_phase("Succeeded", evaluation={"auc": 0.71})
    assert world.settle() == []
    for name in MEMBERS:
        world.end(name, 0)
    assert world.settle() == [Shutdown()]
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Succeeded"
    assert world.status.result is not None
    assert world.status.result["evaluation"] == {"auc": 0.71}
    assert world.status.condition("Succeeded").status == "True"


def test_members_that_do_not_leave_after_success_are_ended() -> None:
    world = World().training()
    world.set_phase("Succeeded")
    world.settle()
    world.time += 11
    assert [a.name for a in world.settle() if isinstance(a, StopProcess)] == list(MEMBERS)


def test_a_coordinator_that_ignores_its_shutdown_is_ended() -> None:
    world = World().training()
    world.set_phase("Succeeded")
    for name in MEMBERS:
        world.end(name, 0)
    world.settle()
    world.time += 6
    assert world.settle() == [StopProcess("coordinator", 5.0)]


def test_members_may_leave_while_the_model_is_written() -> None:
    world = World().training()
    world.set_phase("Exporting")
    world.end("worker-1-0", 0)
    assert world.settle() == []
    assert world.status.failures == 0


def test_a_request_to_stop_asks_once_for_a_checkpoint_and_waits() -> None:
    world = World().training()
    world.stop_requested = True
    assert world.settle() == [RequestStop()]
    assert world.status.phase == "Stopping"
    world.set_phase("Stopped")
    for name in MEMBERS:
        world.end(name, 0)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Suspended"
    assert world.status.condition("Suspended").message == "stopped with a checkpoint"


def test_a_request_to_stop_before_training_ends_everything_at_once() -> None:
    world = World().profiled()
    world.stop_requested = True
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Suspended"


def test_a_controller_that_has_not_heard_the_coordinator_yet_waits_before_it_gives_the_progress_up() -> None:
    world = World().training()
    world.answers, world.last_contact, world.stop_requested = False, None, True  # it arrived later, in a busy moment
    assert world.settle() == []
    world.time += 5
    world.answers = True
    assert world.settle() == [RequestStop()]
    world.set_phase("Stopped")
    world.settle()
    assert world.status.outcome == "Suspended"
    assert world.status.orderly


def test_a_request_to_stop_that_the_coordinator_ignores_ends_in_time() -> None:
    world = World().training()
    world.stop_requested = True
    world.settle()
    world.time += 121
    assert [a.name for a in world.settle() if isinstance(a, StopProcess)] == list(MEMBERS)


def test_a_suspended_manifest_starts_nothing() -> None:
    world = World(make_job(run_policy={"suspend": True}))
    assert world.settle() == []
    assert world.status.phase == "Suspended"


def test_a_new_run_keeps_the_plan_and_starts_members_of_a_new_incarnation() -> None:
    first = World().training()
    second = World(status=first.status.begin_again(2_000.0))
    assert started(second.settle()) == ["coordinator"]
    second.listen()
    actions = second.settle()
    assert actions[0] == SubmitPlan(JOB_PLAN)
    assert started(actions) == list(MEMBERS)
    assert not any(isinstance(action, ComputePlan) for action in second.actions)


def test_a_start_that_takes_too_long_fails_with_the_members_that_are_missing() -> None:
    world = World().planned()
    world.join("ps-0", "worker-0-0", "worker-1-0")
    world.member("worker-0-1")["message"] = "preparing data 40 %"
    world.time += 901
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.reason == "StartDeadlineExceeded"
    assert "worker-0-1 (preparing data 40 %)" in world.status.failure.message
    assert "ps-0" not in world.status.failure.message


def test_time_in_a_queue_does_not_count_towards_the_start_deadline() -> None:
    world = World().planned()
    gate = PodProblem("SchedulingGated", "worker-0-1 waits in queue gpus until there is quota for the whole group")
    held = world.processes["worker-0-1"]
    world.processes["worker-0-1"] = replace(held, problem=gate, begun=None)
    for _ in range(3):
        world.time += 901
        world.settle()
        assert world.status.failure is None
    world.processes["worker-0-1"] = held
    world.time += 899
    world.settle()  # this look is the first that finds the pod admitted
    world.time += 899
    world.settle()
    assert world.status.failure is None
    world.time += 2
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.reason == "StartDeadlineExceeded"


def test_a_job_that_takes_too_long_fails() -> None:
    world = World(make_job(run_policy={"active_deadline_seconds": 60})).training()
    world.time += 61
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.reason == "ActiveDeadlineExceeded"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspended", "Planned", "Profiled"])
def test_nothing_is_done_about_a_job_in_a_final_phase(phase: str) -> None:
    world = World()
    world.status = world.status.with_phase(Phase(phase), 1.0)
    assert world.settle() == []


def test_a_member_is_reported_lost_before_it_is_replaced() -> None:
    world = World().training()
    world.end("worker-0-1", -9)
    actions = world.settle()
    assert [type(action) for action in actions] == [ReportLost, StartProcess]
    assert started(actions) == ["worker-0-1"]
    assert world.processes["worker-0-1"].spec.attempt == 2
