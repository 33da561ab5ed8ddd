"""Jobs whose last stage has fewer workers than the one before, and computes together what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from heterps_runtime.config import RunConfig
from heterps_runtime.worker.steps.engine import Engine
from heterps_runtime.worker.steps.runs import Work
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import configuration, counting_configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import difference

pytestmark = pytest.mark.slow

STEPS, BATCH = 20, 32


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many micro-batches are computed together each time; the last stage waits for all of a step.

    So which ones have arrived does not depend on time.
    """
    work, together, counts = Engine.work, Work.together, list[int]()

    def work_when_all_are_there(engine: Engine) -> bool:
        open_runs = (run for _, run in sorted(engine._runs.items()) if run.num_forwarded < len(run.expected))
        run = next(open_runs, None)
        if engine.context.is_last and run is not None:
            there = [waiting for waiting in run.waiting if waiting.block.arrived]
            if run.num_forwarded + len(there) < len(run.expected):
                return False
        return work(engine)

    def noted(parts: Sequence[Work]) -> Work:
        counts.append(len(parts))
        return together(parts)

    monkeypatch.setattr(Engine, "work", work_when_all_are_there)
    monkeypatch.setattr(Work, "together", noted)
    return counts


@pytest.mark.parametrize("consistency", ["sync", "hybrid", "async"])
def test_each_sample_is_applied_once_and_order_is_kept_where_it_matters(
    consistency: str, tmp_path: Path, joined: list[int]
) -> None:
    document = counting_configuration(tmp_path / "job", consistency, steps=STEPS)
    status = run_job(document, [("cpu", 0, 4), ("card", 2, 1)], 2)
    assert status["phase"] == "Succeeded", status["error"]
    model = dict(load_file(Path(status["model"]) / "model.safetensors"))
    assert_every_sample_counted(model, BATCH, seed=3, steps=STEPS)
    # Eight of four samples each, and this worker's share in two parts.
    assert joined == ([] if consistency == "sync" else [4] * 2 * STEPS)


@pytest.mark.parametrize(("model", "cut", "last"), [("flights", 5, 10), ("two_tower", 3, 9), ("residual", 2, 5)])
def test_they_train_the_model_of_plain_pytorch(
    model: str, cut: int, last: int, tmp_path: Path, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With reads of `sync`, so that nothing else changes the model."""
    in_order = Engine._joined

    def in_any_order(engine: Engine, work: Work) -> Work:
        reads, engine._reads = engine._reads, replace(engine._reads, ordered=False)
        try:
            return in_order(engine, work)
        finally:
            engine._reads = reads

    monkeypatch.setattr(Engine, "_joined", in_any_order)
    document = configuration(tmp_path / "job", model, 320, steps=STEPS, globalBatchSize=BATCH)
    trained = trained_model(run_job(document, [("cpu", cut, 4), ("cpu", last, 1)], 1))
    assert joined == [4] * 2 * STEPS
    expected = train(RunConfig.from_json(document), torch.float64)
    assert max(difference(trained[name], values) for name, values in expected.items()) < 1e-9
