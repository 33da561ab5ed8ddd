"""The bench of peers: entrants that this environment can run learn what a plain loop learns, on the same files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks._peers.entrants import CEILING, ENTRANTS, Entrant
from benchmarks._peers.programs.protocol import Task
from benchmarks._peers.running import run_entrant

from tests.benchmarks.small import write_small_task

pytestmark = pytest.mark.slow  # each worker is a process that imports torch

BY_NAME = {entrant.name: entrant for entrant in ENTRANTS}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_small_task(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def expected(task: dict[str, Any]) -> float:
    """The held-out log loss after training in one loop, with a gradient of the whole batch."""
    files = Task(task)
    tables = [torch.tensor(values, requires_grad=True) for values in files.tables()]
    dense = [torch.tensor(values, requires_grad=True) for values in files.dense()]

    def logits(ids: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> torch.Tensor:
        columns, slots = torch.tensor(ids).long(), zip(tables, task["slots"], strict=True)
        rows = [table[columns[:, first:end]].flatten(1) for table, (first, end) in slots]
        x = torch.cat([*rows, torch.tensor(numbers)], dim=1)
        for weight, bias in zip(dense[:-2:2], dense[1:-2:2], strict=True):
            x = torch.relu(x @ weight.T + bias)
        return (x @ dense[-2].T + dense[-1]).squeeze(1)

    optimizer = torch.optim.Adagrad(
        [{"params": tables, "lr": task["sparseRate"]}, {"params": dense, "lr": task["denseRate"]}]
    )
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def held_out_loss() -> float:
        ids, numbers, labels = files.held_out()
        with torch.no_grad():
            return float(loss_of(logits(ids, numbers), torch.tensor(labels)))

    untrained = held_out_loss()
    for step in range(task["steps"]):
        ids, numbers, labels = files.batch(step, range(task["parts"]))
        optimizer.zero_grad()
        loss_of(logits(ids, numbers), torch.tensor(labels)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    trained = held_out_loss()
    assert untrained - trained > 0.01, "there is something to learn"
    return trained


def run(name: str, task: dict[str, Any], folder: Path, **settings: Any) -> dict[str, Any]:
    entrant: Entrant = replace(BY_NAME[name], settings={**BY_NAME[name].settings, **settings})
    return run_entrant(entrant, task, folder)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("single", {}),
        ("DDP", {}),
        ("DDP-dense", {}),
        ("torch-rpc", {"staleness": 0}),
    ],
)
def test_an_entrant_learns_what_a_plain_loop_learns(
    name: str, settings: dict[str, Any], task: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    assert run(name, task, tmp_path, **settings)["logLoss"] == pytest.approx(expected, rel=1e-5)


def test_bfloat16_changes_the_products_but_hardly_the_quality(
    task: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    short = run("single", task | {"precision": "bf16"}, tmp_path)["logLoss"]
    assert 1e-5 < abs(short / expected - 1) < 0.02


def test_the_ceiling_trains_the_layers_alone(task: dict[str, Any], tmp_path: Path) -> None:
    outcome = run(CEILING, task, tmp_path)
    assert outcome["samplesPerSecond"] > 0
    assert "logLoss" not in outcome
