"""Stages on CPU pools whose workers all-reduce: the model is that of plain PyTorch, whatever happens to the members."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.worker.exchange import replica
from tests.heterps_runtime.helpers.jobs import RING, Stage, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of these small models are in several buckets, too."""
    monkeypatch.setattr(replica, "BUCKET_BYTES", 256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ring")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_trains_the_model_of_one_pytorch_process(workers: int, folder: Path) -> None:
    document = configuration(folder / f"alone-{workers}")
    status = run_job(document, [(RING, 10, workers)], 1)
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))
