"""The coordinator's decisions about processes that are told to end from outside, by an eviction for example."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import REASON_LEAVING
from heterps_runtime.wire.messages import Checkpoint, Leaving, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, EVERY, ONE_CPU, TOTAL, World


@pytest.mark.parametrize("who", ["ps-0", "coordinator"])
def test_a_checkpoint_is_written_before_a_server_or_the_coordinator_ends(who: str) -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY + 3)
    world.save()
    if who == "coordinator":
        assert world.core.leave(who)
    else:
        world.say(who, Leaving())
    assert world.last(Checkpoint).step == EVERY + 3
    assert world.told(Shutdown) == []
    world.step()
    assert world.core.progress.committed == EVERY + 3, "nothing is committed that the checkpoint would lack"
    world.save()
    assert world.core.phase == "Stopped"
    assert sorted(world.told(Shutdown)) == sorted(world.names)
    assert world.last(Shutdown).reason == REASON_LEAVING, "so their early end is no failure"
    assert {"Leaving", "StopRequested"} <= set(world.reasons())


def test_a_worker_is_dismissed_when_its_node_had_time_to_tell_the_servers() -> None:
    world = World(ONE_CPU).begin()
    world.step()
    world.say("worker-0-1", Leaving())
    world.pass_time(0.5)
    world.step()
    assert world.told(Shutdown) == []
    world.pass_time(1.0)
    assert world.told(Shutdown) == ["worker-0-1"]
    world.ready()
    world.step()
    assert world.core.progress.committed == 3, "the other worker goes on"
    world.join("worker-0-1")
    world.ready()
    world.pass_time(5.0, *world.names)
    assert world.told(Shutdown) == ["worker-0-1"], "its successor stays"


def test_a_worker_of_a_node_with_a_server_stays_until_the_checkpoint_is_written() -> None:
    world = World(CARDS).begin()
    world.step(3)
    world.say("worker-0-0", Leaving())
    world.pass_time(0.5)
    world.say("ps-0", Leaving())
    world.pass_time(10.0, *world.names)
    assert world.told(Shutdown) == []
    assert "worker-0-0" in world.told(Checkpoint)
    world.save()
    assert world.core.phase == "Stopped"


def test_what_leaves_before_the_first_step_has_nothing_to_save() -> None:
    world = World(ONE_CPU)
    world.join("ps-0", "worker-0-0")
    assert not world.core.unsaved
    world.say("ps-0", Leaving())
    assert world.told(Shutdown) == ["ps-0"]
    world.join("ps-0", "worker-0-1")
    world.ready()
    assert world.core.phase == "Training", "its successor takes its place"


def test_a_server_stays_for_the_evaluation_and_the_export() -> None:
    world = World(ONE_CPU, checkpoint_every=1000).begin(evaluation=100)
    world.step(TOTAL)
    world.save()
    assert world.core.phase == "Evaluating"
    world.say("ps-0", Leaving())
    assert world.core.leave("coordinator")
    world.pass_time(5.0, *world.names)
    assert world.core.phase == "Evaluating"
    for name in world.workers:
        world.evaluated(name)
    world.core.exported("/c/model")
    assert world.core.phase == "Succeeded"
    assert not world.core.unsaved


def test_nothing_can_be_saved_while_a_stage_has_no_worker() -> None:
    world = World(CARDS).begin()
    world.step(3)
    world.core.member_lost("worker-0-0", "gone")
    assert not world.core.unsaved
    world.say("ps-0", Leaving())
    assert world.told(Shutdown) == ["ps-0"]


def test_a_process_that_is_no_member_may_leave() -> None:
    world = World(ONE_CPU).begin()
    world.say("worker-7-7", Leaving())
    world.step(2)
    assert (world.core.phase, world.core.progress.committed) == ("Training", 2)
