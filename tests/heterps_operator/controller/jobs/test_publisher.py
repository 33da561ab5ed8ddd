"""What is written of a job's status, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.job import JobSpec
from heterps_operator.controller.jobs import publisher as publishing
from heterps_operator.controller.jobs.publisher import Publisher
from heterps_operator.kubernetes.status import job_status
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.turn import Turn
from heterps_operator.state.values import Observed, ProcessSpec, ProcessView
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.job_world import World

Json = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_figures_that_change_all_the_time_are_told_now_and_then(world: World) -> None:
    publisher = Publisher(world.cluster, world.job)
    job = JobSpec.from_manifests(world.job, world.pools)

    def tell(rate: float, phase: str = "Running") -> None:
        status = Status(phase=Phase(phase), result={"samplesPerSecond": rate})
        status = status.with_condition("ThroughputMet", True, "AboveFloor", f"{rate:,.0f} samples/s", 1_700_000_000.0)
        publisher.publish(Turn(job, Observed(world.now, status), status, Bill(), ()), 1)

    tell(1000.0)
    for second in range(9):
        world.now += 1
        tell(1000.0 + second)
    assert len(world.writes()) == 1
    world.now += 1
    tell(2000.0)
    assert len(world.writes()) == 2
    tell(2000.0, "Stopping")
    assert len(world.writes()) == 3


def test_a_status_is_built_only_when_it_may_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, built = Publisher(world.cluster, world.job), []
    job = JobSpec.from_manifests(world.job, world.pools)

    def building(*arguments: Any, **options: Any) -> Json:
        built.append(world.now)
        return job_status(*arguments, **options)

    def tell(rate: float, *, incarnation: int = 1, workers: int = 0, ready: int = 0) -> Json:
        members = [{"name": f"worker-0-{i}", "state": "ready" if i < ready else "joined"} for i in range(2)]
        status = Status(phase=Phase.RUNNING, incarnation=incarnation, result={"loss": rate, "members": members})
        processes = tuple(ProcessView(ProcessSpec(f"worker-0-{i}", Role.WORKER), 0.0) for i in range(workers))
        publisher.publish(Turn(job, Observed(world.now, status, processes), status, Bill(), ()), 1)
        return world.status

    monkeypatch.setattr(publishing, "job_status", building)
    tell(1.0)
    for second in range(9):
        world.now += 1
        tell(2.0 + second)
    assert len(built) == 1, "figures are not due"
    assert tell(20.0, workers=2)["workers"]["current"] == 2
    tell(30.0, workers=2)
    assert len(built) == 2
    tell(30.0, workers=2, incarnation=2)  # of which the status has nothing
    tell(40.0, workers=2, incarnation=2)
    assert len(built) == 3
    world.now += 10
    assert tell(50.0, workers=2, incarnation=2)["progress"] == {"loss": "50"}
    assert len(built) == 4

    world.cluster.active_jobs = 100  # so that details wait for two seconds
    world.now += 1
    before = len(built)
    tell(50.0, workers=1, incarnation=2)
    tell(50.0, workers=1, incarnation=2)
    assert len(built) == before + 2, "what has changed is not written yet"
    assert world.status["workers"]["current"] == 2
    world.now += 2
    assert tell(50.0, workers=1, incarnation=2)["workers"]["current"] == 1


def test_after_a_refusal_the_status_of_the_job_comes_back(world: World) -> None:
    publisher = Publisher(world.cluster, world.job)
    job = JobSpec.from_manifests(world.job, world.pools)
    status = Status(phase=Phase.RUNNING)
    turn = Turn(job, Observed(world.now, status), status, Bill(), ())
    publisher.publish(turn, 1)
    publisher.refuse(status, Bill(), "PoolNotFound", "there is no DevicePool gpu", 1)
    assert world.condition("Planned")["reason"] == "PoolNotFound"
    publisher.publish(turn, 1)
    assert world.condition("Planned")["reason"] == "NotYetKnown"
