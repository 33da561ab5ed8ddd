"""Nothing begins before the checkpoints are this run's and the newest one is verified."""

from __future__ import annotations

import pytest

from heterps_runtime.checkpoint import StorageError
from heterps_runtime.contract import PATH_PLAN
from heterps_runtime.wire.messages import Generation, Restore
from tests.heterps_runtime.helpers.coordinator_world import BATCH, ONE_CPU, ROWS, Record, World
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, ThreadedJob, configuration, plan_document

LATEST = Record(10, "step-10")


@pytest.mark.parametrize("latest", [None, LATEST])
def test_members_wait_until_the_checkpoints_are_opened(latest: Record | None) -> None:
    world = World(ONE_CPU, latest=latest, opens=False)
    world.join()
    assert world.told(Generation) == []
    assert world.core.resumed_from is None
    world.open()
    step = latest.step if latest else 0
    assert world.last(Generation).restore == Restore(step, latest.folder if latest else None)
    assert world.core.progress.committed == step
    assert world.core.resumed_from == (step or None)


def test_checkpoints_that_are_opened_first_wait_for_the_members() -> None:
    world = World(ONE_CPU, latest=LATEST, opens=False)
    world.open()
    assert world.told(Generation) == []
    world.begin()
    assert world.core.progress.committed == 10


@pytest.mark.parametrize("opened_first", [True, False])
def test_data_that_differ_from_the_checkpoint_are_refused_in_either_order(opened_first: bool) -> None:
    world = World(ONE_CPU, latest=LATEST, opens=False)
    if opened_first:
        world.open()
    world.join(rows=ROWS + BATCH)
    if not opened_first:
        assert world.core.error is None
        world.open()
    assert world.core.error is not None
    assert world.core.error["reason"] == "DataChanged"


def test_a_job_that_is_stopped_meanwhile_does_not_begin() -> None:
    world = World(ONE_CPU, latest=LATEST, opens=False)
    world.join()
    world.core.request_stop()
    assert world.core.phase == "Stopped"
    world.open()
    assert world.told(Generation) == []
    assert world.core.phase == "Stopped"


def test_a_storage_that_cannot_be_read_ends_the_coordinator_for_the_controller_to_try_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("list", "s3://bucket/owners", "connection refused")

    monkeypatch.setattr("heterps_runtime.coordinator.files.take_over", refuse)
    job = ThreadedJob(configuration(tmp_path_factory.mktemp("unreadable") / "work"))
    job.credentials.request("PUT", PATH_PLAN, plan_document(ONE_CPU, 1))
    assert isinstance(job.failure(PATIENCE_SECONDS), StorageError)
