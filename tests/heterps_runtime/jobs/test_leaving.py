"""A process is told to end (SIGTERM), as by an eviction: it ends in order, and each sample is applied once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from heterps_runtime.contract import EXIT_INTERRUPTED
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    counting_configuration,
    trained_model,
)

pytestmark = pytest.mark.slow

SAMPLES, BATCH, EVERY = 320, 32, 10
STEPS = 6 * EVERY
STAGES: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]


def test_a_worker_works_on_until_it_is_dismissed(tmp_path: Path) -> None:
    job = ThreadedJob(counting_configuration(tmp_path, "sync", SAMPLES, BATCH, steps=STEPS))
    (tmp_path / "held").touch()  # training cannot end meanwhile
    process = job.start(STAGES, 2, as_process="worker-0-1")
    assert process is not None
    job.wait(lambda status: status["committedSteps"] >= 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_SECONDS) == EXIT_INTERRUPTED
    (tmp_path / "held").unlink()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    reasons = [e["reason"] for e in status["events"]]
    assert "worker-0-1: it was told to end (SIGTERM)" in [e["message"] for e in status["events"]]
    assert "RolledBack" not in reasons
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


def test_a_server_ends_when_all_is_saved(tmp_path: Path) -> None:
    document = counting_configuration(tmp_path, "hybrid", SAMPLES, BATCH, steps=STEPS)
    job = ThreadedJob(document)
    (tmp_path / "held").touch()
    process = job.start(STAGES, 2, as_process="ps-1")
    assert process is not None
    job.wait(lambda status: status["committedSteps"] >= 3)
    process.send_signal(signal.SIGTERM)
    stopped = job.wait()
    assert process.wait(timeout=PATIENCE_SECONDS) == EXIT_INTERRUPTED
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert stopped["phase"] == "Stopped"
    (tmp_path / "held").unlink()

    again = ThreadedJob(document)
    again.start(STAGES, 2)
    status = again.wait()
    again.close()
    assert not again.failures, "\n".join(again.failures)
    assert status["resumedFromStep"] == stopped["committedSteps"], "no committed step is lost"
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)
