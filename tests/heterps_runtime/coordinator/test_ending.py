"""The coordinator's decisions, message by message: checkpoints, stops and the end of a job."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import PlanDocument
from heterps_runtime.coordinator.evaluation import Evaluation
from heterps_runtime.wire.messages import Checkpoint, Evaluate, Evaluated, Generation, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import BATCH, CARDS, EVERY, ONE_CPU, ROWS, TOTAL, Record, World
from tests.heterps_runtime.helpers.jobs import plan_document

# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_written_by_all_servers_and_one_worker_per_stage_while_training_goes_on() -> None:
    world = World(CARDS, servers=2).begin()
    world.step(EVERY)
    assert world.told(Checkpoint) == ["ps-0", "ps-1", "worker-0-0", "worker-1-0"]
    world.step(2)
    world.save()
    assert world.core.checkpoints.latest == Record(10, "step-10-1")
    assert world.core.progress.committed == 12


def test_the_manifest_of_a_checkpoint_tells_the_progress_at_its_step() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.step(2)
    world.save()
    barrier, progress = world.manifests[-1]
    assert barrier.step == progress["step"] == EVERY
    assert progress["samples"] == EVERY * BATCH - (BATCH - ROWS % BATCH)


def test_a_checkpoint_that_cannot_be_written_does_not_stop_training() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.save()
    world.step(EVERY)
    world.write(error="disk full")
    assert world.core.phase == "Training"
    assert world.core.checkpoints.failures == 1
    assert world.core.checkpoints.latest == Record(10, "step-10-1")
    assert world.discarded == ["step-20-2"]
    assert "worker-0-0: disk full; checkpoint of step 10 stays" in world.core.journal.events()[-1]["message"]
    assert world.last(Checkpoint).folder == "step-20-2"  # it is not tried again before the next one is due
    world.step()
    assert world.core.progress.committed == 21


def test_a_last_checkpoint_that_cannot_be_written_fails_the_job() -> None:
    world = World(ONE_CPU, checkpoint_every=1000).begin()
    world.step(TOTAL)
    world.write(error="disk full")
    assert world.core.phase == "Failed"
    assert world.core.error is not None
    assert "could not be saved: worker-0-0: disk full" in world.core.error["message"]


def test_an_earlier_checkpoint_failing_after_the_last_step_still_leaves_the_last_one_to_be_written() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.save()
    world.step(TOTAL - EVERY)
    assert world.last(Checkpoint).step == 20
    world.write(error="disk full")
    assert world.last(Checkpoint).step == TOTAL
    world.save()
    assert world.core.phase == "Exporting"
    assert world.exports == [TOTAL]


def test_a_checkpoint_asked_for_before_the_first_step_is_written_at_the_first_commit() -> None:
    world = World(ONE_CPU)
    world.core.checkpoints.requested = True
    world.begin()
    assert world.core.phase == "Training"
    world.step()
    assert world.last(Checkpoint).step == 1
    assert world.core.checkpoints.time is None
    world.save()
    assert world.core.checkpoints.time == 1e9 + world.now


def test_a_loss_during_a_checkpoint_abandons_it_but_not_one_that_only_lacks_its_manifest() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.core.member_lost("worker-0-1", "gone")
    assert world.discarded == ["step-10-1"]
    world.ready()
    world.save()  # begun again by the new generation
    world.step(EVERY)
    world.write()  # not again after this: it is as good as valid
    world.join("worker-0-1")
    assert world.discarded == ["step-10-1"]
    world.written()
    assert world.core.checkpoints.latest is not None
    assert world.core.checkpoints.latest.step == 20


@pytest.mark.parametrize("asked", [False, True])
def test_an_abandoned_checkpoint_is_begun_again_at_once(*, asked: bool) -> None:
    """It was due, or asked for, at an earlier commit; the next one may be due only after hours."""
    world = World(ONE_CPU).begin()
    if asked:
        world.step(2)
        world.core.checkpoints.requested = True
    world.step(1 if asked else EVERY)
    world.step(2)
    world.core.member_lost("worker-0-1", "gone")
    world.ready()
    assert world.last(Checkpoint).step == (5 if asked else EVERY + 2)
    world.save()
    world.step()
    assert world.told(Checkpoint).count("ps-0") == 2


def test_after_going_back_to_a_checkpoint_none_is_begun_again() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.save()
    world.step(EVERY)
    world.core.member_lost("ps-0", "gone")  # abandons the one of step 20
    world.join("ps-0")
    world.ready()
    world.step(2)
    assert world.told(Checkpoint).count("worker-0-0") == 2
    assert world.core.checkpoints.step == EVERY


def test_a_server_lost_while_the_manifest_is_written_waits_for_it_before_going_back() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.write()
    world.step(2)
    generation = world.core.membership.generation
    world.core.member_lost("ps-0", "gone")
    world.join("ps-0")
    assert world.core.membership.generation == generation
    world.written()
    restore = world.last(Generation).restore
    assert restore is not None
    assert restore.step == EVERY
    assert world.last(Generation).generation == generation + 1


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_stop_writes_a_checkpoint_of_the_last_commit_first() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    world.core.request_stop()
    assert world.last(Checkpoint).step == 3
    world.step()  # whatever is still reported is not committed
    assert world.commits == [0, 1, 2]
    world.save()
    assert world.core.phase == "Stopped"
    assert sorted(world.told(Shutdown)) == sorted(world.names)


def test_a_stop_during_a_checkpoint_writes_another_one_of_the_steps_since() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY + 2)
    world.core.request_stop()
    world.save()
    assert world.core.phase == "Training"
    assert world.last(Checkpoint).step == EVERY + 2
    world.save()
    assert world.core.phase == "Stopped"
    assert world.core.checkpoints.latest is not None
    assert world.core.checkpoints.latest.step == EVERY + 2


@pytest.mark.parametrize("older_fails", [True, False])
def test_a_stop_whose_checkpoint_fails_still_stops(older_fails: bool) -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY + 2 * older_fails)
    world.core.request_stop()
    world.write(error="disk full")
    if older_fails:
        world.write(error="disk full")
    assert world.core.phase == "Stopped"
    assert world.core.checkpoints.failures == 1 + older_fails


def test_a_stop_before_training_needs_no_checkpoint() -> None:
    world = World(ONE_CPU)
    world.join("worker-0-0")
    world.core.request_stop()
    assert world.core.phase == "Stopped"
    assert world.told(Shutdown) == ["worker-0-0"]
    world.join("ps-0")
    assert world.told(Shutdown) == ["worker-0-0", "ps-0"]
    with pytest.raises(ValueError, match="the job is over"):
        world.core.set_plan(PlanDocument.from_json(plan_document(ONE_CPU, 1)))


def test_a_stop_while_members_set_up_again_still_saves_what_was_trained() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    world.core.member_lost("worker-0-1", "gone")
    world.core.request_stop()
    assert world.core.phase == "Training"
    world.ready()
    world.save()
    assert world.core.phase == "Stopped"
    assert world.core.checkpoints.latest is not None
    assert world.core.checkpoints.latest.step == 3


def test_a_stop_does_not_wait_for_the_replacement_of_a_lost_process() -> None:
    world = World([("cpu", 0, 1)]).begin()
    world.step(3)
    world.core.request_stop()
    world.core.member_lost("worker-0-0", "gone")
    assert world.core.phase == "Stopped"


def test_a_failed_job_stays_failed_whatever_comes_in_late() -> None:
    world = World(ONE_CPU).begin()
    world.step(EVERY)
    world.core.request_stop()
    world.write()
    world.core.fail("Budget", "spent")
    world.written()
    world.core.checkpoint_failed("step-10-1", "late")
    world.core.exported("/model")
    world.core.request_stop()
    assert world.core.phase == "Failed"
    assert world.core.error == {"reason": "Budget", "message": "spent"}


def test_after_the_last_step_the_model_is_saved_evaluated_and_exported() -> None:
    world = World(CARDS, checkpoint_every=1000).begin(evaluation=50)
    world.step(TOTAL)
    assert world.core.phase == "Training"
    world.save()
    assert world.core.phase == "Evaluating"
    assert world.last(Evaluate).rows == 50
    world.evaluated("worker-0-0")
    world.evaluated("worker-1-0")
    assert world.core.phase == "Evaluating"
    world.evaluated("worker-1-1")
    assert world.core.evaluation.results == {"auc": 2.0}
    assert world.exports == [TOTAL]
    world.core.exported("/model")
    assert world.core.phase == "Succeeded"
    assert world.core.model_path == "/model"


def test_an_evaluation_may_have_undefined_figures() -> None:
    evaluation = Evaluation(lambda messages: {"samples": 4, "loss": 0.5, "auc": None})
    evaluation.begin(["worker-0-0"])
    assert evaluation.take("worker-0-0", Evaluated(1, {}))
    assert evaluation.describe() == "samples 4, loss 0.5"


def test_a_loss_during_evaluation_begins_it_again() -> None:
    world = World(CARDS, checkpoint_every=1000).begin(evaluation=50)
    world.step(TOTAL)
    world.save()
    world.evaluated("worker-1-0")
    world.core.member_lost("worker-1-1", "gone")
    world.ready()
    assert world.core.evaluation.results is None
    assert len(world.told(Evaluate)) == 3 + 2
    world.evaluated("worker-1-0")
    assert world.core.evaluation.results == {"auc": 1.0}


def test_a_job_that_was_stopped_after_its_last_step_only_evaluates_and_exports() -> None:
    world = World(ONE_CPU, latest=Record(TOTAL, "step-24"))
    world.join()
    world.ready()
    assert world.commits == []
    assert world.exports == [TOTAL]
