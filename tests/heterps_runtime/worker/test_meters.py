"""What a worker measures of itself: its operations, and its distance to the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from heterps_runtime.intake import linear
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.steps.operations import Operations
from heterps_runtime.worker.steps.round_trip import RoundTrip
from heterps_runtime.worker.steps.runs import Clock, StepRun, Work

SAMPLES = 6
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def work(step: int = 0, *, training: bool = True, size: int = SAMPLES) -> Work:
    run = StepRun(step, training, 0, 0, (0,), size)
    block = cast(LookupBlock, None)  # not read
    return Work(run, MicroBatch(0, 0, size, (0,)), {}, torch.zeros(0), block, 0)


def counted(module: nn.Module, inputs: torch.Tensor) -> float:
    """Operations per sample of a forward and a backward pass."""
    operations, micro = Operations(), work()
    with operations.of(micro):
        loss = module(inputs).square().sum()
    with operations.of(micro):
        loss.backward()
    assert operations.per_sample == 0, "not before the micro-batch is finished"
    operations.finish(micro)
    return operations.per_sample


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(x, x.transpose(1, 2)), x)


IMAGES = (SAMPLES, 4, 9, 9)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), (SAMPLES, 7)),
    "linear over a sequence": (lambda: nn.Linear(7, 5), (SAMPLES, 4, 7)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 2, 3, stride=2)), IMAGES),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 3, stride=2), IMAGES),
    "one dimension": (lambda: nn.Conv1d(4, 8, 3), (SAMPLES, 4, 9)),
    "products of matrices": (Attention, (SAMPLES, 5, 3)),
    "norms": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2)), IMAGES),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("differentiable", [False, True])
def test_operations_are_those_that_torch_counts(name: str, differentiable: bool) -> None:
    make, shape = MODULES[name]
    module = make()
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    inputs.requires_grad_(differentiable or not list(module.parameters()))
    with FlopCounterMode(display=False) as reference:
        module(inputs).square().sum().backward()
    assert counted(module, inputs) * SAMPLES == reference.get_total_flops() > 0


@pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")
@pytest.mark.parametrize("shape", [(SAMPLES, 7), (SAMPLES, 4, 7)])
def test_operations_by_onednn_count_as_others(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_LEAST_PRODUCTS", 1)
    module, layer = fx.symbolic_trace(nn.Sequential(nn.Linear(7, 5))), nn.Linear(7, 5)
    linear.use_onednn(module)
    inputs = torch.ones(shape, requires_grad=True)
    assert counted(module, inputs) == counted(layer, inputs) > 0


def test_a_filter_of_a_group_sees_only_its_channels() -> None:
    once = 2 * (7 * 7) * 8 * (2 * 3 * 3)  # torch counts the gradient of the weights as if there were one group
    assert counted(nn.Conv2d(4, 8, 3, groups=2), torch.ones(IMAGES)) == 2 * once


def test_one_micro_batch_of_training_is_counted_and_no_other() -> None:
    operations, layer = Operations(), nn.Linear(7, 5)

    def run(micro: Work, samples: int) -> None:
        with operations.of(micro):
            layer(torch.ones(samples, 7)).sum().backward()
        operations.finish(micro)

    run(work(training=False), SAMPLES)
    run(work(size=0), 0)
    assert operations.per_sample == 0
    lost = work(1)
    with operations.of(lost):
        layer(torch.ones(SAMPLES, 7))
    run(work(2), SAMPLES)
    assert operations.per_sample == 0, "one is counted at a time"
    operations.begin()  # another generation: the lost one does not come back
    run(work(3), SAMPLES)
    assert operations.per_sample == 2 * 2 * 7 * 5  # forward, and the gradient of the weights
    run(work(4), 2 * SAMPLES)
    assert operations.per_sample == 2 * 2 * 7 * 5


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def spend(self, **seconds: float) -> None:
        for name, more in seconds.items():
            activity = name.replace("_", "-")
            self.seconds[activity] = self.seconds.get(activity, 0.0) + more

    def snapshot(self) -> dict[str, float]:
        return dict(self.seconds)


def trip() -> tuple[RoundTrip, Seconds]:
    clock = Seconds()
    return RoundTrip(cast(Clock, cast(Any, clock))), clock


def test_a_round_trip_lasts_from_the_gradients_to_the_last_answer() -> None:
    round_trip, clock = trip()
    assert round_trip.seconds is None
    round_trip.send(0)
    clock.spend(wait_commit=0.25, messages=0.25)
    round_trip.answered(0)
    assert round_trip.seconds == 0.5
    round_trip.send(1)
    clock.spend(wait_commit=1.0)
    round_trip.answered(1)
    assert round_trip.seconds == pytest.approx(0.5 + 0.2 * 0.5), "a running mean"


def test_an_answer_that_waited_for_a_computation_does_not_count() -> None:
    round_trip, clock = trip()
    round_trip.send(0)
    clock.spend(forward=3.0)
    round_trip.answered(0)
    assert round_trip.seconds is None
    round_trip.send(1)
    round_trip.clear()  # its servers were lost
    clock.spend(wait_commit=9.0)
    round_trip.answered(1)
    assert round_trip.seconds is None
