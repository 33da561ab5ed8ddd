"""`training.precision: fp16`: a job trains the model that plain PyTorch trains under autocast with a GradScaler.

The scale begins at 2^20 and grows after three steps, so that 30 steps see it shrink and grow several times; torch's own
GradScaler gets the same settings. Which steps are skipped then depends on every gradient of every worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_LOST, JobPhase
from heterps_runtime.coordinator import loss_scale
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.wire.messages import Commit, Done
from tests.heterps_runtime.helpers.jobs import CARD, Stage, ThreadedJob, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import states
from tests.same_model import difference

Array = np.ndarray[Any, Any]

ROWS, BATCH, STEPS = 320, 32, 30
SCALING = {"init_scale": 2.0**20, "growth_interval": 3}
# Of a parameter's largest value. Where another order of additions rounds one product to the next float16, a parameter
# changes by some 1e-5.
TOLERANCE = 2e-4
# Beside it, of a job that computes on cores and on a real card: autocast has other lists of operations there, so that
# no single run of plain PyTorch rounds as both, and Adam makes much of a small gradient.
MIXED_TOLERANCE = 0.05
JOBS: list[tuple[str, list[Stage], int]] = [
    ("flights", [("cpu", 10, 1)], 1),
    ("flights", [("cpu", 5, 1), ("card", 8, 1), ("cpu", 10, 1)], 2),
    ("flights", [("cpu", 10, 2)], 1),
    ("flights", [("cpu", 5, 1), ("card", 10, 2)], 1),
    ("flights", [("ring", 5, 2), ("ring", 10, 2)], 1),
    ("residual", [("card", 3, 1), ("cpu", 5, 1)], 1),
    ("flights", [("card", 10, 1)], 2),
    ("residual", [("card", 2, 1), ("card", 5, 1)], 1),
]


@pytest.fixture(autouse=True)
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "_GROWTH_STEPS", SCALING["growth_interval"])
    monkeypatch.setattr(loss_scale.LossScale.__init__, "__defaults__", (SCALING["init_scale"], 0, 0))


def document(work: Path, model: str = "flights", precision: str = "fp16", **settings: Any) -> dict[str, Any]:
    optimizer = {"name": "adam", "learningRate": "0.01"}  # it counts the steps that are applied
    training: dict[str, Any] = {"steps": STEPS, "globalBatchSize": BATCH, "microBatches": 1, "consistency": "sync"}
    training["optimizer"] = {"dense": optimizer, "sparse": {"name": "sgd", "learningRate": "0.2"}}
    return configuration(work, model, ROWS, precision=precision, **(training | settings))


def reference(work: Path, model: str, parts: int, device: str) -> tuple[dict[str, Array], int]:
    """The model of plain PyTorch on a device, and the number of steps that it skips."""
    config, size = RunConfig.from_json(document(work, model)), BATCH // parts

    def pieces(batch: int) -> list[tuple[int, int]]:
        return [(start, start + size) for start in range(0, batch, size)]

    every = [
        {name: values.copy() for name, values in state.items()}
        for state in states(config, torch.float32, pieces=pieces, scaling=SCALING, device=device)
    ]
    skipped = sum(
        all(np.array_equal(before[name], values) for name, values in after.items())
        for before, after in itertools.pairwise(every)
    )
    return every[-1], skipped


def distance(one: dict[str, Array], other: dict[str, Array]) -> float:
    assert set(one) == set(other)
    return max(difference(one[name], values) for name, values in other.items())


@pytest.mark.parametrize(("model", "stages", "servers"), JOBS)
def test_a_job_trains_the_model_of_pytorch_with_a_grad_scaler(
    model: str, stages: list[Stage], servers: int, tmp_path: Path
) -> None:
    devices = {CARD if pool == "card" else "cpu" for pool, _, _ in stages}
    device = "cpu" if "cpu" in devices else CARD
    expected, skipped = reference(tmp_path / "plain", model, max(count for _, _, count in stages), device)
    assert 3 <= skipped <= STEPS - 10
    status = run_job(document(tmp_path / "job", model), stages, servers)
    trained = trained_model(status)
    assert status["skippedSteps"] == skipped
    assert status["committedSteps"] == STEPS
    assert {values.dtype for values in trained.values() if values.dtype.kind == "f"} == {np.dtype(np.float32)}
    assert distance(trained, expected) <= (TOLERANCE if len(devices) == 1 else MIXED_TOLERANCE)


def test_a_resumed_job_goes_on_with_the_scale(tmp_path: Path) -> None:
    """To the last bit: with another scale, other steps would be skipped, and others would round differently."""
    stages: list[Stage] = [("cpu", 5, 1), ("cpu", 10, 2)]
    whole = run_job(document(tmp_path / "whole"), stages, 2)
    half = run_job(document(tmp_path / "parts", steps=13), stages, 2)
    rest = run_job(document(tmp_path / "parts"), stages, 2)
    assert rest["resumedFromStep"] == 13
    assert 0 < half["skippedSteps"] < rest["skippedSteps"] == whole["skippedSteps"]
    assert rest["lossScale"] == whole["lossScale"]
    expected, trained = trained_model(whole), trained_model(rest)
    assert all(np.array_equal(trained[name], values) for name, values in expected.items())


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[float | None]]:
    """By committed step, the scales that its workers have used; of the job that ran last."""
    scales: dict[int, set[float | None]] = {}
    commit = Progress.commit

    def recorded(self: Progress, number: int, reports: Mapping[str, Done], now: float, *, skipped: bool) -> Commit:
        scales[self.committed] = {report.loss_scale for report in reports.values()}
        return commit(self, number, reports, now, skipped=skipped)

    monkeypatch.setattr(Progress, "commit", recorded)
    return scales


def test_a_lost_worker_changes_neither_scale_nor_model(tmp_path: Path, used: dict[int, set[float | None]]) -> None:
    """It is the only one of its stage, so that no step is divided in another way meanwhile."""
    stages: list[Stage] = [("cpu", 5, 1), ("card", 10, 2)]
    whole = run_job(document(tmp_path / "whole", steps=60), stages, 1)
    undisturbed = dict(used)
    job = ThreadedJob(document(tmp_path / "disturbed", steps=60))
    job.start(stages, 1)
    job.wait(lambda status: status["skippedSteps"] > 1)
    job.credentials.request("POST", PATH_LOST, {"member": "worker-0-0", "reason": "a test says so"})
    status = job.wait()
    job.close()
    assert not job.failures
    assert status["generation"] > whole["generation"]
    assert status["skippedSteps"] == whole["skippedSteps"]
    assert used == undisturbed
    expected, trained = trained_model(whole), trained_model(status)
    assert all(np.array_equal(trained[name], values) for name, values in expected.items())


def test_copies_of_rows_skip_the_same_steps(tmp_path: Path, lose: Callable[..., None]) -> None:
    """So a server that has lost its state goes on with what it had, after skipped steps too."""
    stages: list[Stage] = [("cpu", 10, 1)]
    whole = run_job(document(tmp_path / "whole", steps=60), stages, 2)
    replicated = document(tmp_path / "disturbed", steps=60)
    replicated["job"]["spec"]["parameterServer"]["replication"] = 2
    job = ThreadedJob(replicated)
    job.start(stages, 2)
    job.wait(lambda status: status["skippedSteps"] > 1)
    lose(job, "ps-1")
    status = job.wait()
    job.close()
    assert not job.failures
    assert "RolledBack" not in [event["reason"] for event in status["events"]]
    assert status["generation"] > whole["generation"]
    assert status["skippedSteps"] == whole["skippedSteps"]
    expected, trained = trained_model(whole), trained_model(status)
    assert all(np.array_equal(trained[name], values) for name, values in expected.items())


@pytest.mark.parametrize("consistency", ["hybrid", "async"])
def test_all_workers_of_a_step_use_the_same_scale_also_ahead_of_commits(
    consistency: str, tmp_path: Path, used: dict[int, set[float | None]]
) -> None:
    stages: list[Stage] = [("cpu", 5, 2), ("cpu", 10, 2)]
    status = run_job(document(tmp_path / "job", consistency=consistency, maxStaleness=3, steps=60), stages, 2)
    assert status["phase"] == JobPhase.SUCCEEDED
    assert status["skippedSteps"] > 1
    assert sorted(used) == list(range(60))
    assert all(len(scales) == 1 for scales in used.values())
    assert len(set.union(*used.values())) > 2, "it has changed"


def test_a_loss_that_no_scale_makes_finite_ends_the_job(tmp_path: Path) -> None:
    """Without an end to halving, such a job would skip all of its steps, and succeed."""
    diverging = {"name": "sgd", "learningRate": "1e30"}
    broken = document(tmp_path / "job", optimizer={"dense": diverging, "sparse": diverging})
    job = ThreadedJob(broken)
    job.start([("cpu", 10, 1)], 1)
    status = job.wait()
    job.close()
    assert status["phase"] == JobPhase.FAILED
    assert status["error"]["reason"] == "NaNLoss"
    assert status["lossScale"] == 1.0
    assert "the last good checkpoint" in status["error"]["message"] or "no checkpoint" in status["error"]["message"]
