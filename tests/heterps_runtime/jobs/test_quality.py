"""What `hybrid` trains on real data is as good as what plain PyTorch trains in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from tests.heterps_runtime.helpers.jobs import run_job
from tests.heterps_runtime.helpers.plain_torch import evaluate, train

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quality")


@pytest.mark.slow
@pytest.mark.skipif(not (FLIGHTS / "data" / "train").exists(), reason="the flights data are not prepared: make data")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hybrid_reaches_the_quality_of_one_pytorch_process_on_the_flights(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = load_manifest(FLIGHTS / "job.yaml")
    work = folder / f"quality-{seed}"
    work.mkdir()
    document = manifest.run_configuration(work, [])
    # The data, steps and batches of the example, but thin layers: the products of the real ones take most of the time.
    document["job"]["spec"]["model"]["arguments"] = {"embedding_dim": 4, "hidden": [32, 16]}
    document["job"]["spec"]["training"]["optimizer"]["dense"]["learningRate"] = "0.005"
    document["job"]["spec"]["training"]["seed"] = seed
    document["job"]["spec"]["data"]["cache"]["directory"] = str(folder / "flights-cache")
    monkeypatch.setattr(sys, "path", [str(FLIGHTS), *sys.path])
    status = run_job(document, [("cpu", 4, 1), ("accelerator", 9, 1)], 1)
    assert status["phase"] == "Succeeded", status["error"]
    config = RunConfig.from_json(document)
    reference = evaluate(config, train(config, torch.float32))
    print(f"seed {seed}: hybrid {status['evaluation']['auc']:.4f}, one process {reference['auc']:.4f}")  # noqa: T201
    # Which steps use rows of the steps before depends on the moment. Better is no fault.
    assert status["evaluation"]["auc"] >= reference["auc"] - 0.003
