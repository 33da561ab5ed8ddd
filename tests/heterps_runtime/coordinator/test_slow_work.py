"""What is slow but moves is no hang, whatever it is; what stands still is one."""

from __future__ import annotations

from heterps_runtime.processes.work import TOTAL as WORK
from heterps_runtime.wire.messages import Generation, Pulse, Restore
from tests.heterps_runtime.helpers.coordinator_world import EVERY, HANG, ONE_CPU, TOTAL, Record, World


def _wait(world: World, seconds: float) -> None:
    assert world.core.membership.roster is not None
    world.pass_time(seconds, *world.core.membership.roster.present)


def work(world: World, name: str, amount: float) -> None:
    world.say(name, Pulse(0, "running", {WORK: amount}))


def test_a_last_checkpoint_that_is_slow_but_moves_is_no_hang_and_one_that_stands_still_is() -> None:
    world = World(ONE_CPU, checkpoint_every=1000).begin()
    world.step(TOTAL)
    for written in range(1, 10):
        _wait(world, HANG - 1)
        work(world, "ps-0", written * 1e6)
    assert world.core.phase == "Training"
    world.write_part("worker-0-0")
    _wait(world, HANG - 1)
    assert world.core.phase == "Training"
    for _ in range(3):
        work(world, "ps-0", 9e6)
        _wait(world, 1)
    assert world.core.error is not None
    assert world.core.error["reason"] == "Hang"
    assert f"the checkpoint of step {TOTAL} waits for ps-0" in world.core.error["message"]


def test_members_that_restore_a_large_checkpoint_are_no_hang() -> None:
    world = World(ONE_CPU, latest=Record(10, "step-10"))
    world.join()
    assert world.last(Generation).restore == Restore(10, "step-10")
    for read in range(1, 10):
        _wait(world, HANG - 1)
        work(world, "ps-0", read * 1e6)
    world.ready()
    assert world.core.membership.running


def test_samples_of_a_slow_step_are_progress() -> None:
    world = World(ONE_CPU).begin()
    for samples in range(1, 5):
        _wait(world, HANG - 1)
        work(world, "worker-0-1", samples)
    assert world.core.phase == "Training"


def test_a_process_that_was_replaced_counts_its_work_anew() -> None:
    world = World(ONE_CPU).begin()
    work(world, "worker-0-1", 1e9)
    world.core.member_lost("worker-0-1", "gone")
    world.join("worker-0-1")
    world.ready()
    work(world, "worker-0-1", 0)
    for samples in range(1, 5):
        _wait(world, HANG - 1)
        work(world, "worker-0-1", samples)
    assert world.core.phase == "Training"


def test_work_of_a_process_that_is_no_member_is_no_progress_of_the_job() -> None:
    world = World(ONE_CPU).begin()
    for read in range(1, 4):
        _wait(world, HANG / 2)
        work(world, "worker-0-7", read)
    assert world.core.error is not None
    assert world.core.error["reason"] == "Hang"


def test_verifying_and_exporting_are_slow_or_stand_still_like_everything_else() -> None:
    world = World(ONE_CPU, opens=False)
    world.join()
    assert world.told(Generation) == []
    for read in range(1, 5):
        _wait(world, HANG - 1)
        world.core.liveness.note_work("coordinator", read * 1e6)
    world.open()
    world.ready()
    world.step(EVERY)
    world.save()
    world.step(EVERY)
    world.save()
    world.step(TOTAL - 2 * EVERY)
    world.save()
    assert world.core.phase == "Exporting"
    _wait(world, HANG - 1)
    world.core.liveness.note_work("coordinator", 1e8)
    _wait(world, HANG - 1)
    assert world.core.phase == "Exporting"
    _wait(world, 2)
    assert world.core.error is not None
    assert "the model is not exported for" in world.core.error["message"]


def test_a_checkpoint_that_cannot_be_verified_is_a_hang() -> None:
    world = World(ONE_CPU, opens=False)
    world.join()
    _wait(world, HANG + 1)
    assert world.core.error is not None
    assert "the last checkpoint is not verified for" in world.core.error["message"]
