"""Pods that do not start are reported in the condition PodsReady, once, whatever process waits for them."""

from __future__ import annotations

from dataclasses import replace

from heterps_operator.state.values import PodProblem
from tests.heterps_operator.helpers.world import World

NO_ROOM = PodProblem("Unschedulable", "worker-0-0 fits no node (0/3 nodes: 3 Insufficient cpu); add nodes")
NO_IMAGE = PodProblem("ImagePullBackOff", "worker-0-1 cannot get its image; push the image")


def trouble(world: World, name: str, problem: PodProblem | None) -> None:
    world.processes[name] = replace(world.processes[name], problem=problem)


def test_a_coordinator_that_fits_no_node_is_told_before_there_is_any_plan() -> None:
    world = World()
    world.turn()
    trouble(world, "coordinator", replace(NO_ROOM, message="coordinator fits no node; add one"))
    world.turn()
    condition = world.status.condition("PodsReady")
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert condition.message == "coordinator fits no node; add one"
    assert [e.type for e in world.events if e.reason == "Unschedulable"] == ["Warning"]
    world.turn()
    assert [e.type for e in world.events if e.reason == "Unschedulable"] == ["Warning"]
    trouble(world, "coordinator", None)
    world.turn()
    assert world.status.condition("PodsReady").status == "Unknown"


def test_the_problem_of_a_member_goes_before_waiting_for_members() -> None:
    world = World()
    world.planned()
    trouble(world, "worker-0-1", NO_IMAGE)
    world.turn()
    assert world.status.condition("PodsReady").reason == "ImagePullBackOff"
    trouble(world, "worker-0-0", NO_ROOM)
    world.turn()
    condition = world.status.condition("PodsReady")
    assert condition.reason == "ImagePullBackOff", "what was told stays told"
    assert condition.message.endswith("(and 1 more pods do not start)")
    trouble(world, "worker-0-1", None)
    world.turn()
    assert world.status.condition("PodsReady").message == NO_ROOM.message
    trouble(world, "worker-0-0", None)
    world.turn()
    assert world.status.condition("PodsReady").reason == "WaitingForMembers"
    assert [e.reason for e in world.events if e.type == "Warning"] == ["ImagePullBackOff", "Unschedulable"]


def test_a_member_that_is_not_ready_is_not_said_to_be() -> None:
    world = World().training()
    for name, state, message in (("ps-0", "joined", "ready"), ("worker-0-0", "joined", "loading data")):
        world.member(name).update(state=state, message=message)
    world.turn()
    message = world.status.condition("PodsReady").message
    assert "members are ready; ps-0 joined, worker-0-0 loading data" in message
