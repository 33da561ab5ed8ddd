"""What `hybrid` trains on real data is as good as what plain PyTorch trains in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from tests.heterps_runtime.helpers.jobs import run_job
from tests.heterps_runtime.helpers.plain_torch import evaluate, train

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quality")


@pytest.mark.slow
@pytest.mark.skipif(not (FLIGHTS / "data" / "train").exists(), reason="the flights data are not prepared: make data")
def test_hybrid_reaches_the_quality_of_one_pytorch_process_on_the_flights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which steps use rows of the steps before depends on the moment, so that no model is like the next one."""
    monkeypatch.setattr(sys, "path", [str(FLIGHTS), *sys.path])
    gains = []
    for seed in SEEDS:
        hybrid, reference = qualities(seed, folder)
        print(f"seed {seed}: hybrid {hybrid:.4f}, one process {reference:.4f}")  # noqa: T201
        assert hybrid >= reference - 0.003
        gains.append(hybrid - reference)
    assert abs(fmean(gains)) <= 0.002


def qualities(seed: int, folder: Path) -> tuple[float, float]:
    """AUC of a job's model in `hybrid`, and of that of one process."""
    work = folder / f"quality-{seed}"
    work.mkdir()
    document = load_manifest(FLIGHTS / "job.yaml").run_configuration(work, [])
    # The data, steps and batches of the example, but thin layers: the products of the real ones take most of the time.
    document["job"]["spec"]["model"]["arguments"] = {"embedding_dim": 4, "hidden": [32, 16]}
    document["job"]["spec"]["training"]["optimizer"]["dense"]["learningRate"] = "0.005"
    document["job"]["spec"]["training"]["seed"] = seed
    document["job"]["spec"]["data"]["cache"]["directory"] = str(folder / "flights-cache")
    status = run_job(document, [("cpu", 4, 1), ("accelerator", 9, 1)], 1)
    assert status["phase"] == "Succeeded", status["error"]
    config = RunConfig.from_json(document)
    return status["evaluation"]["auc"], evaluate(config, train(config, torch.float32))["auc"]
