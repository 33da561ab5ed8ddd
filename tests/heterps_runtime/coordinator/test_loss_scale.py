"""The loss scale of a job that computes in float16: torch's own, and part of what is committed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from heterps_runtime.coordinator.loss_scale import LossScale
from heterps_runtime.wire.messages import Checkpoint, Commit
from tests.heterps_runtime.helpers.coordinator_world import EVERY, ONE_CPU, Record, World

TWO = [("cpu", 1, 1), ("cpu", 3, 2)]


def test_the_scale_is_that_of_torch() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer, scaler = torch.optim.SGD([parameter], 0.0), torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(1))  # it creates its scale
    rng, ours, scales = np.random.default_rng(5), LossScale(), set()
    for _ in range(9_000):
        finite = bool(rng.random() > 4e-4)
        parameter.grad = torch.ones(1) if finite else torch.full((1,), torch.inf)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        ours = ours.after(ours.scale, finite=finite)
        scales.add(ours.scale)
        assert ours.scale == scaler.get_scale()
    assert len(scales) > 3
    assert ours.skipped_steps > 1


def test_a_step_that_began_with_an_earlier_scale_does_not_lower_the_present_one() -> None:
    lowered = LossScale(finite_steps=7).after(65536.0, finite=False)
    assert lowered == LossScale(32768.0, 0, 1)
    again = lowered.after(65536.0, finite=False)
    assert again == LossScale(32768.0, 0, 2)
    assert again.after(32768.0, finite=False) == LossScale(16384.0, 0, 3)


def test_the_scale_has_ends() -> None:
    assert LossScale(1.0).after(1.0, finite=False).scale == 1.0
    assert not LossScale(1.0).can_shrink
    assert LossScale(2.0**32, 1999).after(2.0**32, finite=True) == LossScale(2.0**32, 0)


def test_a_stored_scale_goes_on_where_it_was() -> None:
    assert LossScale.from_json(LossScale(1024.0, 17, 3).to_json()) == LossScale(1024.0, 17, 3)
    assert LossScale.from_json(None) == LossScale()


def fp16() -> World:
    return World(TWO, precision="fp16").begin()


def commit(world: World, finite: bool = True, scale: float = 65536.0) -> Commit:
    """All workers report a step; only the last one has computed a loss that overflows."""
    step = world.core.progress.committed
    world.done("worker-0-0", step, 0.0, scale=scale)
    world.done("worker-1-0", step, scale=scale)
    world.done("worker-1-1", step, finite=finite, scale=scale)
    return world.last(Commit)


def test_a_step_that_one_worker_finds_not_finite_is_skipped_by_all_and_counts() -> None:
    world = fp16()
    assert commit(world) == Commit(1, 0, 32, skipped=False, loss_scale=65536.0)
    loss = world.core.progress.loss
    assert commit(world, finite=False) == Commit(1, 1, 32, skipped=True, loss_scale=32768.0)
    told = {name for name, message in world.sent if message == world.last(Commit)}
    assert told == {"ps-0", "worker-0-0", "worker-1-0", "worker-1-1"}
    assert (world.core.progress.committed, world.core.progress.samples) == (2, 64)
    assert world.core.progress.loss == loss
    assert world.reasons()[-1] == "StepSkipped"
    assert commit(world, scale=32768.0) == Commit(1, 2, 32, skipped=False, loss_scale=32768.0)


def test_at_the_least_scale_the_job_fails_as_in_other_precisions() -> None:
    world = fp16()
    for number in range(16):
        assert commit(world, finite=False, scale=65536.0 / 2**number).skipped
    before = world.last(Commit)
    commit(world, finite=False, scale=1.0)
    assert world.last(Commit) == before
    assert world.core.error is not None
    assert world.core.error["reason"] == "NaNGradient"
    assert "step 16 is not finite (seen by worker-1-1)" in world.core.error["message"]


def test_other_precisions_skip_nothing() -> None:
    world = World(ONE_CPU, precision="bf16").begin()
    world.done("worker-0-0", 0, finite=False)
    world.done("worker-0-1", 0)
    assert world.core.error is not None
    assert world.core.error["reason"] == "NaNGradient"


def test_a_checkpoint_has_the_scale_of_its_step_and_going_back_to_it_restores_it() -> None:
    world = fp16()
    commit(world, finite=False)
    for _ in range(EVERY - 1):
        commit(world, scale=32768.0)
    assert world.last(Checkpoint).step == EVERY
    world.write()
    _, progress = world.manifests[-1]
    assert progress["lossScale"] == {"scale": 32768.0, "finiteSteps": EVERY - 1, "skippedSteps": 1}
    assert progress["earlierSteps"] == -1
    record = Record(EVERY, "there", loss_scale=progress["lossScale"], earlier_steps=-1)
    world.core.manifest_written(record)
    commit(world, finite=False, scale=32768.0)
    assert world.core.progress.scale == 16384.0
    world.core.progress.rewind(EVERY, record)
    assert world.core.progress.loss_scale == LossScale(32768.0, EVERY - 1, 1)
    assert world.core.progress.earlier_steps == -1
    fresh = replace(record, loss_scale=None, earlier_steps=0)
    world.core.progress.resume(fresh)
    assert world.core.progress.loss_scale == LossScale()


@pytest.mark.parametrize("scale", [None, 0.0])
def test_workers_without_samples_know_no_scale(scale: float | None) -> None:
    world = fp16()
    world.done("worker-0-0", 0, scale=scale)
    world.done("worker-1-0", 0, finite=False, scale=65536.0)
    world.done("worker-1-1", 0, scale=scale)
    assert world.last(Commit).loss_scale == 32768.0
