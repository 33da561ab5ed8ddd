"""Micro-batches that the last stage computes together: which, with what result, and of which models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps_runtime.intake import LayeredModel, StageModule, resolve_loss, trace_model
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.wire.messages import Array
from heterps_runtime.worker.steps.joining import Joining, is_row_wise
from heterps_runtime.worker.steps.runs import Clock, StepRun, Work
from heterps_runtime.worker.steps.stage import Stage

CPU = torch.device("cpu")
WIDTH = 6
LOSS = resolve_loss("torch.nn.functional:binary_cross_entropy_with_logits")


class Model(nn.Module):
    """A layer, from which activations come, and what a test wants after it."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.enter = nn.Linear(4, WIDTH)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) -> (B,)."""
        result: Tensor = self.last(self.enter(x))
        return result.squeeze(1)


class _Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)


class Deep(_Head):
    """No sample depends on others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1)."""
        return self.out(torch.relu(self.norm(x)) + x)  # type: ignore[no-any-return]


class Dropping(_Head):
    """Random, but no sample depends on others."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1)."""
        return self.out(self.drop(x))  # type: ignore[no-any-return]


class Normalised(_Head):
    """Normalised over the batch, with running statistics or without."""

    def __init__(self, running: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=running)

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1)."""
        return self.out(self.norm(x))  # type: ignore[no-any-return]


class Attending(_Head):
    """Each sample attends to all others of its micro-batch."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1)."""
        return self.out(torch.softmax(x @ x.t(), dim=1) @ x)  # type: ignore[no-any-return]


class Silent(Attending):
    """The same, whose last layer begins with zeros, so that it shows only later."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)


class Centred(_Head):
    """Logits less their mean over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1)."""
        y: Tensor = self.out(x)
        return y - y.mean(0)


class Pairwise(_Head):
    """A logit for each pair of samples."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH) -> (B, 1, B)."""
        y = self.out(x)
        return (y @ y.t()).unsqueeze(1)  # type: ignore[no-any-return]


def of_all(logits: Tensor, label: Tensor) -> Tensor:
    """A loss of logits of any shape."""
    return logits.square().mean()


def ranking(logits: Tensor, label: Tensor) -> Tensor:
    """A loss of pairs of samples."""
    return torch.nn.functional.softplus(logits.unsqueeze(0) - logits.unsqueeze(1)).mean()


def stage_of(last: nn.Module, loss: Any = LOSS) -> Stage:
    """The last stage of a model."""
    layered: LayeredModel = trace_model(Model(last), {"x"})
    count = len(layered.layers)
    module: StageModule = layered.stage(1, count - 1).to(CPU)
    module.train()
    return Stage(module, layered.tables, CPU, loss, Clock())


class _Block:
    """Lookups that a stage does not have."""

    arrived = True

    def forward(self, position: int, *, training: bool) -> list[Tensor]:
        """Nothing is looked up."""
        return []

    def backward(self, position: int) -> None:
        """Nothing is looked up."""


def run_with(stage: Stage, sizes: list[int]) -> StepRun:
    """A step of which micro-batches wait."""
    random = torch.Generator().manual_seed(5)
    run = StepRun(0, True, 0, 0, tuple(range(len(sizes))), sum(sizes))
    run.leaves = {n: p.clone().requires_grad_() for n, p in stage.module.initial_parameters().items()}
    run.statistics = {n: value.clone() for n, value in stage.module.initial_statistics().items()}
    start, block = 0, _Block()
    for index, size in enumerate(sizes):
        x = torch.randn((size, WIDTH), generator=random).requires_grad_()
        label = (torch.rand(size, generator=random) < 0.5).float()
        [name] = stage.module.inputs
        micro = MicroBatch(index, start, start + size, (index, 0))
        run.waiting.append(Work(run, micro, {name: x}, label, block, 0, b"%d" % index))  # type: ignore[arg-type]
        start += size
    return run


def trained(stage: Stage, run: StepRun, take: Callable[[Work], list[Work]]) -> tuple[list[dict[str, Array]], list[int]]:
    """The gradients of all inputs, in order, and how many micro-batches were computed together each time."""
    found: dict[int, dict[str, Array]] = {}
    sizes = []
    while run.waiting:
        work = run.waiting.pop(0)
        others = take(work)
        work = Work.together([work, *others]) if others else work
        stage.forward(work)
        stage.learn(work)
        sizes.append(len(work.each))
        for part, gradients in zip(work.each, stage.input_gradients(work), strict=True):
            found[part.micro_batch.index] = gradients
    return [found[index] for index in sorted(found)], sizes


def test_gradients_are_those_of_the_micro_batches_one_by_one() -> None:
    sizes = [8, 5, 8, 3, 8]
    joined, single = stage_of(Deep()), stage_of(Deep())
    single.module.bind(joined.module.initial_parameters())
    together, alone = run_with(joined, sizes), run_with(joined, sizes)
    found, counts = trained(joined, together, lambda work: joined.joining.take(work, 16))
    expected, _ = trained(joined, alone, lambda work: [])
    assert counts == [2, 2, 1], "at most 16 samples: 8 + 5, 8 + 3, 8"
    assert joined.samples == 2 * sum(sizes)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            assert mine[name] == pytest.approx(values, rel=1e-5, abs=1e-7)
    assert float(sum(together.losses)) == pytest.approx(float(sum(alone.losses)), rel=1e-6)
    assert together.leaves is not None
    assert alone.leaves is not None
    for name, leaf in alone.leaves.items():
        assert together.leaves[name].grad is not None
        torch.testing.assert_close(together.leaves[name].grad, leaf.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("last", "loss", "independent"),
    [
        (Deep(), LOSS, True),
        (Dropping(), LOSS, True),
        (Normalised(running=True), LOSS, False),
        (Normalised(running=False), LOSS, False),
        (Attending(), LOSS, False),
        (Silent(), LOSS, False),
        (Centred(), LOSS, False),
        (Pairwise(), resolve_loss(f"{__name__}:of_all"), False),
        (Deep(), resolve_loss(f"{__name__}:ranking"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_models_whose_samples_are_independent_are_computed_together(
    last: nn.Module, loss: Any, independent: bool
) -> None:
    stage = stage_of(last, loss)
    run = run_with(stage, [64, 64, 64, 64])
    before = torch.random.get_rng_state()
    first = run.waiting.pop(0)
    assert len(stage.joining.take(first, 256)) == (3 if independent else 0)
    assert len(run.waiting) == (0 if independent else 3)
    assert torch.equal(torch.random.get_rng_state(), before), "dropout draws what it would have drawn"
    stage.forward(first)
    first.outputs["logits"].sum().backward()  # type: ignore[no-untyped-call]
    assert run.leaves is not None
    assert any(leaf.grad is not None for leaf in run.leaves.values()), "its parameters are bound again"
    [name] = stage.module.inputs
    assert is_row_wise(stage.module, loss, {name: torch.ones(1, WIDTH)}, [], torch.ones(1)) == independent
    rows_of_bags = torch.ones(3, 2)  # as many as their bags have entries
    assert not is_row_wise(stage.module, loss, {name: torch.ones(1, WIDTH)}, [rows_of_bags], torch.ones(1))


def test_what_has_other_tensors_or_waits_for_rows_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    joining = Joining(lambda work: True)
    stage = stage_of(Deep())
    run = run_with(stage, [4] * 5)
    first, short, wide, waiting, last = run.waiting
    [name] = stage.module.inputs
    short.inputs[name] = short.inputs[name].detach()
    wide.inputs[name] = torch.ones(4, WIDTH, 2).requires_grad_()
    waiting.block = _Block()  # type: ignore[assignment]
    monkeypatch.setattr(waiting.block, "arrived", False)
    run.waiting.remove(first)
    assert joining.take(first, 100) == [last]
    assert run.waiting == [short, wide, waiting]
    shared = run_with(stage, [4, 4]).waiting
    shared[0].inputs["weights"] = torch.ones(7)  # not of the samples
    assert joining.take(shared[0], 100) == []


def test_the_trial_is_made_once_and_only_if_there_is_something_to_join() -> None:
    tried: list[Work] = []

    def never(work: Work) -> bool:
        tried.append(work)
        return False

    joining, stage = Joining(never), stage_of(Deep())
    run = run_with(stage, [4, 4, 4])
    first = run.waiting.pop(0)
    assert joining.take(first, 7) == []
    assert not tried
    assert joining.take(first, 8) == []
    assert joining.take(first, 12) == []
    assert tried == [first]
    assert len(run.waiting) == 2
