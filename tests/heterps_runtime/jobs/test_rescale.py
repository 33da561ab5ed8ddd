"""A plan with another number of workers, while the job runs: those that stay go on, the model does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_PLAN, PlanDocument
from heterps_runtime.wire.messages import Generation, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, ONE_CPU, World
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    RING,
    Stage,
    ThreadedJob,
    configuration,
    plan_document,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

LAST = 10  # last layer of models.Flights


def rescale(world: World, *pods: int) -> None:
    world.stages = [(pool, last, n) for (pool, last, _), n in zip(world.stages, pods, strict=True)]
    world.core.set_plan(PlanDocument.from_json(plan_document(world.stages, world.servers)))


def test_a_worker_that_the_plan_drops_ends_and_the_others_go_on() -> None:
    world = World(ONE_CPU).begin()
    world.step(3)
    world.sent.clear()
    rescale(world, 1)
    assert world.told(Shutdown) == ["worker-0-1"]
    assert sorted(world.told(Generation)) == ["ps-0", "worker-0-0"]
    assert world.last(Generation).committed == 3
    assert world.last(Generation).restore is None
    assert world.last(Generation).allocation.batches == ((32,),)
    world.ready()
    world.step(2)
    assert world.commits == [0, 1, 2, 3, 4]
    assert "MemberLost" not in world.reasons()


def test_a_worker_that_the_plan_adds_takes_part_from_the_next_generation_on() -> None:
    world = World(ONE_CPU).begin()
    world.step(2)
    world.sent.clear()
    rescale(world, 3)
    assert not world.told(Generation), "present workers train until another joins"
    world.step(1)
    world.join("worker-0-2")
    assert not world.told(Generation), "and finish the step under way"
    world.step(1)
    assert world.last(Generation).committed == 4
    assert [len(stage) for stage in world.core.steps.allocation.batches] == [3]  # type: ignore[union-attr]
    world.ready()
    world.step(1)
    assert world.commits == [0, 1, 2, 3, 4]


def test_a_plan_that_shrinks_before_all_have_come_starts_with_those_that_are_there() -> None:
    world = World(ONE_CPU)
    world.join("ps-0", "worker-0-0")
    rescale(world, 1)
    world.ready()
    assert world.core.membership.running


def test_dropping_the_last_replica_that_holds_the_parameters_returns_to_the_checkpoint() -> None:
    world = World(CARDS).begin()
    world.step(10)
    world.save()
    world.step(2)
    world.core.member_lost("worker-1-0", "gone")
    world.join("worker-1-0")  # a newcomer: it holds nothing until its generation is ready
    rescale(world, 1, 1)
    restore = world.last(Generation).restore
    assert restore is not None
    assert restore.step == 10


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["card", RING])
def test_workers_come_and_go_and_the_model_is_the_same(pool: str, tmp_path: Path) -> None:
    steps = 150
    reference = train(RunConfig.from_json(configuration(tmp_path / "reference", steps=steps)), torch.float64)
    few: list[Stage] = [("cpu", 4, 1), (pool, LAST, 1)]
    many: list[Stage] = [("cpu", 4, 1), (pool, LAST, 2)]  # the newcomer is handed the dense parameters
    document = configuration(tmp_path / "job", steps=steps)
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = 2 * PATIENCE_SECONDS
    job = ThreadedJob(document)
    job.start(few, 1, hold_at=15)
    job.credentials.request("PUT", PATH_PLAN, plan_document(many, 1))
    newcomer = job.start_process("worker-1-1", many)
    job.wait_for_member("worker-1-1")
    job.hold_at(60)
    assert [len(stage) for stage in job.status()["allocation"]] == [1, 2]
    job.credentials.request("PUT", PATH_PLAN, plan_document(few, 1))
    assert newcomer.wait(timeout=PATIENCE_SECONDS) == 0
    job.hold()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [len(stage) for stage in status["allocation"]] == [1, 1]
    assert_same_model(trained_model(status), reference)
    assert status["samples"] == 300 * (steps // 10)
