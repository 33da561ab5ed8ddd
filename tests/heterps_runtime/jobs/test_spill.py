"""Jobs whose servers keep most rows on disk: the model of plain PyTorch, through deaths, stops and other servers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store import values
from heterps_runtime.store.spill import SpillSpace
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, Stage, ThreadedJob, configuration, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

STEPS, LAST = 60, 10
FRAMES = 230  # rows of two steps; the table has 410
STAGES: list[Stage] = [("cpu", 4, 2), ("cpu", LAST, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spill")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains."""
    return train(RunConfig.from_json(configuration(folder / "reference", steps=STEPS)), torch.float64)


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> list[SpillSpace]:
    """Memory for eight rows of a server; the spaces that the servers of the test make."""
    made: list[SpillSpace] = []
    begin = SpillSpace.__init__

    def remember(space: SpillSpace, *arguments: Any) -> None:
        begin(space, *arguments)
        made.append(space)

    monkeypatch.setattr(values, "_LEAST_FRAMES", 8)
    monkeypatch.setattr(SpillSpace, "__init__", remember)
    return made


def _document(work: Path, **spill: Any) -> dict[str, Any]:
    document = configuration(work, steps=STEPS)
    document["job"]["spec"]["parameterServer"]["spill"] = {"memory": 1, **spill}
    return document


def _end(job: ThreadedJob) -> dict[str, Any]:
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    return status


@pytest.mark.slow
def test_rows_on_disk_survive_a_stop_and_come_back_on_more_servers(
    folder: Path, expected: dict[str, Any], spaces: list[SpillSpace]
) -> None:
    document = _document(folder / "stopped")
    job = ThreadedJob(document)
    job.start(STAGES, 1, hold_at=15)
    job.credentials.request("POST", PATH_STOP)
    assert _end(job)["phase"] == JobPhase.STOPPED
    assert sum(space.num_read for space in spaces) > 100
    assert (folder / "stopped" / "spill").is_dir()
    before = len(spaces)
    job = ThreadedJob(document)
    job.start([("cpu", LAST, 2)], 3)
    status = _end(job)
    assert status["resumedFromStep"] == 15
    assert sum(space.num_read for space in spaces[before:]) > 100
    assert_same_model(trained_model(status), expected)


def test_rows_on_disk_survive_the_death_of_a_server(
    folder: Path, expected: dict[str, Any], spaces: list[SpillSpace]
) -> None:
    job = ThreadedJob(_document(folder / "killed"))
    program = ("tests.heterps_runtime.helpers.dying", "a server is in a commit", "24")
    process = job.start(STAGES, 2, as_process="ps-1", program=program)
    assert process is not None
    assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    job.kill(process, "ps-1")
    job.start_member("ps-1", STAGES)
    status = _end(job)
    assert [e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"] == ["ps-1"]
    assert_same_model(trained_model(status), expected)


def test_rows_are_read_before_the_commit_that_their_pull_waits_for(
    folder: Path, expected: dict[str, Any], spaces: list[SpillSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pull is read ahead once, and hardly a row is gone again when the pull comes."""
    read_ahead, pull = Shard.read_ahead, Shard.pull
    asked: dict[int, tuple[Any, int]] = {}  # version -> keys that are read ahead, and how many were on disk
    late: list[int] = []

    def reading(shard: Shard, keys: Any) -> None:
        before = spaces[0].num_read
        read_ahead(shard, keys)
        assert asked.get(shard.committed + 1, (None,))[0] is not keys
        asked[shard.committed + 1] = keys, spaces[0].num_read - before

    def pulling(shard: Shard, keys: Any) -> Any:
        before = spaces[0].num_read
        rows = pull(shard, keys)
        if asked.get(shard.committed, (None,))[0] is keys:
            late.append(spaces[0].num_read - before)
        return rows

    monkeypatch.setattr(Shard, "read_ahead", reading)
    monkeypatch.setattr(Shard, "pull", pulling)
    monkeypatch.setattr(values, "_LEAST_FRAMES", FRAMES)
    job = ThreadedJob(_document(folder / "ahead"))
    job.start([("cpu", LAST, 1)], 1)
    assert_same_model(trained_model(_end(job)), expected)
    early = sum(count for _, count in asked.values())
    assert early > 300
    assert len(late) > 10
    assert sum(late) < 0.2 * early
