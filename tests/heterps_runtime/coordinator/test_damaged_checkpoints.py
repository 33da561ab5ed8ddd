"""A checkpoint that a member cannot restore: all go back to the one before."""

from __future__ import annotations

from heterps_runtime.contract import FINAL_PHASES
from heterps_runtime.wire.messages import Damaged, Generation, Restore
from tests.heterps_runtime.helpers.coordinator_world import EVERY, ONE_CPU, Record, World

LATEST, BEFORE = Record(2 * EVERY, "step-20"), Record(EVERY, "step-10")


def report(world: World, member: str, folder: str = LATEST.folder, generation: int | None = None) -> None:
    """A member cannot restore a checkpoint, and joins again."""
    number = world.core.membership.generation if generation is None else generation
    world.say(member, Damaged(number, folder, f"{folder}/rows-1.safetensors", "rows-1.safetensors is missing"))


def restoring() -> World:
    """A job whose members restore its newest checkpoint."""
    world = World(ONE_CPU, servers=2, latest=LATEST)
    world.join()
    assert world.last(Generation).restore == Restore(LATEST.step, LATEST.folder)
    return world


def test_members_restore_the_checkpoint_before_once_it_is_known() -> None:
    world = restoring()
    report(world, "ps-1")
    world.join("ps-1")
    assert world.told(Generation).count("ps-0") == 1  # not while it is not known which one is valid
    [damaged] = world.damaged
    assert damaged.reason == "ps-1: rows-1.safetensors is missing"
    assert damaged.file == f"{LATEST.folder}/rows-1.safetensors"
    world.core.checkpoints_opened(BEFORE)
    assert world.last(Generation).restore == Restore(BEFORE.step, BEFORE.folder)
    assert world.core.resumed_from == BEFORE.step
    world.ready()
    world.step()
    assert world.commits == [BEFORE.step]


def test_the_one_before_is_restored_also_if_it_is_known_first() -> None:
    world = restoring()
    report(world, "ps-1")
    world.core.checkpoints_opened(BEFORE)
    assert len(world.told(Generation)) == len(world.names), "the member that reported it joins first"
    world.join("ps-1")
    assert len(world.told(Generation)) == 2 * len(world.names)
    assert world.last(Generation).restore == Restore(BEFORE.step, BEFORE.folder)


def test_a_server_that_was_ready_before_it_read_rows_is_not_taken_to_hold_them() -> None:
    """It reads them when workers define tables, which may be in a generation that goes on."""
    world = restoring()
    world.ready()
    world.core.member_lost("worker-0-1", "gone")
    assert world.last(Generation).restore is None
    report(world, "ps-1")
    world.core.checkpoints_opened(BEFORE)
    world.join("ps-1")
    assert world.last(Generation).restore == Restore(BEFORE.step, BEFORE.folder)
    assert [m.restore for n, m in world.sent if n == "ps-0" and isinstance(m, Generation)] == [
        Restore(LATEST.step, LATEST.folder),
        None,
        Restore(BEFORE.step, BEFORE.folder),
    ]


def test_several_members_that_find_it_damaged_count_once() -> None:
    world = restoring()
    for member in ("ps-1", "ps-0"):
        report(world, member)
        world.join(member)
    assert len(world.damaged) == 1
    world.core.checkpoints_opened(BEFORE)
    world.ready()
    world.step()
    assert world.core.progress.committed == BEFORE.step + 1


def test_without_another_checkpoint_the_job_begins_from_scratch() -> None:
    world = restoring()
    report(world, "ps-0")
    world.join("ps-0")
    world.core.checkpoints_opened(None)
    assert world.last(Generation).restore == Restore(0, None)
    assert world.core.resumed_from is None
    assert world.core.progress.samples == 0


def test_a_job_that_trains_goes_back_further_than_to_the_newest() -> None:
    world = World(ONE_CPU, servers=2).begin()
    world.step(EVERY)
    world.save()
    first = world.core.checkpoints.latest
    assert first is not None
    world.step(EVERY)
    world.save()
    world.core.member_lost("ps-1", "gone")
    world.join("ps-1")
    announced = world.last(Generation)
    assert announced.restore is not None
    assert announced.restore.step == 2 * EVERY
    report(world, "ps-0", announced.restore.folder or "")
    world.join("ps-0")
    world.core.checkpoints_opened(Record(first.step, first.folder))
    assert world.last(Generation).restore == Restore(EVERY, first.folder)
    assert world.core.resumed_from is None  # it did not
    world.ready()
    world.step()
    assert world.commits[-1] == EVERY
    told = [event["message"] for event in world.core.journal.events() if event["reason"] == "RolledBack"]
    assert told == [f"from step {2 * EVERY} to {EVERY} (checkpoint)"]


def test_reports_of_another_checkpoint_or_generation_change_nothing() -> None:
    world = restoring()
    report(world, "ps-1", BEFORE.folder)
    report(world, "ps-1", generation=0)
    assert world.damaged == []
    world.ready()
    world.step()
    assert world.commits == [LATEST.step]


def test_a_job_that_is_stopped_meanwhile_ends() -> None:
    world = restoring()
    report(world, "ps-1")
    world.core.request_stop()
    world.join("ps-1")
    assert world.core.phase in FINAL_PHASES
    world.core.checkpoints_opened(BEFORE)
    assert world.told(Generation).count("ps-0") == 1
