"""Batches that two threads of a feed prepare at the same time are those that one prepares."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.worker.main import open_data
from heterps_runtime.worker.model import UserModel
from heterps_runtime.worker.steps import source
from heterps_runtime.worker.steps.feed import Feed
from heterps_runtime.worker.steps.runs import Prepared
from heterps_runtime.worker.steps.source import BatchSource
from tests.heterps_runtime.helpers.jobs import configuration

CPU = torch.device("cpu")
STEPS, BATCH, SERVERS = 40, 4096, 3  # large enough that threads with one scratch memory spoil it for each other
PATIENCE_SECONDS = 60


def batches(config: RunConfig, threads: int) -> list[Prepared]:
    """All steps, prepared by a feed; it prepares evaluation data first, as a job's feeds take turns."""
    data = open_data(config)
    model = UserModel.build(config, data.train.schema.features)
    module = model.stage(0, len(model.layered.layers) - 1, CPU)
    made = BatchSource(config, data, model.layered.tables, CPU)
    micro_batches = [MicroBatch(i, i * BATCH // 2, (i + 1) * BATCH // 2, (0,)) for i in range(2)]
    found: list[Prepared] = []
    for training, steps in ((False, 2), (True, STEPS)):

        def prepare(step: int, training: bool = training, steps: int = steps) -> Prepared:
            return made.prepare(step, steps, micro_batches, module, training=training, num_servers=SERVERS)

        ready = threading.Semaphore(0)
        feed = Feed(prepare, 0, steps, ready.release, threads)
        taken = 0
        while taken < steps:
            assert ready.acquire(timeout=PATIENCE_SECONDS)
            while (prepared := feed.take()) is not None:
                found.append(prepared)
                taken += 1
                feed.prepare_next()
        feed.close()
    return found


@pytest.mark.parametrize("model", ["flights", "two_tower"])
def test_two_threads_prepare_what_one_does(model: str, tmp_path: Path) -> None:
    # Whole batches only: an epoch has ten of them.
    document = configuration(tmp_path / "work", model, 10 * BATCH, globalBatchSize=BATCH, steps=STEPS)
    data = document["job"]["spec"]["data"]
    data["evaluation"] = data["train"]
    config = RunConfig.from_json(document)
    for one, two in zip(batches(config, 1), batches(config, 2), strict=True):
        assert one.step == two.step
        assert one.largest_labels == two.largest_labels
        for mine, theirs in zip(one.inputs, two.inputs, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.labels, two.labels, strict=True))
        assert one.block.keys.keys() == two.block.keys.keys()
        for dim, keys in one.block.keys.items():
            np.testing.assert_array_equal(keys.keys, two.block.keys[dim].keys)
            np.testing.assert_array_equal(keys.starts, two.block.keys[dim].starts)
        rows = {dim: np.random.default_rng(0).normal(size=(len(k.keys), dim)) for dim, k in one.block.keys.items()}
        one.block.fill(rows)
        two.block.fill(rows)
        for number in range(2):
            pairs = zip(
                one.block.forward(number, training=False), two.block.forward(number, training=False), strict=True
            )
            assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("cores", "threads"), [(1.5, 1), (2, 1), (4, 2), (7.9, 3), (16, 4)])
def test_only_a_card_has_several_feeds(
    cores: float, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "usable_cores", lambda: cores)
    document = configuration(tmp_path / "work", "flights", 320)
    config = RunConfig.from_json(document)
    data = open_data(config)
    card = torch.device("meta")  # any that is not the CPU
    assert BatchSource(config, data, (), CPU).threads == 1
    assert BatchSource(config, data, (), card).threads == threads
    document["job"]["spec"]["data"] |= {"access": "Streamed", "windowRows": 64}
    assert BatchSource(RunConfig.from_json(document), data, (), card).threads == 1
