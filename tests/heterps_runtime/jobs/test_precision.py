"""`training.precision: bf16`: a job trains the model that plain PyTorch trains under autocast.

Layers multiply matrices in bfloat16, whose roundoff is 2^-9; parameters, optimizers and the loss are float32. With one
worker per stage and one micro-batch, a job computes the same products as one process, so that only float32's roundings
differ. Several workers add up gradients that are rounded to bfloat16 each: plain PyTorch does the same with the same
parts of the batch (`pieces`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from tests.heterps_runtime.helpers.jobs import Stage, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import difference

Array = np.ndarray[Any, Any]

ROWS, BATCH = 320, 32  # whole batches of a power of two: a mean or a sum of gradients has the same roundings
# Of a parameter's largest value: 2e-7 was seen, and 1.5e-3 beside float32. Where another order of additions rounds one
# product to the next bfloat16, a parameter changes by some 1e-6.
TOLERANCE = 1e-4
JOBS: list[tuple[str, list[Stage], int]] = [
    ("flights", [("cpu", 10, 1)], 1),
    ("flights", [("cpu", 5, 1), ("card", 8, 1), ("cpu", 10, 1)], 2),
    ("flights", [("cpu", 10, 2)], 1),
    # What the first stage sends is added in the second: in bfloat16, as in one process.
    ("residual", [("card", 3, 1), ("cpu", 5, 1)], 1),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("precision")


def document(work: Path, precision: str, model: str = "flights") -> dict[str, Any]:
    optimizer = {"name": "sgd", "learningRate": "0.2"}
    settings: dict[str, Any] = {"steps": 20, "globalBatchSize": BATCH, "microBatches": 1}
    settings["optimizer"] = {"dense": optimizer, "sparse": optimizer}
    return configuration(work, model, ROWS, precision=precision, **settings)


def reference(work: Path, precision: str, model: str, parts: int) -> dict[str, Array]:
    config = RunConfig.from_json(document(work, precision, model))
    size = BATCH // parts
    return train(config, torch.float32, pieces=lambda batch: [(i, i + size) for i in range(0, batch, size)])


def distance(one: dict[str, Array], other: dict[str, Array]) -> float:
    assert set(one) == set(other)
    return max(difference(one[name], values) for name, values in other.items())


@pytest.mark.parametrize(("model", "stages", "servers"), JOBS)
def test_a_job_trains_the_model_of_pytorch_under_autocast(
    model: str, stages: list[Stage], servers: int, folder: Path
) -> None:
    workers = max(count for _, _, count in stages)
    name = f"{model}-{len(stages)}-{workers}"
    trained = trained_model(run_job(document(folder / f"job-{name}", "bf16", model), stages, servers))
    assert {values.dtype for values in trained.values() if values.dtype.kind == "f"} == {np.dtype(np.float32)}
    assert distance(trained, reference(folder / f"same-{name}", "bf16", model, workers)) <= TOLERANCE
    assert distance(trained, reference(folder / f"other-{name}", "fp32", model, workers)) > 5 * TOLERANCE


def test_a_model_may_switch_autocast_on_itself(folder: Path) -> None:
    """Precision fp32; the stages enter the model's own region: the same model as with bf16 for the whole job."""
    own = document(folder / "own", "fp32")
    own["job"]["spec"]["model"]["entrypoint"] = "tests.heterps_runtime.helpers.models:build_short_flights"
    trained = trained_model(run_job(own, [("cpu", 8, 1), ("cpu", 10, 1)], 1))
    assert distance(trained, train(RunConfig.from_json(own), torch.float32)) <= TOLERANCE
    assert distance(trained, reference(folder / "other", "fp32", "flights", 1)) > 5 * TOLERANCE


def test_a_device_without_such_instructions_is_noted(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from heterps_runtime.worker.model import set_precision

    known = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    bf16, fp32 = (RunConfig.from_json(document(folder / "noted", precision)) for precision in ("bf16", "fp32"))
    set_precision(fp32, torch.device("cpu"))
    known["amx_bf16"] = True
    set_precision(bf16, torch.device("cpu"))
    assert capsys.readouterr().err == ""
    known["amx_bf16"] = False
    set_precision(bf16, torch.device("cpu"))
    assert "has no instructions for bfloat16, so fp32 may be faster" in capsys.readouterr().err
