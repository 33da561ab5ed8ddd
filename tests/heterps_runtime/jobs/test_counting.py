"""The model that counts samples: it is right about an undisturbed job, and tells when a sample is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from heterps_runtime.wire.messages import Commit, Forward, FromCoordinator
from heterps_runtime.worker.exchange.peers import Downstream
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import Stage, counting_configuration, run_job, trained_model

pytestmark = pytest.mark.slow

PLANS: list[tuple[list[Stage], int]] = [
    ([("cpu", 2, 1)], 1),
    ([("cpu", 0, 2), ("card", 1, 2), ("cpu", 2, 3)], 2),
    ([("card", 0, 1), ("cpu", 2, 3)], 1),
]
SAMPLES, BATCH = 320, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counting")


def _run(document: dict[str, Any], stages: list[Stage], servers: int) -> dict[str, Any]:
    status = run_job(document, stages, servers)
    assert status["phase"] == "Succeeded", status["error"]
    return dict(load_file(Path(status["model"]) / "model.safetensors"))


@pytest.mark.parametrize(
    ("plan", "consistency", "precision"),
    [(0, "sync", "fp32"), (1, "sync", "fp64"), (1, "hybrid", "fp32"), (2, "async", "fp32"), (1, "async", "fp64")],
)
def test_every_sample_is_applied_once_per_epoch(plan: int, consistency: str, precision: str, folder: Path) -> None:
    work = folder / f"{plan}-{consistency}-{precision}"
    # Three epochs and a half: of the last one, the order says which samples.
    document = counting_configuration(work, consistency, steps=35, precision=precision)
    model = _run(document, *PLANS[plan])
    assert_every_sample_counted(model, BATCH, seed=3, steps=35)


def test_a_commit_that_arrives_twice_is_no_commit_of_the_next_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = CoordinatorServer.send

    def send_twice(server: CoordinatorServer, processes: Sequence[Address], message: FromCoordinator) -> None:
        for _ in range(2 if isinstance(message, Commit) and message.step == 7 and message.generation == 1 else 1):
            send(server, processes, message)

    monkeypatch.setattr(CoordinatorServer, "send", send_twice)
    status = run_job(counting_configuration(folder / "repeated", "hybrid", steps=20), [("cpu", 2, 2)], 2)
    assert status["generation"] > 1, "every member asked for a new generation"
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=20)


@pytest.mark.parametrize("training", [True, False])
def test_activations_that_arrive_twice_take_the_place_of_no_others(
    training: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Downstream.send

    def send_twice(downstream: Downstream, worker: int, message: Forward) -> None:
        again = message.training == training and (message.step, message.generation) == (2, 1)
        for _ in range(2 if again else 1):
            send(downstream, worker, message)

    monkeypatch.setattr(Downstream, "send", send_twice)
    document = counting_configuration(folder / f"activations-{training}", "hybrid", steps=20)
    document["job"]["spec"]["data"]["evaluation"] = document["job"]["spec"]["data"]["train"]
    status = run_job(document, [("cpu", 0, 2), ("card", 2, 1)], 1)
    assert status["generation"] > 1, "the worker that saw them asked for a new generation"
    assert status["evaluation"]["samples"] == SAMPLES
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=20)


def _lose(push: Gradients) -> Gradients:
    """Without the rows' last gradient."""
    chunks = tuple((dim, keys[:-1], gradients[:-1]) for dim, keys, gradients in push.chunks)
    return Gradients(chunks, push.dense, push.statistics)


def _double(push: Gradients) -> Gradients:
    """With the rows' last gradient twice."""
    chunks = tuple(
        (dim, np.append(keys, keys[-1:]), np.concatenate([gradients, gradients[-1:]]))
        for dim, keys, gradients in push.chunks
    )
    return Gradients(chunks, push.dense, push.statistics)


def _double_dense(push: Gradients) -> Gradients:
    return Gradients(push.chunks, {name: value * 2 for name, value in push.dense.items()}, push.statistics)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(_lose, r"1 of 320 samples were applied .*: sample \d+ 0 times instead of 1", id="a lost sample"),
        pytest.param(
            _double, r"1 of 320 samples were applied .*: sample \d+ 2 times instead of 1", id="a doubled sample"
        ),
        pytest.param(_double_dense, "linear", id="a doubled dense gradient"),
    ],
)
def test_one_wrong_push_is_noticed(
    damage: Callable[[Gradients], Gradients], told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Shard.push

    def push(self: Shard, step: int, worker: str, given: Gradients) -> None:
        original(self, step, worker, damage(given) if (step, worker) == (4, "worker-0-0") else given)

    monkeypatch.setattr(Shard, "push", push)
    document = counting_configuration(folder / damage.__name__, "hybrid", steps=10)
    model = _run(document, [("cpu", 2, 1)], 1)
    with pytest.raises(AssertionError, match=told):
        assert_every_sample_counted(model, BATCH, seed=3, steps=10)
