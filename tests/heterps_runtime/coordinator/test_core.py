"""The coordinator's decisions, message by message: steps and members."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from heterps_runtime.wire.messages import Commit, Done, Failed, Generation, Go, Restore, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import BATCH, CARDS, EVERY, ONE_CPU, ROWS, Record, World

# --- start and steps --------------------------------------------------------------------------------------------------


def test_training_starts_when_everybody_is_there_and_set_up() -> None:
    world = World(ONE_CPU)
    world.join("worker-0-0", "ps-0")
    assert world.core.phase == "Starting"
    assert not world.told(Generation)
    world.join("worker-0-1")
    assert sorted(world.told(Generation)) == sorted(world.names)
    world.ready("worker-0-0", "ps-0")
    assert not world.told(Go)
    world.ready("worker-0-1")
    assert sorted(world.told(Go)) == sorted(world.names)
    assert world.core.phase == "Training"


def test_a_step_is_committed_once_when_every_worker_has_reported_it() -> None:
    world = World(ONE_CPU).begin()
    world.done("worker-0-0")
    world.done("worker-0-0")  # said twice
    assert world.commits == []
    world.done("worker-0-1")
    assert world.commits == [0]
    assert sorted(world.told(Commit)) == sorted(world.names)
    world.done("worker-0-1", step=0)  # late
    world.done("worker-0-0", step=0)
    assert world.commits == [0]
    assert world.core.progress.samples == BATCH
    assert world.core.progress.loss == pytest.approx(2 / BATCH)


def test_reports_of_strangers_old_processes_and_old_generations_do_not_count() -> None:
    world = World(ONE_CPU).begin()
    world.done("worker-0-0")
    report = Done(world.core.membership.generation, 0, 1.0, True, {})
    world.core.handle("worker-7-7", "", report)
    world.core.handle("worker-0-1", "of another process", report)
    world.core.handle("worker-0-1", "1", replace(report, generation=0))
    assert world.commits == []
    world.done("worker-0-1")
    assert world.commits == [0]


def test_steps_reported_ahead_are_committed_in_order() -> None:
    world = World(ONE_CPU, consistency="async", max_staleness=4).begin()
    for step in (2, 1, 0):
        world.done("worker-0-0", step)
    for step in (1, 2):
        world.done("worker-0-1", step)
    assert world.commits == []
    world.done("worker-0-1", 0)
    assert world.commits == [0, 1, 2]


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"loss": math.nan}, "NaNLoss"), ({"loss": math.inf}, "NaNLoss"), ({"finite": False}, "NaNGradient")],
)
def test_a_step_that_is_not_finite_ends_the_job_and_is_not_committed(report: dict[str, Any], reason: str) -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.save()
    world.step(2)
    world.done("worker-0-0")
    world.done("worker-0-1", **report)
    assert world.commits == list(range(12))
    assert world.core.phase == "Failed"
    assert world.core.error is not None
    assert world.core.error["reason"] == reason
    assert "step 12 is not finite (seen by worker-0-1)" in world.core.error["message"]
    assert "the last good checkpoint is step 10" in world.core.error["message"]
    assert sorted(world.told(Shutdown)) == sorted(world.names)


# --- members come and go ----------------------------------------------------------------------------------------------


def test_a_lost_worker_costs_the_uncommitted_step_and_survivors_go_on() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    world.done("worker-0-0")
    world.core.member_lost("worker-0-1", "exit code -9")
    announced = world.last(Generation)
    assert (announced.committed, announced.restore) == (3, None)
    assert world.told(Generation)[-2:] == ["worker-0-0", "ps-0"]
    assert announced.allocation.batches == ((BATCH,),)
    world.ready()
    world.step()
    assert world.commits == [0, 1, 2, 3]
    world.join("worker-0-1")
    world.step()
    assert world.last(Generation).allocation.batches == ((16, 16),)
    world.ready()
    world.step()
    assert world.commits == [0, 1, 2, 3, 4, 5]
    assert world.reasons().count("MemberLost") == 1


def test_reports_of_a_generation_that_is_over_do_not_commit_its_step() -> None:
    world = World(ONE_CPU).begin()
    old = world.core.membership.generation
    world.core.member_lost("worker-0-1", "gone")
    world.ready()
    world.say("worker-0-0", Done(old, 0, 1.0, True, {}))
    assert world.commits == []


def test_a_new_process_under_the_same_name_replaces_the_old_one() -> None:
    world = World(ONE_CPU).begin()
    world.step()
    world.join("worker-0-1")
    world.ready()
    world.step()
    assert world.commits == [0, 1]
    assert "MemberLost" in world.reasons()


def test_readiness_of_those_who_are_left_does_not_start_an_incomplete_plan() -> None:
    world = World([("cpu", 0, 1)])
    world.join()
    world.core.member_lost("worker-0-0", "gone")
    world.ready()
    assert not world.core.membership.running
    assert not world.told(Go)
    world.join("worker-0-0")
    world.ready()
    assert world.core.membership.running


def test_a_lost_server_takes_everybody_back_to_the_checkpoint() -> None:
    world = World(ONE_CPU, servers=2).begin()
    world.step(EVERY)
    world.save()
    world.step(3)
    world.core.member_lost("ps-1", "gone")
    assert not world.core.membership.running
    world.join("ps-1")
    announced = world.last(Generation)
    assert announced.committed == EVERY
    assert announced.restore is not None
    assert announced.restore.step == EVERY
    assert announced.restore.folder is not None
    assert announced.restore.folder.startswith("step-10")
    world.ready()
    world.step()
    assert world.commits == [*range(13), 10]
    assert world.core.progress.samples == world.core.progress.committed * BATCH - (BATCH - ROWS % BATCH)
    assert "RolledBack" in world.reasons()


def test_a_server_lost_before_any_checkpoint_takes_everybody_back_to_the_beginning() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    world.core.member_lost("ps-0", "gone")
    world.join("ps-0")
    assert world.last(Generation).restore == Restore(0, None)
    assert world.last(Generation).committed == 0
    assert world.core.progress.samples == 0


def test_one_of_two_replicas_may_be_lost_without_going_back_but_not_the_last() -> None:
    world = World(CARDS).begin()
    world.step(3)
    world.core.member_lost("worker-1-0", "gone")
    assert world.last(Generation).restore is None
    world.ready()
    world.step()
    world.core.member_lost("worker-1-1", "gone")
    world.join("worker-1-0")
    assert world.last(Generation).restore == Restore(0, None)


def test_a_newcomer_that_was_never_ready_holds_no_parameters_to_go_on_from() -> None:
    world = World(CARDS).begin()
    world.step(3)
    world.core.member_lost("worker-1-0", "gone")
    world.ready()
    world.join("worker-1-0")  # announced, but the survivor is lost before it has handed on its parameters
    world.core.member_lost("worker-1-1", "gone too")
    assert world.last(Generation).restore == Restore(0, None)


def test_a_loss_while_members_set_up_does_not_forget_that_they_must_go_back() -> None:
    world = World(ONE_CPU).begin()
    world.step(2)
    world.core.member_lost("ps-0", "gone")
    world.join("ps-0")
    world.core.member_lost("worker-0-1", "gone")
    world.core.member_lost("ps-0", "gone again")
    world.join("ps-0")
    assert world.last(Generation).restore == Restore(0, None)


def test_data_that_differ_between_workers_or_from_the_checkpoint_fail_the_job() -> None:
    world = World(ONE_CPU)
    world.join("worker-0-0")
    world.join("worker-0-1", rows=ROWS + 1)
    assert world.core.error is not None
    assert world.core.error["reason"] == "DataChanged"
    assert sorted(world.told(Shutdown)) == ["worker-0-0", "worker-0-1"]
    resumed = World(ONE_CPU, latest=Record(10, "step-10"))
    resumed.join("worker-0-0", rows=ROWS - 1)
    assert resumed.core.error is not None
    assert f"{ROWS} rows according to the checkpoint, but {ROWS - 1} according to" in resumed.core.error["message"]
    early = World(ONE_CPU)
    early.join("worker-0-0", rows=ROWS - 1)
    early.core.checkpoints_opened(Record(10, "step-10", samples=100, num_rows=ROWS))
    assert early.core.error == resumed.core.error, "whichever is known first"


def test_wrong_input_ends_the_job_and_other_failures_are_only_noted() -> None:
    world = World(ONE_CPU)
    world.say("worker-0-0", Failed("OSError", "disk", permanent=False))
    assert world.core.phase == "Starting"
    world.say("worker-0-1", Failed("IntakeError", "m:x", permanent=True))
    assert world.core.error == {"reason": "IntakeError", "message": "worker-0-1: m:x"}
