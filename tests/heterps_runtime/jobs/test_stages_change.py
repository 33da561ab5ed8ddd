"""A plan with other stages, while the job runs: work goes on from the state that the servers have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_PLAN, PlanDocument
from heterps_runtime.wire.messages import Generation, Shutdown
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.coordinator_world import CARDS, ONE_CPU, World
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    configuration,
    counting_configuration,
    plan_document,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

LAST, STEPS = 10, 60  # LAST: last layer of models.Flights
TWO: list[Stage] = [("cpu", 4, 2), ("cpu", LAST, 1)]
THREE: list[Stage] = [("cpu", 3, 1), ("cpu", 7, 2), ("cpu", LAST, 1)]
SPLIT: list[Stage] = [("cpu", 0, 2), ("cpu", 1, 1)]


def submit(world: World, stages: list[Stage]) -> None:
    world.stages = stages
    world.core.set_plan(PlanDocument.from_json(plan_document(stages, world.servers)))


def workers_of(stages: list[Stage]) -> list[str]:
    return [f"worker-{i}-{w}" for i, (_, _, number) in enumerate(stages) for w in range(number)]


def test_the_members_train_on_until_all_workers_of_the_new_stages_are_there() -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    world.sent.clear()
    submit(world, [("cpu", 0, 1), ("cpu", 1, 2)])
    world.join("worker-1-0")
    world.step(2)
    assert world.told(Generation) == world.told(Shutdown) == []
    world.join("worker-1-1")
    assert world.told(Shutdown) == ["worker-0-1"]
    assert sorted(world.told(Generation)) == ["ps-0", "ps-1", "worker-0-0", "worker-1-0", "worker-1-1"]
    announced = world.last(Generation)
    assert (announced.committed, announced.restore) == (5, None)
    assert announced.allocation.batches == ((32,), (16, 16))
    world.ready()
    world.step(2)
    assert world.commits == list(range(7))
    assert "StagesChanged" in world.reasons()


def test_fewer_stages_need_no_new_worker() -> None:
    world = World(SPLIT).begin()
    world.step(3)
    submit(world, [("cpu", 1, 2)])
    assert world.told(Shutdown) == ["worker-1-0"]
    world.ready()
    world.step()
    assert world.core.progress.committed == 4


def test_a_worker_of_the_next_plan_that_is_lost_disturbs_no_step() -> None:
    world = World(ONE_CPU).begin()
    world.step()
    submit(world, [("cpu", 0, 1), ("cpu", 1, 2)])
    world.join("worker-1-0")
    world.core.member_lost("worker-1-0", "it died")
    world.join("worker-1-1")
    world.join("worker-1-1")  # a new process in its place
    world.step()
    assert world.core.membership.generation == 1
    assert world.core.progress.committed == 2
    world.core.member_lost("worker-0-1", "it died")
    world.ready()
    world.join("worker-1-0")
    assert world.last(Generation).committed == 2, "all of the next plan are there, the one that was lost is not in it"
    assert len(world.last(Generation).plan.stages) == 2


def test_a_later_plan_takes_the_place_of_the_one_that_waits() -> None:
    world = World(ONE_CPU).begin()
    submit(world, [("cpu", 0, 1), ("cpu", 1, 2)])
    world.join("worker-1-0")
    submit(world, ONE_CPU)
    assert world.told(Shutdown) == ["worker-1-0"]
    world.step()
    assert world.core.membership.generation == 1


def test_a_plan_changes_before_all_have_come() -> None:
    world = World(ONE_CPU)
    world.join("ps-0", "worker-0-0")
    submit(world, [("cpu", 0, 1), ("cpu", 1, 1)])
    world.join("worker-1-0")
    world.ready()
    assert world.core.phase == "Training"
    assert len(world.last(Generation).plan.stages) == 2


@pytest.mark.parametrize(
    ("stages", "servers", "text"),
    [
        ([("card", 0, 1), ("card", 1, 2)], 1, "plan.stages[0].pool: must stay cpu, is card, while the job runs"),
        ([("cpu", 1, 1), ("card", 2, 2)], 1, "plan.stages: must stay those of before while the job runs"),
    ],
)
def test_what_cannot_change_is_named(stages: list[Stage], servers: int, text: str) -> None:
    world = World(CARDS).begin()
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        world.core.set_plan(PlanDocument.from_json(plan_document(stages, servers)))
    world.step()
    assert world.commits == [0]


def test_the_exchange_of_a_stage_stays_while_the_job_runs() -> None:
    world = World(ONE_CPU).begin()
    document = plan_document(ONE_CPU, 1)
    document["stages"][0]["denseExchange"] = "AllReduce"
    with pytest.raises(ValueError, match=r"^plan\.stages: must stay those of before"):
        world.core.set_plan(PlanDocument.from_json(document))
    world.step()
    assert world.commits == [0]


def change(job: ThreadedJob, before: list[Stage], after: list[Stage], servers: int) -> None:
    """Submit a plan with other stages to a job that is held, and start its new workers as processes."""
    job.credentials.request("PUT", PATH_PLAN, plan_document(after, servers))
    new = set(workers_of(after)) - set(workers_of(before))
    for name in new:
        job.start_process(name, after)
    job.wait(lambda status: len(status["stages"]) == len(after))


@pytest.mark.slow
def test_the_model_is_the_same_with_more_and_fewer_stages(tmp_path: Path) -> None:
    """With Adam's state and pieces of dense parameters, and no checkpoint to go back to."""
    document = configuration(tmp_path / "job", steps=STEPS)
    document["job"]["spec"]["checkpoint"]["everySteps"] = 1000
    document["job"]["spec"]["model"]["arguments"] = {"hidden": [256, 192]}
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = 2 * PATIENCE_SECONDS
    expected = train(RunConfig.from_json(document), torch.float64)
    job = ThreadedJob(document)
    job.start(TWO, 2, hold_at=10)
    change(job, TWO, THREE, 2)
    job.hold_at(30)
    change(job, THREE, [("cpu", LAST, 1)], 2)
    job.hold()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    reasons = [event["reason"] for event in status["events"]]
    assert reasons.count("StagesChanged") == 2
    assert "RolledBack" not in reasons
    assert_same_model(trained_model(status), expected)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["hybrid", "async"])
def test_every_sample_counts_once_across_a_change_of_stages(consistency: str, tmp_path: Path) -> None:
    samples, batch = 320, 32
    document: dict[str, Any] = counting_configuration(tmp_path / "job", consistency, samples, batch, steps=STEPS)
    job = ThreadedJob(document)
    before: list[Stage] = [("cpu", 2, 2)]
    job.start(before, 2, hold_at=10)
    change(job, before, [("cpu", 0, 1), ("cpu", 2, 1)], 2)
    job.hold()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert_every_sample_counted(trained_model(status), batch, seed=3, steps=STEPS)
