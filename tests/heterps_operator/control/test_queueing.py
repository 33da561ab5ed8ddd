"""Jobs in a queue: nothing runs without quota, the queue may take it back, and none is left when a job has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase
from heterps_operator.state.values import QuotaRequest, ReclaimQuota, RequestQuota, RequestStop, StopProcess
from tests.heterps_operator.helpers.world import MEMBERS, PLAN, World, make_job

ALL = frozenset({"coordinator", *MEMBERS})


def in_queue(**job: Any) -> World:
    world = World(make_job(**job))
    world.quota = {}
    return world


def planned(**job: Any) -> World:
    """A job whose plan waits for quota."""
    world = in_queue(**job)
    world.settle()
    world.admit("profile-1")
    world.profiled()
    world.answer(PLAN)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    return world


def training(**job: Any) -> World:
    world = planned(**job)
    world.admit("plan-1")
    world.settle()
    world.listen()
    world.settle()
    world.train()
    world.actions.clear()
    world.events.clear()
    return world


def requests(world: World) -> dict[str, frozenset[str]]:
    assert world.quota is not None
    return {name: request.processes for name, request in world.quota.items()}


def told(world: World, reason: str) -> list[str]:
    return [event.message for event in world.events if event.reason == reason]


def ended(world: World) -> World:
    for name in world.running():
        world.end(name, 143)
    return world


def with_workers(number: int) -> JobPlan:
    first = {**PLAN["stages"][0], "units": number, "pods": number}
    return JobPlan.from_json({**PLAN, "stages": [first, PLAN["stages"][1]]})


def test_profilers_wait_for_quota_and_nothing_runs_meanwhile() -> None:
    world = in_queue()
    world.settle()
    assert requests(world) == {"profile-1": {"coordinator", "profile-cpu", "profile-gpu"}}
    assert world.running() == set()
    assert world.status.condition("PodsReady").message == "the queue has not considered the job yet"
    assert (world.status.phase, world.status.waiting_reason) == (Phase.PENDING, "Pending")
    assert told(world, "WaitingForQuota") == [], "most jobs are admitted at once"
    assert world.quota is not None
    world.quota["profile-1"] = replace(world.quota["profile-1"], message="1 more cpu needed")
    world.settle()
    assert (told(world, "WaitingForQuota"), world.status.waiting_reason) == (["1 more cpu needed"], "WaitingForQuota")
    world.admit("profile-1")
    world.settle()
    assert (world.running(), world.status.phase) == ({"coordinator"}, Phase.PROFILING)
    assert world.status.condition("PodsReady").reason == "Admitted"


def test_waiting_in_a_queue_is_not_a_start_that_takes_too_long() -> None:
    world = in_queue()
    world.settle()
    world.time += 1_000_000
    world.settle()
    assert world.status.outcome is None
    world.admit("profile-1")
    world.settle()
    assert world.status.outcome is None


def test_a_plan_that_waits_holds_no_quota() -> None:
    world = in_queue()
    world.settle()
    world.admit("profile-1")
    world.profiled()
    assert requests(world) == {"profile-1": {"coordinator", "profile-cpu", "profile-gpu"}}, "the coordinator runs on"
    world.answer(PLAN)
    actions = world.settle()
    assert StopProcess("coordinator", 5.0) in actions
    assert set(requests(world)) == {"profile-1", "plan-1"}, "the coordinator has not ended yet"
    world.end("coordinator", 0)
    world.settle()
    assert requests(world) == {"plan-1": ALL}
    assert (world.running(), world.status.failures, world.status.outcome) == (set(), 0, None)


def test_a_plan_starts_when_it_is_admitted() -> None:
    world = training()
    assert (world.running(), world.status.phase) == (set(ALL), Phase.RUNNING)
    assert requests(world) == {"plan-1": ALL}


def test_a_job_is_planned_and_queued_as_if_it_were_alone_and_starts_when_there_are_units() -> None:
    world = planned()
    assert world.running() == set()
    world.free_units, world.most_units = {"cpu": 1, "gpu": 0}, {"cpu": 8, "gpu": 2}
    world.holders = {"cpu": (("ml/low", 7),), "gpu": (("ml/low", 2),)}
    world.settle()
    assert requests(world) == {"plan-1": ALL}, "the queue may evict the others"
    world.admit("plan-1")
    world.settle()
    assert (world.running(), world.status.waiting_reason) == (set(), "WaitingForCapacity")
    assert "ml/low has 7 of cpu and 2 of gpu" in told(world, "WaitingForCapacity")[0]
    world.time += 1_000_000
    world.free_units = {"cpu": 3, "gpu": 1}
    world.settle()
    assert world.running() == {"coordinator"}
    assert world.status.condition("PodsReady").reason == "Admitted"


def test_profilers_wait_for_units_after_they_are_admitted() -> None:
    world = in_queue()
    world.free_units, world.most_units = {"cpu": 0, "gpu": 0}, {"cpu": 8, "gpu": 2}
    world.holders = {"cpu": (("ml/low", 8),)}
    world.settle()
    assert set(requests(world)) == {"profile-1"}
    world.admit("profile-1")
    world.settle()
    assert (world.running(), world.status.waiting_reason) == (set(), "WaitingForCapacity")
    world.free_units = {"cpu": 8, "gpu": 2}
    world.settle()
    assert world.running() == {"coordinator"}


def test_a_plan_that_is_admitted_at_once_keeps_the_coordinator() -> None:
    world = in_queue()
    world.settle()
    world.admit("profile-1")
    world.profiled()
    world.answer(PLAN)
    world.turn()
    assert world.quota is not None
    world.quota["plan-1"] = QuotaRequest("plan-1", ALL, reserved=True, admitted=True)
    world.end("coordinator", 0)  # it had been told to
    world.settle()
    assert requests(world) == {"plan-1": ALL}


def test_an_evicted_job_saves_a_checkpoint_and_queues_again() -> None:
    world = training()
    world.evict("plan-1", "Preempted to accommodate a workload")
    assert world.settle() == [RequestStop()]
    text = "the queue wants its quota back: Preempted to accommodate a workload; the job saves a checkpoint, and "
    assert told(world, "QuotaWithdrawn") == [f"{text}continues when the queue admits it again"]
    assert set(requests(world)) == {"plan-1"}, "its pods still count"
    world.set_phase("Stopped")
    world.settle()
    assert set(requests(world)) == {"plan-1"}
    ended(world).settle()
    assert requests(world) == {"plan-2": ALL}
    assert (world.status.phase, world.status.incarnation) == (Phase.PENDING, 2)
    assert (world.status.failures, world.status.restarts, world.status.moving) == (0, {}, "")
    world.admit("plan-2")
    world.settle()
    assert world.running() == {"coordinator"}


def test_a_job_that_is_evicted_before_it_starts_queues_again() -> None:
    world = planned()
    world.admit("plan-1")
    world.evict("plan-1", "Preempted")
    actions = world.turn().actions
    assert [action.name for action in actions if isinstance(action, RequestQuota)] == ["plan-1"]
    assert world.running() == set()


def test_a_request_that_someone_deletes_is_an_eviction() -> None:
    world = training()
    assert world.quota is not None
    world.quota.clear()
    assert world.settle() == [RequestStop()]
    assert "no request for quota covers coordinator, ps-0" in told(world, "QuotaWithdrawn")[0]


def test_a_job_that_an_administrator_takes_out_of_the_queue_stays_out() -> None:
    world = training()
    world.evict("plan-1", "The workload is deactivated", inactive=True)
    world.settle()
    world.set_phase("Stopped")
    world.settle()
    ended(world).settle()
    assert world.quota is not None
    assert [(name, request.inactive) for name, request in world.quota.items()] == [("plan-2", True)]


def test_a_job_that_ends_leaves_no_request() -> None:
    world = training()
    world.set_phase("Succeeded")
    world.settle()
    assert set(requests(world)) == {"plan-1"}
    for name in MEMBERS:
        world.end(name, 0)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    assert (world.status.phase, requests(world)) == (Phase.SUCCEEDED, {})


def test_what_an_earlier_operator_left_is_given_back_after_the_end() -> None:
    world = training()
    world.status = replace(world.status, phase=Phase.SUCCEEDED, outcome=Phase.SUCCEEDED)
    ended(world).settle()
    assert requests(world) == {}


def test_a_suspended_job_leaves_no_request() -> None:
    world = planned()
    world.job = replace(world.job, run_policy=replace(world.job.run_policy, suspend=True))
    world.settle()
    assert (world.status.phase, requests(world)) == (Phase.SUSPENDED, {})


def test_added_workers_wait_for_quota_while_the_others_go_on() -> None:
    world = training()
    world.status = replace(world.status, plan=with_workers(4), plan_revision=2)
    world.settle()
    assert requests(world) == {"plan-1": ALL, "plan-1-2": {"worker-0-2", "worker-0-3"}}
    assert world.running() == set(ALL)
    world.admit("plan-1-2")
    world.settle()
    assert world.running() == {*ALL, "worker-0-2", "worker-0-3"}


def test_quota_of_workers_that_a_plan_drops_is_given_back_when_they_have_ended() -> None:
    world = training()
    world.status = replace(world.status, plan=with_workers(1), plan_revision=2)
    world.settle()
    assert requests(world) == {"plan-1": ALL}
    world.end("worker-0-1", 0)
    assert world.settle() == [ReclaimQuota("plan-1", frozenset({"worker-0-1"}))]
    world.status = replace(world.status, plan=with_workers(2), plan_revision=3)
    world.settle()
    assert requests(world) == {"plan-1": ALL - {"worker-0-1"}, "plan-1-3": {"worker-0-1"}}


def test_a_worker_that_dies_is_replaced_under_the_same_request() -> None:
    world = training()
    world.end("worker-0-1", -9)
    world.settle()
    assert world.running() == set(ALL)
    assert requests(world) == {"plan-1": ALL}


def test_a_request_of_another_program_is_withdrawn() -> None:
    world = training()
    assert world.quota is not None
    world.quota["something"] = QuotaRequest("something")
    world.settle()
    assert requests(world) == {"plan-1": ALL}


def test_a_waiting_job_whose_plan_changes_asks_for_the_new_one() -> None:
    world = planned()
    world.status = replace(world.status, plan=with_workers(3), plan_revision=2)
    world.settle()
    assert requests(world) == {"plan-1": ALL | {"worker-0-2"}}
