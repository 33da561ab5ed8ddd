"""Jobs whose checkpoints have only what has changed give the same model, also if they go on from one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.checkpoint import CheckpointManifest, Storage, find_latest
from heterps_runtime.checkpoint.survey import survey
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from heterps_runtime.ps import shard
from heterps_runtime.store import snapshot
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, finish, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

STEPS, LAST, ROWS = 60, 10, 4000  # LAST: last layer of models.Flights
TWO: list[Stage] = [("cpu", 4, 2), ("cpu", LAST, 1)]


@pytest.fixture(autouse=True)
def increments_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "builds_on", lambda *_: True)
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("increments")


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains in one go."""
    return train(RunConfig.from_json(document(folder / "plain")), torch.float64)


def document(work: Path, mode: str = "Enabled") -> dict[str, Any]:
    made = configuration(work, rows=ROWS, steps=STEPS)
    made["job"]["spec"]["checkpoint"] |= {"everySteps": 3, "increments": mode}
    return made


def newest(made: dict[str, Any]) -> CheckpointManifest:
    manifest, _ = find_latest(Storage.open(RunConfig.from_json(made).checkpoint_path))
    assert manifest is not None
    return manifest


def has_increments(made: dict[str, Any]) -> bool:
    """Whether the newest checkpoint of a job that may be running has files of earlier ones."""
    manifest, _ = find_latest(Storage.open(RunConfig.from_json(made).checkpoint_path), contents=False)
    return manifest is not None and any(entry.folder for entry in manifest.files)


def test_more_servers_go_on_from_increments(folder: Path, plain: dict[str, Any]) -> None:
    made = document(folder / "servers")
    job = ThreadedJob(made)
    job.start(TWO, 2)
    job.wait(lambda _: has_increments(made))
    job.credentials.request("POST", PATH_STOP)
    job.wait()
    job.close()
    assert has_increments(made)
    status = finish(ThreadedJob(made), TWO, 3)
    assert_same_model(trained_model(status), plain)
    assert {entry.index for entry in newest(made).files_of("rows")} == {0, 1, 2}


def test_a_lost_server_comes_back_with_the_rows_of_all_increments(folder: Path, plain: dict[str, Any]) -> None:
    made = document(folder / "lost")
    job = ThreadedJob(made)
    process = job.start(TWO, 2, as_process="ps-1")
    assert process is not None
    job.wait(lambda _: has_increments(made))
    job.kill(process, "ps-1")
    job.start_server(1)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [event["reason"] for event in status["events"]].count("GenerationFormed") >= 2
    assert_same_model(trained_model(status), plain)


def test_a_damaged_file_that_several_checkpoints_need_takes_all_of_them_out(
    folder: Path, plain: dict[str, Any]
) -> None:
    made = document(folder / "damaged")
    job = ThreadedJob(made)
    job.start(TWO, 2)
    job.wait(lambda _: has_increments(made))
    job.credentials.request("POST", PATH_STOP)
    job.wait()
    job.close()
    storage = Storage.open(RunConfig.from_json(made).checkpoint_path)
    manifest = newest(made)
    shared = next(entry for entry in manifest.files_of("rows") if entry.folder)
    path = Path(storage.path(manifest.path_of(shared)))
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    needing = {one.folder for one in survey(storage) if one.manifest and shared.name in names_in(one.manifest, path)}
    assert len(needing) > 1
    status = finish(ThreadedJob(made), TWO, 2)
    assert status["phase"] == JobPhase.FAILED  # and has not begun anew
    for name in needing:
        assert f"{name}: it could not be restored: ps-{shared.index}: {shared.name} was" in status["error"]["message"]
    assert [event["reason"] for event in status["events"]].count("GenerationFormed") == 1
    contents[-1] ^= 1
    path.write_bytes(contents)  # repaired
    for name in needing:
        storage.delete(f"{name}/damaged.json")
    assert_same_model(trained_model(finish(ThreadedJob(made), TWO, 2)), plain)


def names_in(manifest: CheckpointManifest, path: Path) -> set[str]:
    """The files of a checkpoint that lie at a path."""
    return {entry.name for entry in manifest.files if str(path).endswith(manifest.path_of(entry))}


def test_increments_can_be_disabled(folder: Path, plain: dict[str, Any]) -> None:
    made = document(folder / "disabled", "Disabled")
    status = finish(ThreadedJob(made), TWO, 2)
    assert all(not entry.folder for entry in newest(made).files)
    assert_same_model(trained_model(status), plain)
