"""Members that are silent, come back, or are replaced; steps that do not get on."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import Role
from heterps_runtime.coordinator.figures import describe_job
from heterps_runtime.coordinator.membership.liveness import HEARTBEAT_TIMEOUT_SECONDS
from heterps_runtime.wire.messages import Done, Failed, Generation, Join, Pulse, Ready, Rejoin, Restore, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, EVERY, HANG, ONE_CPU, World


def test_silence_is_taken_for_a_loss() -> None:
    world = World(ONE_CPU).begin()
    world.pass_time(HEARTBEAT_TIMEOUT_SECONDS, "worker-0-0", "ps-0")
    assert present(world) == {"worker-0-0", "worker-0-1", "ps-0"}
    world.pass_time(1, "worker-0-0", "ps-0")
    assert present(world) == {"worker-0-0", "ps-0"}
    assert any("no heartbeat for 20 s" in e["message"] for e in world.core.journal.events())


def test_time_in_which_the_coordinator_did_not_run_is_nobodys_silence() -> None:
    world = World(ONE_CPU).begin()
    world.pass_time(5, "worker-0-0", "ps-0")
    world.now += 60 + HANG  # it was stopped, and finds no message yet when it looks at the clock
    world.core.tick()
    assert present(world) == {"worker-0-0", "worker-0-1", "ps-0"}
    assert world.core.phase == "Training"
    world.pass_time(HEARTBEAT_TIMEOUT_SECONDS - 5, "worker-0-0", "ps-0")
    assert present(world) == {"worker-0-0", "worker-0-1", "ps-0"}
    world.pass_time(1, "worker-0-0", "ps-0")
    assert present(world) == {"worker-0-0", "ps-0"}, "silence from before it was stopped counts"


def lose(world: World, name: str) -> None:
    """A member is silent until it counts as lost."""
    world.pass_time(HEARTBEAT_TIMEOUT_SECONDS + 1, *(n for n in present(world) if n != name))
    assert name not in present(world)


def pulse(world: World, name: str, incarnation: int = 1, joins: int = 1) -> None:
    world.core.handle(name, str(incarnation), Pulse(joins, "running", {}))


def rejoin(world: World, name: str, lineage: int = 0, version: int = -1) -> None:
    """What a process does that is asked to join again."""
    joins = world.last(Rejoin).joins + 1
    world.incarnations[name] -= 1  # it is the same process
    world.join(name, joins=joins, lineage=lineage, version=version)


@pytest.mark.parametrize("name", ["worker-0-1", "ps-0"])
def test_a_lost_member_that_is_heard_again_is_asked_to_join_again(name: str) -> None:
    world = World(ONE_CPU).begin()
    world.step(2)
    lose(world, name)
    pulse(world, name)
    assert world.addressed[-1] == (name, "1", Rejoin)
    assert world.last(Rejoin) == Rejoin(1)
    rejoin(world, name)
    assert present(world) == {"worker-0-0", "worker-0-1", "ps-0"}
    assert world.core.membership.forming
    world.ready()
    assert world.core.membership.running


def test_a_server_that_comes_back_with_the_state_of_the_last_commit_costs_no_step() -> None:
    world = World(ONE_CPU).begin()
    world.step(5)
    lose(world, "ps-0")
    pulse(world, "ps-0")
    rejoin(world, "ps-0", lineage=world.core.membership.lineage, version=5)
    announced = world.last(Generation)
    assert (announced.restore, announced.committed, announced.lineage) == (None, 5, 1)
    assert "RolledBack" not in world.reasons()


@pytest.mark.parametrize("state", [{"lineage": 1, "version": 4}, {"lineage": 0, "version": 5}, {}])
def test_a_server_that_lacks_the_last_commit_takes_everybody_back_to_the_checkpoint(state: dict[str, int]) -> None:
    world = World(ONE_CPU).begin()
    world.step(5)
    lose(world, "ps-0")
    pulse(world, "ps-0")
    rejoin(world, "ps-0", **state)
    announced = world.last(Generation)
    assert (announced.restore, announced.committed) == (Restore(0, None), 0)
    assert announced.lineage == 2


def test_state_of_before_a_restore_is_not_taken_for_state_of_the_same_step_after_it() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    lose(world, "ps-0")
    world.join("ps-0")  # another process
    world.ready()
    world.step(3)
    lose(world, "ps-0")
    pulse(world, "ps-0", incarnation=2)
    world.incarnations["ps-0"] = 2
    rejoin(world, "ps-0", lineage=1, version=3)
    assert world.last(Generation).restore is not None


def test_the_last_replica_of_a_stage_may_come_back_with_its_parameters() -> None:
    world = World([("card", 0, 1)]).begin()
    world.step(4)
    lose(world, "worker-0-0")
    pulse(world, "worker-0-0")
    rejoin(world, "worker-0-0", lineage=1, version=4)
    assert world.last(Generation).restore is None
    assert world.last(Generation).committed == 4


def test_a_process_that_was_replaced_is_told_to_end_and_its_words_change_nothing() -> None:
    world = World(ONE_CPU).begin()
    lose(world, "worker-0-1")
    world.join("worker-0-1")  # incarnation 2
    world.ready()
    pulse(world, "worker-0-1", incarnation=1)
    assert world.addressed[-1] == ("worker-0-1", "1", Shutdown)
    assert "another process replaced it" in world.last(Shutdown).reason
    generation = world.core.membership.generation
    for words in (Ready(generation), Done(generation, 0, 1.0, True, {}), Failed("Error", "late", permanent=True)):
        world.core.handle("worker-0-1", "1", words)
    assert world.core.membership.running
    assert world.core.error is None
    assert world.commits == []


def test_a_member_that_joins_again_while_it_is_one_has_lost_its_place_in_the_generation() -> None:
    world = World(ONE_CPU).begin()
    world.step(2)
    generation = world.core.membership.generation
    world.incarnations["worker-0-1"] -= 1
    world.join("worker-0-1", joins=1)
    assert world.core.membership.generation == generation, "the same join, sent twice"
    world.incarnations["worker-0-1"] -= 1
    world.join("worker-0-1", joins=2)
    assert world.core.membership.generation > generation
    world.ready()
    assert world.core.membership.running
    assert world.core.progress.committed == 2


def test_a_process_on_its_way_to_join_is_not_disturbed() -> None:
    world = World(ONE_CPU)
    pulse(world, "worker-0-0", joins=0)
    assert world.told(Rejoin) == []
    assert world.core.membership.notes["worker-0-0"] == "running"


def test_the_status_says_how_long_each_member_has_been_silent() -> None:
    world = World(ONE_CPU)
    world.join("worker-0-0", "ps-0")
    world.pass_time(7, "ps-0")
    members = {m["name"]: m["silentSeconds"] for m in describe_job(world.core, world.config, 0.0)["members"]}
    assert members == {"worker-0-0": 7.0, "worker-0-1": None, "ps-0": 0.0}


def present(world: World) -> set[str]:
    assert world.core.membership.roster is not None
    return set(world.core.membership.roster.present)


def _wait(world: World, seconds: float) -> None:
    world.pass_time(seconds, *present(world))


def test_a_step_that_nobody_finishes_fails_the_job_and_names_who_is_missing() -> None:
    world = World(ONE_CPU).begin()
    world.step(2)
    world.done("worker-0-0")
    _wait(world, HANG - 1)
    assert world.core.phase == "Training"
    _wait(world, 2)
    assert world.core.error is not None
    assert world.core.error["reason"] == "Hang"
    assert "step 2 waits for worker-0-1" in world.core.error["message"]
    assert "worker-0-0" not in world.core.error["message"]


def test_members_that_never_get_ready_are_a_hang_but_a_missing_process_is_not() -> None:
    world = World(CARDS).begin()
    world.core.member_lost("worker-0-0", "gone")
    _wait(world, 10 * HANG)
    assert world.core.phase == "Training"
    world.join("worker-0-0")
    world.ready("worker-0-0", "worker-1-1", "ps-0")
    _wait(world, HANG + 1)
    assert world.core.error is not None
    assert "wait for worker-1-0 to set up" in world.core.error["message"]


def test_an_evaluation_that_nobody_finishes_fails_the_job() -> None:
    world = World(ONE_CPU).begin(evaluation=50)
    world.step(EVERY)
    world.save()
    world.step(EVERY)
    world.save()
    world.step(4)
    world.save()
    assert world.core.phase == "Evaluating"
    world.evaluated("worker-0-0")
    _wait(world, HANG + 1)
    assert world.core.error is not None
    assert "evaluation waits for worker-0-1" in world.core.error["message"]


def test_processes_that_the_plan_does_not_know_are_sent_away() -> None:
    world = World(ONE_CPU)
    world.core.handle("worker-5-0", "x", Join(Role.WORKER, 0, "cpu", "tcp://worker-5-0:1", 0, 0, -1, stage=5))
    assert world.sent[-1][0] == "worker-5-0"
    assert "no member worker-5-0" in world.last(Shutdown).reason
