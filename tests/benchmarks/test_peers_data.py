"""The bench of peers: the files that all entrants read are what a HeterPS job trains on and starts from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import _clicks
from benchmarks._peers import data
from benchmarks._peers.programs.protocol import Task
from benchmarks._processes import pool_document
from examples.paper.prepare import ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from heterps_runtime.worker.main import open_data
from tests.heterps_runtime.helpers.plain_torch import real_model

NETWORK = _clicks.Network(
    "examples.paper.clicks.ctrdnn:build",
    {"layers": 6, "hidden": 8, "embedding_dim": 4, "num_ids": 500},
    ((0, 10), (10, 20), (20, 26)),
    4,
    (8,),
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_click_log(tmp_path / "log", ClickLogSpec(seed=2, ids=500), rows=700, held_out=100)
    monkeypatch.setattr(data, "CACHE", tmp_path)
    monkeypatch.setattr(data, "click_log", lambda model: folder)
    monkeypatch.setitem(_clicks.NETWORKS, "small", NETWORK)
    return folder


def config_of(log: Path, folder: Path) -> RunConfig:
    files = {"train": str(log / "train"), "cache": {"directory": str(folder / "cache")}}
    job = _clicks.click_job("small", "small", files, {"globalBatchSize": 200, "steps": 3, "seed": _clicks.SEED})
    parts = [pool_document("cpu", "CPU", "cpu", 1, "0.04"), job]
    (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in parts))
    document = load_manifest(folder / "job.yaml").run_configuration(folder, [Path(__file__).parents[2]])
    return RunConfig.from_json(document)


def test_batches_and_initial_values_are_those_of_a_job(log: Path, tmp_path: Path) -> None:
    task = Task(data.write_task("small", 3, 200, 2))
    config = config_of(log, tmp_path)
    train = open_data(config).train
    order = train.training_order(200, config.seed)
    for step in range(3):
        expected = train.batch(order.rows(step, 0, 200), ("c0", "c25", "dense"))
        batch = task.batch(step, range(2))
        np.testing.assert_array_equal(batch.ids[:, 0], expected["c0"])
        np.testing.assert_array_equal(batch.ids[:, 25], expected["c25"])
        np.testing.assert_array_equal(batch.numbers, expected["dense"])
        np.testing.assert_array_equal(batch.labels, expected["label"])
    module, tables = real_model(config, torch.float32)
    state = module.state_dict()
    for values, table in zip(task.tables(), tables, strict=True):
        np.testing.assert_array_equal(values, state[table.name].numpy())
    dense = [values.numpy() for name, values in state.items() if not name.endswith("table.weight")]
    for values, started in zip(task.dense(), dense, strict=True):
        np.testing.assert_array_equal(values, started)
    assert len(task.held_out().labels) == 100
    for field, (begin, size) in enumerate(task.vocabularies):
        found = np.concatenate([task.batch(0, range(2)).ids[:, field], task.held_out().ids[:, field]])
        assert begin <= found.min() <= found.max() < begin + size
    assert all(a + size <= b for (a, size), (b, _) in zip(task.vocabularies, task.vocabularies[1:], strict=False))


def test_workers_need_equal_shares(log: Path) -> None:
    with pytest.raises(ValueError, match="steps must be at most 3, the whole batches of 200 in 700 rows, is 4"):
        data.write_task("small", 4, 200, 2)
    assert len(Task(data.write_task("small", 4, 200, 1)).batch(3, [0]).labels) == 100


def test_files_are_written_again_only_for_another_task(log: Path) -> None:
    folder = Path(data.write_task("small", 3, 200, 2)["data"])
    before = (folder / "held-out").stat().st_mtime_ns
    assert data.write_task("small", 3, 200, 2)["data"] == str(folder)
    assert (folder / "held-out").stat().st_mtime_ns == before
    data.write_task("small", 2, 200, 2)
    assert sorted(path.name for path in (folder / "steps").iterdir()) == ["00000-0", "00000-1", "00001-0", "00001-1"]
