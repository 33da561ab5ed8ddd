"""A job that was stopped goes on from its checkpoint, also with another plan, and ends with the same model."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.checkpoint import DamagedError
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_CHECKPOINT, PATH_STOP, JobPhase
from heterps_runtime.coordinator.checkpoints import Checkpoints
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.errors import ProtocolError, UserError
from heterps_runtime.ps.server import ParameterServer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.wire.messages import Damaged, Generation
from tests.heterps_runtime.helpers.jobs import (
    RING,
    TOKEN,
    Stage,
    ThreadedJob,
    configuration,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

STEPS, LAST = 80, 10  # LAST: last layer of models.Flights
ONE: list[Stage] = [("cpu", LAST, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains in one go."""
    return train(RunConfig.from_json(configuration(folder / "reference", steps=STEPS)), torch.float64)


def _run(document: dict[str, Any], stages: list[Stage], servers: int, stop_after: int | None = None) -> dict[str, Any]:
    """Run a job to its end, or until some steps are committed and then stop it."""
    job = ThreadedJob(document)
    job.start(stages, servers, hold_at=stop_after)
    if stop_after is not None:
        job.credentials.request("POST", PATH_STOP)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    return status


def _checkpoints(document: dict[str, Any]) -> list[Path]:
    return sorted(p.parent for p in Path(document["workDirectory"], "checkpoints").glob("*/manifest.json"))


PLANS: list[tuple[list[Stage], int, list[Stage], int]] = [
    ([("cpu", 4, 1), ("card", LAST, 2)], 1, [("cpu", LAST, 2)], 3),
    ([(RING, LAST, 2)], 2, [("cpu", LAST, 2)], 1),
    ([("cpu", 6, 2), ("cpu", LAST, 1)], 4, [(RING, 4, 1), (RING, LAST, 3)], 1),
    ([("cpu", 6, 2), ("cpu", LAST, 1)], 3, [("card", 4, 1), ("card", LAST, 2)], 1),
]


@pytest.mark.parametrize(("before", "servers_before", "after", "servers_after"), PLANS)
def test_another_plan_goes_on_where_the_first_was_stopped(
    before: list[Stage],
    servers_before: int,
    after: list[Stage],
    servers_after: int,
    folder: Path,
    uninterrupted: dict[str, Any],
) -> None:
    document = configuration(folder / f"plans-{servers_before}", steps=STEPS)
    stopped = _run(document, before, servers_before, stop_after=13)
    assert stopped["phase"] == JobPhase.STOPPED
    step = stopped["committedSteps"]
    assert 13 <= step < STEPS
    assert stopped["checkpoint"]["lastStep"] == step
    status = _run(document, after, servers_after)
    assert status["resumedFromStep"] == step
    assert status["samples"] == 300 * (STEPS // 10)
    assert_same_model(trained_model(status), uninterrupted)


def test_parameters_may_have_the_names_of_optimizers_state(folder: Path) -> None:
    """They are restored from a checkpoint, by another number of servers."""
    document = configuration(folder / "names", "awkwardly_named", steps=40)
    assert _run(document, [("cpu", 3, 1)], 1, stop_after=13)["phase"] == JobPhase.STOPPED
    trained = trained_model(_run(document, [("cpu", 3, 1)], 2))
    assert {"step", "exp_avg"} < trained.keys()
    assert_same_model(trained, train(RunConfig.from_json(document), torch.float64))


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _change(path: Path) -> None:
    """Change the last value of a file, which stays as long as it was."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda c: _cut_off(next(c.glob("rows-*.safetensors"))), id="rows are cut off"),
        pytest.param(lambda c: _change(next(c.glob("rows-*.safetensors"))), id="a row is changed"),
        pytest.param(lambda c: _cut_off(c / "manifest.json"), id="the manifest is cut off"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_aloud_for_the_one_before(
    damage: Callable[[Path], None], folder: Path, uninterrupted: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    document = configuration(folder / f"damage-{request.node.callspec.id.replace(' ', '-')}", steps=STEPS)
    _run(document, ONE, 1, stop_after=23)
    *_, older, newest = _checkpoints(document)
    step = int(older.name.removeprefix("step-").partition(".")[0])
    damage(newest)
    status = _run(document, ONE, 2)
    assert status["resumedFromStep"] == step
    skipped = [e for e in status["events"] if e["reason"] == "CheckpointSkipped"]
    assert [e["type"] for e in skipped] == ["Warning"]
    assert newest.name in skipped[0]["message"]
    assert_same_model(trained_model(status), uninterrupted)


@pytest.mark.parametrize(("role", "members"), [("rows", {"ps-0"}), ("dense", {"ps-0", "worker-0-0"})])
def test_members_compare_checksums_of_what_they_load(
    role: str, members: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator only looks at sizes and commits. A job without another checkpoint fails, and loses nothing."""
    stages: list[Stage] = [("card", LAST, 1)]  # the worker holds dense parameters
    document = configuration(folder / f"changed-{role}", steps=STEPS)
    _run(document, stages, 1, stop_after=3)
    checkpoints = _checkpoints(document)
    for checkpoint in checkpoints:  # the stop may have made one more
        _change(next(checkpoint.glob(f"{role}-*.safetensors")))
    found: set[str] = set()
    give_up = Checkpoints.give_up

    def noted(checkpoints: Checkpoints, member: str, damaged: Damaged) -> bool:
        # A second member may report what the first one has found, by the coordinator's mark: that has no effect.
        acted = give_up(checkpoints, member, damaged)
        if acted:
            assert re.fullmatch(f"{role}-[a-z0-9-]+.safetensors was changed after it was written .*", damaged.reason)
            found.add(member)
        return acted

    monkeypatch.setattr(Checkpoints, "give_up", noted)
    status = _run(document, stages, 1)
    assert found <= members
    assert found
    assert status["phase"] == JobPhase.FAILED
    assert status["error"]["reason"] == "NoCheckpointLeftError"
    for checkpoint in checkpoints:
        assert f"{checkpoint.name}: it could not be restored: " in status["error"]["message"]
    assert _checkpoints(document) == checkpoints


@pytest.mark.parametrize("early", [False, True])
def test_damage_is_found_also_in_a_generation_after_the_one_that_restores(
    folder: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """A server reads rows when the tables are defined, which may be after another member has joined again.

    A worker may define them before the coordinator's announcement has reached the server.
    """
    document = configuration(folder / f"late-{early}", steps=STEPS)
    _run(document, ONE, 1, stop_after=23)
    *_, older, newest = _checkpoints(document)
    define, begin, happened = Shard.define, ParameterServer._begin_generation, []

    def defining(server: Shard, *arguments: Any) -> None:
        if "interrupted" not in happened:
            happened.append("interrupted")
            raise ProtocolError("a connection was lost")
        if server.restores_from == newest.name:
            happened.append("damaged")
            raise DamagedError("rows-0.safetensors was changed", f"{newest.name}/rows-0.safetensors")
        define(server, *arguments)

    def beginning(server: ParameterServer, announced: Generation) -> None:
        happened.append(announced.restore.folder or "" if announced.restore else "goes on")
        while early and not server._early:
            server._take_requests()
        begin(server, announced)

    monkeypatch.setattr(Shard, "define", defining)
    monkeypatch.setattr(ParameterServer, "_begin_generation", beginning)
    status = _run(document, ONE, 1)
    assert happened[:5] == [newest.name, "interrupted", "goes on", "damaged", older.name]
    skipped = [e["message"] for e in status["events"] if e["reason"] == "CheckpointSkipped"]
    assert skipped == [f"{newest.name}: it could not be restored: ps-0: rows-0.safetensors was changed"]
    assert_same_model(trained_model(status), uninterrupted)


def test_checkpoints_of_another_job_are_refused_by_the_field_that_differs(folder: Path) -> None:
    document = configuration(folder / "another", steps=STEPS)
    _run(document, ONE, 1, stop_after=3)
    changes: dict[str, Any] = {"seed": 4, "globalBatchSize": 16}
    for field, value in changes.items():
        other = configuration(folder / "another", **{"steps": STEPS, field: value})
        with pytest.raises(UserError, match=f"checkpoints of another job: training.{field}"):
            CoordinatorServer(RunConfig.from_json(other), TOKEN, "127.0.0.1", 0, None)


def test_data_that_changed_since_the_checkpoint_are_refused(folder: Path) -> None:
    document = configuration(folder / "data", steps=STEPS)
    _run(document, ONE, 1, stop_after=3)
    changed = configuration(folder / "data", rows=310, steps=STEPS)
    status = _run(changed, ONE, 1)
    assert status["phase"] == JobPhase.FAILED
    assert status["error"]["reason"] == "DataChanged"
    message = status["error"]["message"]
    assert "300 rows according to the checkpoint, but 310 according to worker-0-0" in message
    assert message.endswith("in a job of their own, with spec.data.trainAfter and spec.model.initFrom")


def test_a_job_with_other_bounds_of_its_files_does_not_go_on(folder: Path) -> None:
    document = configuration(folder / "bounds", steps=STEPS)
    _run(document, ONE, 1, stop_after=3)
    document["job"]["spec"]["data"]["trainAfter"] = "day=1"
    with pytest.raises(UserError, match=r"another job: data\.trainAfter: the checkpoint has nothing"):
        CoordinatorServer(RunConfig.from_json(document), TOKEN, "127.0.0.1", 0, None)


def test_a_full_disk_costs_checkpoints_but_not_the_training(
    folder: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = configuration(folder / "full", steps=STEPS)
    job = ThreadedJob(document)
    job.start(ONE, 1, hold_at=25)
    first = job.wait(lambda s: s["checkpoint"]["lastStep"] is not None)["checkpoint"]["lastStep"]
    with monkeypatch.context() as patched:

        def write(descriptor: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr("heterps_runtime.storage.os.write", write)
        job.credentials.request("POST", PATH_CHECKPOINT)
        job.hold(26)
        failed = job.wait(lambda s: s["checkpoint"]["failures"] > 0)
        assert failed["phase"] == JobPhase.TRAINING
        assert "the disk is full" in failed["checkpoint"]["lastError"]
        assert failed["checkpoint"]["lastStep"] >= first
        assert any(e["reason"] == "CheckpointFailed" and "stays" in e["message"] for e in failed["events"])
        assert Path(document["workDirectory"], "checkpoints").exists()
        job.hold_at(27)
    job.hold()
    status = job.wait()
    job.close()
    assert_same_model(trained_model(status), uninterrupted)
