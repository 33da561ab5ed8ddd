"""Nodes that are drained or removed: the job leaves them, and loses no committed step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_operator.state.status import Phase
from heterps_operator.state.values import Action, Departure, ReportLost, RequestStop, StartProcess, StopProcess
from tests.heterps_operator.helpers.world import PROFILE, World, make_job

CORDONED = Departure("a", "is cordoned")
REMOVED = Departure("a", "has the taint karpenter.sh/disrupted:NoSchedule", announced=True)


def leaving(*names: str, departure: Departure = CORDONED, **job: Any) -> World:
    """A job that trains, with some of its processes on a node that does not keep them."""
    world = World(make_job(**job)).training()
    world.actions.clear()
    world.events.clear()
    for name in names:
        world.processes[name] = replace(world.processes[name], leaves=departure)
    return world


def told(world: World, reason: str) -> list[str]:
    return [event.message for event in world.events if event.reason == reason]


def ended(world: World, *names: str) -> World:
    for name in names:
        world.end(name, 143)
    return world


def started(actions: list[Action]) -> list[tuple[str, int, int]]:
    specs = [action.spec for action in actions if isinstance(action, StartProcess)]
    return [(spec.name, spec.incarnation, spec.attempt) for spec in specs]


def test_a_worker_leaves_and_is_replaced() -> None:
    world = leaving("worker-0-1")
    assert world.settle() == [StopProcess("worker-0-1", 5.0)]
    assert told(world, "ProcessMoves") == ["worker-0-1 leaves node a, which is cordoned"]
    ended(world, "worker-0-1")
    lost, *actions = world.settle()
    assert isinstance(lost, ReportLost)
    assert started(actions) == [("worker-0-1", 1, 2)]
    assert (world.status.phase, world.status.failures, world.status.restarts) == (Phase.RUNNING, 0, {})


def test_all_workers_of_a_node_leave_at_once() -> None:
    world = leaving("worker-0-0", "worker-0-1", "worker-1-0")
    assert {action.name for action in world.settle() if isinstance(action, StopProcess)} == {
        "worker-0-0", "worker-0-1", "worker-1-0",
    }  # fmt: skip
    assert len(told(world, "ProcessMoves")) == 3


def test_a_profiler_leaves_and_measures_elsewhere() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    world.processes["profile-cpu"] = replace(world.processes["profile-cpu"], leaves=CORDONED)
    assert world.settle() == [StopProcess("profile-cpu", 5.0)]
    ended(world, "profile-cpu")
    assert started(world.settle()) == [("profile-cpu", 1, 2)]
    assert world.status.failures == 0


@pytest.mark.parametrize("name", ["coordinator", "ps-0"])
def test_a_job_whose_state_has_to_move_starts_again_from_a_checkpoint(name: str) -> None:
    world = leaving(name, "worker-0-0")
    assert world.settle() == [RequestStop()]
    assert world.status.phase == Phase.STOPPING
    text = (
        f"node a, which runs {name}, worker-0-0, is cordoned: the job saves a checkpoint and continues on other nodes"
    )
    assert told(world, "JobMoves") == [text]
    world.set_phase("Stopped")
    stops = world.settle()
    assert {action.name for action in stops if isinstance(action, StopProcess)} == world.running()
    assert (world.status.phase, world.status.incarnation) == (Phase.RESTARTING, 2)
    ended(world, *world.running())
    assert started(world.settle()) == [("coordinator", 2, 1)]
    assert (world.status.failures, world.status.restarts, world.status.moving) == (0, {}, "")
    assert world.status.outcome is None


def test_a_server_whose_rows_others_hold_leaves_and_is_replaced() -> None:
    world = leaving("ps-0", "worker-0-0", replication=2)
    assert {action.name for action in world.settle() if isinstance(action, StopProcess)} == {"ps-0", "worker-0-0"}
    assert "ps-0 leaves node a, which is cordoned" in told(world, "ProcessMoves")
    ended(world, "ps-0", "worker-0-0")
    assert set(started(world.settle())) == {("ps-0", 1, 2), ("worker-0-0", 1, 2)}
    assert (world.status.phase, world.status.failures, world.status.restarts) == (Phase.RUNNING, 0, {})


@pytest.mark.parametrize("why", ["the coordinator leaves", "a server has no state", "there is no coordinator"])
def test_a_server_is_not_replaced_alone_if_more_is_missing(why: str) -> None:
    world = leaving("ps-0", *(["coordinator"] if why == "the coordinator leaves" else []), replication=2)
    if why == "a server has no state":
        world.member("ps-0")["state"] = "joined"
    world.answers = why != "there is no coordinator"
    assert not [action for action in world.turn().actions if isinstance(action, StopProcess)]
    assert world.status.phase == Phase.STOPPING


def test_a_job_that_has_nothing_to_save_yet_moves_at_once() -> None:
    world = World().planned()
    world.processes["ps-0"] = replace(world.processes["ps-0"], leaves=CORDONED)
    world.settle()
    assert (world.status.phase, world.status.incarnation) == (Phase.RESTARTING, 2)


def test_a_job_for_which_there_is_no_room_stops_with_a_checkpoint_and_waits() -> None:
    world = leaving("worker-0-0")
    world.free_units = {"cpu": 2, "gpu": 2}  # the plan takes three cores
    assert world.settle() == [RequestStop()]
    assert told(world, "JobMoves")[0].endswith("continues on other nodes, once they have room")
    world.set_phase("Stopped")
    world.settle()
    ended(world, *world.running())
    world.settle()
    assert world.status.plan is None
    assert world.planning, "with what is left"


def test_a_job_that_is_suspended_while_it_moves_stays_suspended() -> None:
    world = leaving("ps-0")
    world.settle()
    world.job = replace(world.job, run_policy=replace(world.job.run_policy, suspend=True))
    world.set_phase("Stopped")
    world.settle()
    ended(world, *world.running() - {"coordinator"})
    world.settle()
    ended(world, "coordinator")
    world.settle()
    assert world.status.phase == Phase.SUSPENDED


def test_a_job_may_stay_on_a_cordoned_node_but_not_on_one_that_is_removed() -> None:
    stays = {"cordon_policy": "Stay"}
    assert leaving("ps-0", "worker-0-0", run_policy=stays).settle() == []
    assert leaving("worker-0-0", departure=REMOVED, run_policy=stays).settle() == [StopProcess("worker-0-0", 5.0)]
    assert leaving("ps-0", departure=REMOVED, run_policy=stays).settle() == [RequestStop()]


def test_a_process_that_ends_already_is_left_alone() -> None:
    world = leaving("ps-0")
    world.processes["ps-0"] = replace(world.processes["ps-0"], stopping=True)
    assert world.settle() == []


def test_a_profiler_that_has_delivered_is_ended_once() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    world.processes["profile-cpu"] = replace(world.processes["profile-cpu"], leaves=CORDONED)
    world.profiles["cpu"] = PROFILE
    stops = [action for action in world.settle() if isinstance(action, StopProcess)]
    assert stops == [StopProcess("profile-cpu", 5.0)]
    assert told(world, "ProcessMoves") == []


def test_a_process_that_hangs_on_a_cordoned_node_is_ended_once() -> None:
    world = leaving("worker-0-0", departure=CORDONED)
    world.member("worker-0-0")["silentSeconds"] = 50.0
    world.processes["worker-0-0"] = replace(world.processes["worker-0-0"], started=world.time - 100)
    assert world.settle() == [StopProcess("worker-0-0", 5.0)]
    assert told(world, "Unresponsive") != []
