"""Running processes that do not take part: which are awaited, and which are killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_operator.state.values import Action, PodProblem, StopProcess
from tests.heterps_operator.helpers.world import World, make_job


def stopped(actions: list[Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, StopProcess)]


def silence(world: World, name: str, seconds: float | None, state: str = "absent") -> None:
    """Let the coordinator not hear from a member for some seconds."""
    world.member(name).update(state=state, silentSeconds=seconds)


@pytest.mark.parametrize("name", ["worker-0-1", "ps-0"])
def test_a_member_that_is_away_for_a_moment_is_waited_for(name: str) -> None:
    world = World().training()
    world.time += 300
    silence(world, name, 28.0)
    assert world.settle() == []


@pytest.mark.parametrize("name", ["worker-0-1", "ps-0"])
def test_a_member_that_stays_away_is_ended_and_restarted_under_the_limit(name: str) -> None:
    world = World().training()
    world.time += 300
    silence(world, name, 46.0)
    assert stopped(world.settle()) == [name]
    told = [e for e in world.events if e.reason == "Unresponsive"]
    assert [(e.type, e.message) for e in told] == [
        ("Warning", f"{name} has not been heard from for 45 s; restarting it")
    ]
    world.time += 30
    assert world.settle() == [], "it was told to end once"
    world.end(name, -9)
    world.settle()
    assert world.status.failures == 1
    assert world.status.attempts == {name: 2}


def test_the_silence_of_a_process_is_not_the_silence_of_the_one_that_replaces_it() -> None:
    world = World().training()
    world.time += 300
    silence(world, "worker-0-1", 46.0)
    world.settle()
    world.end("worker-0-1", -9)
    world.settle()
    world.time += 5
    world.settle()
    silence(world, "worker-0-1", 80.0)  # it has just been started, and has not reported yet
    world.time += 60
    assert stopped(world.settle()) == []
    world.time += 61
    silence(world, "worker-0-1", 200.0)
    assert stopped(world.settle()) == ["worker-0-1"]
    text = "was never heard from in 120 s (runPolicy.hangTimeoutSeconds)"
    assert any(text in e.message for e in world.events)


def test_a_member_that_is_heard_but_never_joins_is_ended() -> None:
    world = World(make_job(run_policy={"start_deadline_seconds": 900.0})).training()
    silence(world, "worker-0-1", 0.5)
    world.time += 890
    assert stopped(world.settle()) == []
    world.time += 20
    assert stopped(world.settle()) == ["worker-0-1"]


def test_a_pod_whose_node_is_in_trouble_is_left_to_the_rules_for_nodes() -> None:
    world = World().training()
    world.time += 300
    silence(world, "worker-0-1", 46.0)
    process = world.processes["worker-0-1"]
    problem = PodProblem("NodeNotReady", "node a is not heard of")
    world.processes["worker-0-1"] = replace(process, problem=problem)
    assert stopped(world.settle()) == []
    world.processes["worker-0-1"] = replace(process, begun=None)  # a pod without a container yet
    assert stopped(world.settle()) == []


def test_members_that_have_done_their_part_are_left_alone() -> None:
    world = World().training()
    world.time += 300
    world.set_phase("Exporting")
    silence(world, "worker-0-1", 60.0)
    assert stopped(world.settle()) == []
