"""`hybrid` and `async`: not the same to the bit, but as good as plain PyTorch, and staleness is bounded.

That every sample is applied once is counted in the model: `test_counting.py`, and `test_deaths.py` where processes die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data.spec import label_kind
from heterps_runtime.ps.shard import Shard
from tests.heterps_runtime.helpers.jobs import Stage, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import evaluate, states

pytestmark = pytest.mark.slow

STEPS = 60
PLANS: dict[str, list[Stage]] = {
    "flights": [("cpu", 5, 2), ("card", 8, 1), ("cpu", 10, 2)],
    "two_tower": [("cpu", 1, 1), ("card", 5, 2), ("cpu", 9, 1)],
    "residual": [("card", 0, 1), ("cpu", 2, 2), ("card", 5, 1)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consistency")


@dataclass(frozen=True)
class Losses:
    """Mean loss on the training data: before training, and when plain PyTorch has trained."""

    untrained: float
    plain: float


@pytest.fixture(scope="module")
def losses(folder: Path) -> Callable[[str], Losses]:
    """What is to be reached, by model."""

    @cache
    def reached(model: str) -> Losses:
        config = RunConfig.from_json(configuration(folder / f"{model}-reference", model, steps=STEPS))
        begun = states(config, torch.float64)
        untrained = _loss(config, next(begun))
        *_, last = begun
        return Losses(untrained, _loss(config, last))

    return reached


def _loss(config: RunConfig, model: dict[str, Any]) -> float:
    figures = evaluate(config, model)
    return float(figures["logLoss" if label_kind(config.loss) == "binary" else "crossEntropy"])


@pytest.mark.parametrize("consistency", ["hybrid", "async"])
@pytest.mark.parametrize("model", sorted(PLANS))
def test_relaxed_pipelines_learn_what_plain_pytorch_learns(
    model: str, consistency: str, folder: Path, losses: Callable[[str], Losses]
) -> None:
    document = configuration(folder / f"{model}-{consistency}", model, consistency=consistency, steps=STEPS)
    status = run_job(document, PLANS[model], 2)
    loss, reached = _loss(RunConfig.from_json(document), trained_model(status)), losses(model)
    # At least 93 % of plain PyTorch's progress were seen; an untrained model has made none.
    assert reached.untrained - loss >= 0.75 * (reached.untrained - reached.plain) > 0.2
    assert status["committedSteps"] == STEPS
    assert status["samples"] == 6 * 300  # what it says of itself


@pytest.mark.parametrize(
    ("consistency", "bound", "warmup"), [("sync", 0, 0), ("hybrid", 4, 0), ("hybrid", 4, 15), ("async", 4, 15)]
)
def test_rows_are_never_staler_than_promised(
    consistency: str, bound: int, warmup: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []  # (step, commits that the server had when the step's gradient came)
    original = Shard.push

    def push(self: Shard, step: int, worker: str, given: object) -> None:
        seen.append((step, self.committed))
        original(self, step, worker, given)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "push", push)
    work = folder / f"stale-{consistency}-{warmup}"
    document = configuration(work, consistency=consistency, stalenessWarmupSteps=warmup, steps=30)
    status = run_job(document, [("cpu", 5, 2), ("card", 10, 1)], 1)
    assert status["phase"] == "Succeeded", status["error"]
    assert {step for step, _ in seen} == set(range(30))  # more than once each, if a busy machine loses a member
    # A step whose rows lacked more commits than the bound could not have been computed before this version.
    assert all(step - committed <= (0 if step < warmup else bound) for step, committed in seen)
