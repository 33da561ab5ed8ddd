"""Jobs on a storage that is slow, and jobs whose checkpoints another run takes over."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.checkpoint import Storage, take_over
from heterps_runtime.contract import PATH_CHECKPOINT, REASON_FENCED, JobPhase
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, Stage, ThreadedJob, configuration, trained_model

pytestmark = pytest.mark.slow

LAST = 10  # last layer of models.Flights
ONE: list[Stage] = [("cpu", LAST, 1)]
HANG_SECONDS, PIECES = 5, 12


def test_a_last_checkpoint_that_takes_longer_than_the_hang_timeout_is_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's file begins with single bytes, each written when the coordinator has heard of the one before."""
    document = configuration(tmp_path / "slow", steps=6)
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = HANG_SECONDS
    job = ThreadedJob(document)
    heard = threading.Semaphore(0)
    write, write_atomic = os.write, Storage.write_atomic
    in_rows, slow = threading.local(), iter(range(PIECES))

    def write_slowly(descriptor: int, data: Any) -> int:
        view = memoryview(data)
        if not getattr(in_rows, "now", False) or next(slow, None) is None:
            return write(descriptor, view)
        assert heard.acquire(timeout=PATIENCE_SECONDS)
        return write(descriptor, view[:1])

    def write_file(self: Storage, name: str, chunks: Any) -> None:
        in_rows.now = "rows-" in name
        try:
            write_atomic(self, name, chunks)
        finally:
            in_rows.now = False

    monkeypatch.setattr("heterps_runtime.storage.os.write", write_slowly)
    monkeypatch.setattr(Storage, "write_atomic", write_file)
    job.start(ONE, 1)
    started = job.wait(lambda s: s["committedSteps"] == 6)
    assert started["phase"] == JobPhase.TRAINING
    heard_of = -1.0
    for _ in range(PIECES):  # pulses come once a second, so this takes longer than the hang timeout
        status = job.wait(lambda s: work_of_the_server(s) > heard_of)  # noqa: B023
        assert status["phase"] == JobPhase.TRAINING
        heard_of = work_of_the_server(status)
        heard.release()
    final = job.wait()
    job.close()
    assert final["checkpoint"]["failures"] == 0
    assert "embeddings" in " ".join(trained_model(final))


def work_of_the_server(status: dict[str, Any]) -> float:
    [server] = [member for member in status["members"] if member["role"] == "ps"]
    return float(server["totals"].get("work", -1.0))


def test_a_run_whose_checkpoints_another_one_has_taken_over_ends_and_leaves_them_alone(tmp_path: Path) -> None:
    document = configuration(tmp_path / "fenced", steps=10_000_000)
    job = ThreadedJob(document)
    job.start(ONE, 1)
    job.wait(lambda s: s["checkpoint"]["lastStep"])
    storage = Storage.open(Path(document["workDirectory"]) / "checkpoints")
    younger = take_over(storage, "the same job, elsewhere", 0.0)
    assert younger.term == 2
    left = storage.folders()
    job.credentials.request("POST", PATH_CHECKPOINT)
    status = job.wait(lambda s: s["phase"] == JobPhase.FAILED)
    job.close()
    assert status["error"]["reason"] == REASON_FENCED
    assert "another run of job the same job, elsewhere (term 2) has taken over" in status["error"]["message"]
    complete = [folder for folder in storage.folders() if storage.exists(f"{folder}/manifest.json")]
    assert complete
    assert set(complete) <= set(left)
    younger.check()
