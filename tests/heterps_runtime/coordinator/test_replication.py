"""The coordinator's decisions about servers that hold copies of each other's rows."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import PlanDocument
from heterps_runtime.wire.messages import Checkpoint, Generation, Leaving, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, ONE_CPU, World
from tests.heterps_runtime.helpers.jobs import plan_document


def _replaced(world: World, *servers: str) -> Generation:
    """Servers die at once and new processes join; returns what is announced to servers then."""
    for name in servers:
        world.core.member_lost(name, "it died")
    world.join(*servers)
    return [message for name, message in world.sent if isinstance(message, Generation) and name.startswith("ps")][-1]


@pytest.mark.parametrize(
    ("servers", "replication", "dead", "restores"),
    [
        (2, 1, [1], True),
        (2, 2, [1], False),
        (3, 2, [0], False),
        (4, 2, [0, 2], False),
        (4, 2, [1, 2], True),
        (4, 2, [3, 0], True),  # the copies of the last server are on the first
        (4, 3, [1, 2], False),
        (4, 3, [1, 2, 3], True),
    ],
)
def test_what_no_living_server_holds_is_restored(
    servers: int, replication: int, dead: list[int], *, restores: bool
) -> None:
    world = World(ONE_CPU, servers, replication=replication).begin()
    world.step(3)
    announced = _replaced(world, *(f"ps-{i}" for i in dead))
    if restores:
        assert announced.restore is not None
        assert (announced.restore.step, announced.missing, world.core.progress.committed) == (0, (), 0)
    else:
        assert (announced.restore, announced.missing, announced.committed) == (None, tuple(sorted(dead)), 3)
    world.ready()
    world.step()
    assert world.core.progress.committed == (1 if restores else 4)


def test_a_server_that_has_copied_holds_what_it_held() -> None:
    world = World(ONE_CPU, 2, replication=2).begin()
    world.step(3)
    _replaced(world, "ps-0")
    world.ready()
    world.step(2)
    assert _replaced(world, "ps-1").missing == (1,)


def test_a_server_that_has_not_copied_yet_holds_nothing() -> None:
    world = World(ONE_CPU, 2, replication=2).begin()
    world.step(3)
    _replaced(world, "ps-0")
    announced = _replaced(world, "ps-1")
    assert announced.restore is not None
    assert "RolledBack" in world.reasons()


def test_a_stage_whose_parameters_are_lost_is_restored_all_the_same() -> None:
    world = World(CARDS, 2, replication=2).begin()
    world.step(3)
    for name in ("worker-1-0", "worker-1-1"):
        world.core.member_lost(name, "it died")
    assert _replaced(world, "ps-1").restore is None, "the generation is not complete"
    world.join("worker-1-0")
    assert world.last(Generation).restore is not None


def test_a_plan_needs_a_server_for_each_copy() -> None:
    world = World(ONE_CPU, 2, replication=2)
    with pytest.raises(ValueError, match=r"^plan\.parameterServer\.replicas: must be at least .*, 2, is 1: "):
        world.core.set_plan(PlanDocument.from_json(plan_document(ONE_CPU, 1)))


def test_a_server_may_leave_if_others_hold_its_rows() -> None:
    world = World(ONE_CPU, 3, replication=2).begin()
    world.step(3)
    world.say("ps-1", Leaving())
    world.pass_time(1.5, *world.names)
    assert world.told(Shutdown) == ["ps-1"]
    assert world.told(Checkpoint) == []
    world.join("ps-1")
    world.ready()
    world.step()
    assert world.core.progress.committed == 4
    assert "RolledBack" not in world.reasons()


@pytest.mark.parametrize(("second", "saves"), [("ps-2", True), ("ps-3", False)])
def test_servers_that_leave_together_need_a_checkpoint_if_they_hold_a_row_alone(second: str, *, saves: bool) -> None:
    world = World(ONE_CPU, 5, replication=2).begin()
    world.step(3)
    world.say("ps-1", Leaving())
    world.say(second, Leaving())
    assert bool(world.told(Checkpoint)) == saves
    if saves:
        world.save()
        assert world.core.phase == "Stopped"
        return
    world.pass_time(5.0, *world.names)
    assert world.told(Shutdown) == ["ps-1"], "the other one waits until the first has a successor"
    world.join("ps-1")
    world.ready()
    world.pass_time(0.5, *world.names)
    assert world.told(Shutdown) == ["ps-1", second]
