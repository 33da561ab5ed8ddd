"""The paper's models: how many layers the scheduler sees, and that plain PyTorch trains them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, ClickLog, ClickLogSpec, write_click_log
from torch.nn.functional import binary_cross_entropy_with_logits

from heterps_runtime.intake import LayeredModel, build_model, trace_model
from heterps_runtime.intake.errors import EntrypointError
from tests.heterps_runtime.helpers.jobs import configuration, run_job

SMALL: dict[str, Any] = {"num_ids": 2_000, "hidden": 32}
CASES: list[tuple[str, dict[str, Any], int, int]] = [  # module, arguments, layers, lookups
    ("matchnet", {}, 16, 3),
    ("ctrdnn", {}, 16, 3),
    ("ctrdnn", {"layers": 7, "hidden": 128, "embedding_dim": 8}, 7, 3),
    ("ctrdnn", {"layers": 7, "hidden": 1024, "embedding_dim": 64}, 7, 3),
    ("ctrdnn", {"layers": 8}, 8, 3),
    ("ctrdnn", {"layers": 12}, 12, 3),
    ("ctrdnn", {"layers": 20}, 20, 3),
    ("twoemb", {}, 10, 2),
    ("nce", {}, 5, 2),
]


def layered(module: str, arguments: dict[str, Any]) -> LayeredModel:
    return trace_model(build_model(f"examples.paper.clicks.{module}:build", arguments, 0, torch.float32))


@pytest.mark.parametrize(("module", "arguments", "layers", "lookups"), CASES)
def test_the_scheduler_sees_as_many_layers_as_the_paper_says(
    module: str, arguments: dict[str, Any], layers: int, lookups: int
) -> None:
    model = layered(module, arguments)
    assert len(model.layers) == layers
    assert sum(bool(layer.tables) for layer in model.layers) == lookups
    assert model.inputs == (*FIELDS, "dense")
    assert model.warnings == ()
    for i in range(layers):  # every layer can be a stage of its own
        model.stage(i, i)


@pytest.mark.parametrize("module", ["matchnet", "ctrdnn", "twoemb", "nce"])
def test_plain_pytorch_learns_the_synthetic_clicks(module: str) -> None:
    """Held-out log loss falls below that of the best constant."""
    rows = ClickLog(ClickLogSpec(seed=1, ids=2_000)).chunk(0)
    ids, dense = torch.from_numpy(rows.ids), torch.from_numpy(rows.numbers)
    clicks = torch.from_numpy(rows.clicks).float()
    torch.manual_seed(0)
    model = importlib.import_module(f"examples.paper.clicks.{module}").build(**SMALL)
    for name, parameter in model.named_parameters():
        if name.endswith("table.weight"):
            torch.nn.init.normal_(parameter, std=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def loss_of(part: slice) -> torch.Tensor:
        logits = model(*ids[part].T, dense[part])
        assert logits.shape == clicks[part].shape
        return binary_cross_entropy_with_logits(logits, clicks[part])

    for begin in range(0, 16_384, 512):
        optimizer.zero_grad()
        loss = loss_of(slice(begin, begin + 512))
        torch.autograd.backward(loss)
        assert all(p.grad is not None for p in model.parameters()), "every parameter must matter"
        optimizer.step()
    share = float(np.mean(rows.clicks))
    constant = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    with torch.no_grad():
        assert float(loss_of(slice(40_000, 50_000))) < 0.99 * constant


def test_a_deep_stack_neither_loses_nor_blows_up_the_signal() -> None:
    torch.manual_seed(0)
    module = importlib.import_module("examples.paper.clicks.ctrdnn").build(layers=20, num_ids=100)
    x = torch.randn(256, 26 * 16 + 13)
    with torch.no_grad():
        assert 0.3 < float(module.fc(x).std() / x.std()) < 3


def test_too_few_layers_are_refused_with_the_least_number() -> None:
    with pytest.raises(EntrypointError, match="layers must be at least 6, is 5"):
        layered("ctrdnn", {"layers": 5})


@pytest.mark.slow
def test_a_job_of_two_stages_trains_a_model_on_a_written_log(tmp_path: Path) -> None:
    """Lookups on CPU workers, the rest on another pool: every row is trained on once, and something is learnt."""
    data = write_click_log(tmp_path / "log", ClickLogSpec(seed=2, ids=500), rows=6_400, held_out=1_600)
    document = configuration(tmp_path / "job", precision="fp32", globalBatchSize=128, steps=50)
    spec = document["job"]["spec"]
    spec["model"] |= {"entrypoint": "examples.paper.clicks.ctrdnn:build", "arguments": {"layers": 8, **SMALL}}
    spec["data"] |= {"train": str(data / "train"), "evaluation": str(data / "held-out"), "label": LABEL}
    spec["data"] |= {"dense": list(NUMBERS), "sparse": list(FIELDS)}
    status = run_job(document, [("cpu", 3, 2), ("card", 7, 1)], servers=1)
    assert status["phase"] == "Succeeded"
    assert status["samples"] == 6_400
    assert status["evaluation"]["auc"] > 0.6
