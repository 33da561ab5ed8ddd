"""The strongest promise: in `sync`, any plan trains the model that plain PyTorch trains in one process.

The plans are drawn at random, and a job costs seconds of processor time: of the first 60, those were chosen that have
every model with every sparse optimizer (their numbers modulo 15 are all different), and all that the last test names.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.intake import build_model, trace_model
from heterps_runtime.partition import pieces
from tests.heterps_runtime.helpers.jobs import Stage, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import Losing, train
from tests.same_model import TOLERANCE, assert_same_model, difference

pytestmark = pytest.mark.slow

CASES = (3, 5, 8, 13, 15, 22, 24, 25, 26, 27, 31, 34, 36, 44, 47)
DENSE = [
    {"name": "sgd", "learningRate": "0.1"},
    {"name": "sgd", "learningRate": "0.05", "momentum": "0.9"},
    {"name": "adagrad", "learningRate": "0.05"},
    {"name": "adam", "learningRate": "0.01"},
]
SPARSE = [{"name": n, "learningRate": "0.1"} for n in ("sgd", "adagrad", "rowwise-adagrad", "adam", "ftrl")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same-model")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several servers cut the parameters of these small models, too."""
    monkeypatch.setattr(pieces, "SMALLEST_PIECE", 8)


def _draw(number: int, folder: Path) -> tuple[dict[str, Any], list[Stage], int]:
    """Case `number`: a model, a plan, workers, servers, micro-batches and optimizers, all drawn at random."""
    draw = random.Random(number)
    model = ["flights", "two_tower", "residual"][number % 3]
    document = configuration(
        folder / f"case-{number}",
        model,
        rows=draw.choice([300, 333]),
        globalBatchSize=draw.choice([24, 32, 41]),
        microBatches=draw.choice([1, 2, 3]),
        steps=draw.randint(20, 26),
        optimizer={"dense": draw.choice(DENSE), "sparse": SPARSE[number % 5]},
        seed=draw.randint(0, 1000),
    )
    layers = len(
        trace_model(
            build_model(f"tests.heterps_runtime.helpers.models:build_{model}", {}, 0, torch.float32), None
        ).layers
    )
    cuts = sorted(draw.sample(range(layers - 1), draw.choice([0, 1, 1, 2, 3])))
    stages = [(draw.choice(["cpu", "card"]), last, draw.choice([1, 1, 2, 3])) for last in [*cuts, layers - 1]]
    return document, stages, draw.choice([1, 1, 2, 3])


@pytest.mark.parametrize("number", CASES)
def test_any_plan_trains_the_model_that_one_pytorch_process_trains(number: int, folder: Path) -> None:
    document, stages, servers = _draw(number, folder)
    status = run_job(document, stages, servers)
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))


@pytest.mark.parametrize("number", [3, 5, 13])  # one of each model
def test_the_comparison_notices_one_lost_sample(number: int, folder: Path) -> None:
    document, _, _ = _draw(number, folder)
    config = RunConfig.from_json(document)
    whole, robbed = train(config, torch.float64), train(config, torch.float64, Losing(config))
    assert max(difference(robbed[name], whole[name]) for name in whole) > 1e6 * TOLERANCE
    with pytest.raises(AssertionError, match="differs"):
        assert_same_model(robbed, whole)


def test_the_plans_have_every_shape_and_setting(folder: Path) -> None:
    pairs: set[tuple[str, str]] = set()
    settings: set[tuple[str, Any]] = set()
    shapes: set[tuple[Any, ...]] = set()
    for number in CASES:
        document, stages, servers = _draw(number, folder)
        spec = document["job"]["spec"]
        training, optimizer = spec["training"], spec["training"]["optimizer"]
        pairs.add((spec["model"]["entrypoint"], optimizer["sparse"]["name"]))
        dense = (optimizer["dense"]["name"], "momentum" in optimizer["dense"])
        for name in ("microBatches", "globalBatchSize"):
            settings.add((name, training[name]))
        settings |= {("servers", servers), ("dense", dense), ("stages", len(stages))}
        workers = [count for _, _, count in stages]
        shapes |= {("replicas update", pool, dense) for pool, _, count in stages if count > 1}
        shapes |= {("pools", one, next_one) for (one, _, _), (next_one, _, _) in pairwise(stages)}
        shapes |= {("workers", min(one, 2), min(next_one, 2)) for one, next_one in pairwise(workers)}
        shapes |= {("workers differ", one > next_one) for one, next_one in pairwise(workers) if min(one, next_one) > 1}
    assert len(pairs) == 3 * len(SPARSE)
    assert len(settings) == 3 + 3 + 3 + len(DENSE) + 4
    assert {shape[0] for shape in shapes} == {"replicas update", "pools", "workers", "workers differ"}
    assert len([s for s in shapes if s[0] == "replicas update"]) == 2 * len(DENSE)
    assert len([s for s in shapes if s[0] == "pools"]) == len([s for s in shapes if s[0] == "workers"]) == 4
