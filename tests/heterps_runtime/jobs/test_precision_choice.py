"""`training.precision: Auto`: the coordinator, servers and workers compute in the precision that the plan names."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_PLAN, JobPhase
from heterps_runtime.errors import UserError
from tests.heterps_runtime.helpers.jobs import (
    ThreadedJob,
    configuration,
    plan_document,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

STAGES = [("cpu", 5, 1), ("cpu", 10, 1)]


def document(work: Path, *allowed: str, steps: int = 20) -> dict[str, Any]:
    return configuration(work, "flights", precision="Auto", allowedPrecisions=list(allowed), steps=steps)


def refusal(job: ThreadedJob, precision: str | None) -> str:
    """The coordinator's words about a plan."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        job.credentials.request("PUT", PATH_PLAN, plan_document(STAGES, 1, precision))
    return caught.value.msg


def run(job: ThreadedJob, precision: str) -> dict[str, Any]:
    job.start(STAGES, 1, precision=precision)
    try:
        return job.wait()
    finally:
        job.close()
        assert not job.failures, "\n".join(job.failures)


def test_a_job_trains_in_the_precision_of_its_plan_and_goes_on_in_no_other(tmp_path: Path) -> None:
    job = ThreadedJob(document(tmp_path / "work", "fp32", "fp64"))
    assert refusal(job, None) == "training.precision Auto: a plan must choose one of fp32, fp64, it chooses None"
    assert refusal(job, "bf16") == "training.precision Auto: a plan must choose one of fp32, fp64, it chooses bf16"
    status = run(job, "fp64")
    assert status["phase"] == JobPhase.SUCCEEDED
    plain = configuration(tmp_path / "plain", "flights", precision="fp64", steps=20)
    assert_same_model(trained_model(status), train(RunConfig.from_json(plain), torch.float64))

    other = ThreadedJob(document(tmp_path / "work", "fp32", "fp64", steps=30))
    other.credentials.request("PUT", PATH_PLAN, plan_document(STAGES, 1, "fp32"))
    failed = other.wait()
    assert failed["phase"] == JobPhase.FAILED
    assert 'training.precision: the checkpoint has "fp64", the job has "fp32"' in failed["error"]["message"]
    assert "To go on with them, set training.precision to fp64" in failed["error"]["message"]
    other.close()

    again = run(ThreadedJob(document(tmp_path / "work", "fp32", "fp64", steps=30)), "fp64")
    assert (again["phase"], again["resumedFromStep"]) == (JobPhase.SUCCEEDED, 20)


def test_checkpoints_of_a_precision_that_is_not_allowed_are_refused_before_anything_starts(tmp_path: Path) -> None:
    run(ThreadedJob(document(tmp_path / "work", "fp64")), "fp64")
    with pytest.raises(UserError, match='the checkpoint has "fp64"'):
        ThreadedJob(document(tmp_path / "work", "fp32", "bf16"))


def test_a_later_plan_cannot_change_the_precision(tmp_path: Path) -> None:
    job = ThreadedJob(document(tmp_path / "work", "fp32", "fp64"))
    job.credentials.request("PUT", PATH_PLAN, plan_document(STAGES, 1, "fp64"))
    assert refusal(job, "fp32") == "plan.precision: the job computes in fp64 already, not in fp32"
    job.credentials.request("PUT", PATH_PLAN, plan_document(STAGES, 1, "fp64"))
    job.close()
