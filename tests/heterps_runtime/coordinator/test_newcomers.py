"""Members that join while others train or set up: they wait for the next commit, and take no step from anyone."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import PlanDocument
from heterps_runtime.wire.messages import Checkpoint, CopyAhead, Evaluate, Generation, NewAllocation, Restore, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, EVERY, ONE_CPU, TOTAL, Record, World
from tests.heterps_runtime.helpers.jobs import Stage, plan_document


def _growing(before: int, after: int, stages: list[Stage] = ONE_CPU) -> World:
    """A job that trains, and that is to have more workers in its last stage."""
    pool, last_layer, _ = stages[-1]
    world = World([*stages[:-1], (pool, last_layer, before)], 1).begin()
    world.step(3)
    world.stages = [*stages[:-1], (pool, last_layer, after)]
    world.core.set_plan(PlanDocument.from_json(plan_document(world.stages, 1)))
    world.sent.clear()
    return world


def test_a_newcomer_costs_no_step() -> None:
    world = _growing(2, 3)
    world.done("worker-0-0")
    world.join("worker-0-2")
    assert world.told(Generation) == []
    world.done("worker-0-1")
    assert world.commits == [0, 1, 2, 3]
    announced = world.last(Generation)
    assert (announced.committed, announced.restore) == (4, None)
    assert [sum(stage) for stage in announced.allocation.batches] == [32]
    assert len(announced.allocation.batches[0]) == 3
    world.ready()
    world.step()
    assert world.core.progress.committed == 5


def test_all_that_join_before_a_commit_form_one_generation() -> None:
    """Steps may take longer than the time between two that join: none would ever be committed."""
    world = _growing(1, 9)
    for index in range(1, 9):
        world.join(f"worker-0-{index}")
    assert world.told(Generation) == []
    world.step()
    assert world.told(Generation) == [*world.workers, "ps-0"]


def test_a_newcomer_does_not_interrupt_a_restore() -> None:
    """It takes part after the first commit that follows."""
    latest = Record(EVERY, "step-10")
    world = World(ONE_CPU, 1, latest=latest)
    world.join()
    world.core.member_lost("worker-0-1", "it died")
    assert world.last(Generation).restore == Restore(EVERY, latest.folder)
    world.sent.clear()
    world.join("worker-0-1")
    world.ready("worker-0-0", "ps-0")
    assert world.told(Generation) == []
    world.step()
    assert world.told(Generation) == ["worker-0-0", "worker-0-1", "ps-0"]
    assert world.last(Generation).restore is None


def test_a_checkpoint_that_is_due_at_that_commit_is_written_by_the_new_generation() -> None:
    world = _growing(1, 2)
    world.step(EVERY - 4)
    world.join("worker-0-1")
    world.step()
    assert world.told(Checkpoint) == []
    world.ready()
    assert (world.last(Checkpoint).step, world.told(Checkpoint)) == (EVERY, ["ps-0", "worker-0-0"])
    world.save()


def test_a_newcomer_waits_for_a_checkpoint_that_is_being_written() -> None:
    """Pods that come one by one must not abandon each checkpoint in turn."""
    world = _growing(1, 3)
    world.step(EVERY - 3)
    world.join("worker-0-1")
    world.step(2)
    world.join("worker-0-2")
    assert world.told(Generation) == []
    world.write()  # only the manifest is missing, which a generation does not stop
    assert world.told(Generation) == []
    world.step()
    assert world.told(Generation) == [*world.workers, "ps-0"]
    world.written()
    assert world.core.checkpoints.step == EVERY
    assert "CheckpointAbandoned" not in world.reasons()


def test_a_newcomer_does_not_wait_for_a_checkpoint_that_takes_longer_than_until_the_next() -> None:
    world = _growing(1, 2)
    world.step(EVERY - 3)
    world.join("worker-0-1")
    world.step(EVERY - 1)
    assert world.told(Generation) == []
    world.step()
    assert world.told(Generation) == [*world.workers, "ps-0"]
    assert "CheckpointAbandoned" in world.reasons()


def test_a_newcomer_does_not_wait_for_a_checkpoint_that_failed() -> None:
    world = _growing(1, 2)
    world.step(EVERY - 3)
    world.join("worker-0-1")
    world.write(error="disk full")
    world.step()
    assert world.told(Generation) == [*world.workers, "ps-0"]


@pytest.mark.parametrize("lost", ["killed", "silent", "replaced"])
def test_a_newcomer_that_is_lost_while_it_waits_changes_nothing(lost: str) -> None:
    world = _growing(1, 2)
    world.join("worker-0-1")
    if lost == "silent":
        world.pass_time(world.core.liveness.timeout_seconds + 1, "worker-0-0", "ps-0")
    elif lost == "killed":
        world.core.member_lost("worker-0-1", "it died")
    else:
        world.join("worker-0-1")
    assert world.reasons().count("MemberLost") == 1
    assert world.told(Generation) == []
    world.step()
    assert len(world.told(Generation)) == (3 if lost == "replaced" else 0)


def test_a_newcomer_takes_part_at_once_if_others_have_to_stop() -> None:
    world = _growing(2, 3)
    world.join("worker-0-2")
    world.core.member_lost("worker-0-0", "it died")
    assert world.told(Generation) == ["worker-0-1", "worker-0-2", "ps-0"]


def test_one_that_joins_again_while_it_waits_still_waits() -> None:
    world = _growing(1, 2)
    world.join("worker-0-1")
    world.incarnations["worker-0-1"] -= 1  # the same process
    world.join("worker-0-1", joins=2)
    assert world.told(Generation) == []
    world.step()
    assert world.told(Generation) == ["worker-0-0", "worker-0-1", "ps-0"]


def test_orders_are_for_those_that_take_part() -> None:
    world = _growing(2, 3)
    world.join("worker-0-2")
    world.core.set_allocation([[8, 24]])
    assert world.told(NewAllocation) == ["worker-0-0", "worker-0-1"]
    with pytest.raises(ValueError, match="allocation"):
        world.core.set_allocation([[8, 8, 16]])


def test_a_newcomer_after_the_last_step_only_ends() -> None:
    world = World(ONE_CPU, 1, checkpoint_every=1000).begin(evaluation=50)
    world.core.member_lost("worker-0-1", "it died")
    world.ready()
    world.step(TOTAL)
    world.join("worker-0-1", evaluation=50)
    world.save()
    assert world.told(Evaluate) == ["worker-0-0"]
    world.evaluated("worker-0-0")
    world.core.exported("/w/model")
    assert "worker-0-1" in world.told(Shutdown)


def test_what_a_newcomer_holds_is_worth_nothing_after_the_next_commit() -> None:
    """A replica that was cut off has the dense parameters of the last commit. Then the others make another one."""
    world = World(CARDS, 1).begin()
    world.step(3)
    world.core.member_lost("worker-1-1", "cut off")
    world.join("worker-1-1", lineage=1, version=3)
    member = world.core.membership.member("worker-1-1")
    assert member is not None
    assert member.holds_state
    world.ready("worker-0-0", "worker-1-0", "ps-0")
    world.step()
    assert not member.holds_state
    world.core.member_lost("worker-1-0", "it died")  # it was the only one that held them
    assert world.last(Generation).restore is not None


def test_what_a_newcomer_holds_counts_until_then() -> None:
    world = World(CARDS, 1).begin()
    world.step(3)
    world.core.member_lost("worker-1-1", "cut off")
    world.join("worker-1-1", lineage=1, version=3)
    world.core.member_lost("worker-1-0", "it died")
    assert world.last(Generation).restore is None


def test_rows_are_not_copied_ahead_while_a_newcomer_waits() -> None:
    """Its generation would end the copy."""
    world = _growing(1, 2)
    world.core.set_plan(PlanDocument.from_json(plan_document(world.stages, 2)))
    world.join("worker-0-1")
    world.join("ps-1")
    assert world.told(CopyAhead) == []
    world.step()
    world.ready()
    assert world.told(CopyAhead) == ["ps-0", "ps-1"]
