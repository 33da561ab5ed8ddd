"""Models that cannot be traced or served: the message has the user's line, the reason and what to do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from heterps_runtime.intake import trace_model
from heterps_runtime.intake.errors import EmbeddingError, IntakeError, TracingError


class Base(nn.Module):
    """A table, a linear layer and a parameter; subclasses say what they do wrong."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.bag = nn.EmbeddingBag(10, 3, mode="sum")
        self.linear = nn.Linear(3, 1)
        self.shift = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(3))


class Branches(Base):
    def forward(self, ids: Tensor) -> Any:
        if ids.max() > 3:  # here
            return self.linear(self.table(ids))
        return self.table(ids)


class Loops(Base):
    def forward(self, ids: Tensor) -> Any:
        return torch.stack([self.table(i) for i in ids])  # here


class Length(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.linear(self.table(ids)) / len(ids)  # here


class Assigns(Base):
    def forward(self, ids: Tensor) -> Any:
        x = self.table(ids)
        x[:, 0] = 1  # here
        return x


class Converts(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table(ids) * int(ids[0])  # here


class InnerBranch(Base):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, ids: Tensor) -> Any:
            return self.table(ids) if ids.sum() > 0 else ids  # here

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, ids: Tensor) -> Any:
        return self.inner(ids)


class Fresh(Base):
    def forward(self, ids: Tensor) -> Any:
        return nn.Linear(3, 1)(self.table(ids))  # here


class ChangesBuffer(Base):
    def forward(self, ids: Tensor) -> Any:
        x = self.table(ids)
        self.seen.add_(x.sum(0))  # here
        return x


class ManyNames(Base):
    def forward(self, *ids: Tensor) -> Any:
        return self.table(ids[0])


class Dictionary(Base):
    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.table(batch["user"]) + self.table(batch["item"])


class Returns(Base):
    def forward(self, ids: Tensor) -> Any:
        return {"logits": self.table(ids)}


class ReturnsSize(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table(ids).shape[0]


TRACING = [
    (Branches, "control flow depends on a tensor's value or shape at test_errors.py:{line}", "torch.where"),
    (Loops, "a loop runs over a tensor, whose length is not known", "tensor operations"),
    (Length, "len() of a tensor is taken", "x.shape[0]"),
    (Assigns, "a tensor is changed by item assignment", "torch.where"),
    (Converts, "a tensor is turned into a Python or numpy value", "decide it in __init__"),
    (InnerBranch, "inner (Inner) cannot be traced, and holds an embedding", "submodule without embeddings"),
    (Fresh, "a module is created or reached outside the model's own submodules", "__init__"),
    (ChangesBuffer, "forward changes seen in place", "submodule of its own"),
    (ManyNames, "forward takes *ids, but its parameters must name the features", "one parameter per feature"),
    (Dictionary, "forward's parameter 'batch' is a dictionary", "def forward(self, user, item)"),
    (Returns, "forward returns a dict, not one tensor of logits", "return the logits only"),
    (ReturnsSize, "forward returns a number", "return the logits only"),
]


class TiedOutput(Base):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 10, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.table(ids))


class WholeTable(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table(ids) @ self.table.weight.t()  # here


class ScaledTable(Base):
    def forward(self, ids: Tensor) -> Any:
        return F.embedding(ids, self.table.weight * 2)  # here


class IdsFromRows(Base):
    def forward(self, ids: Tensor) -> Any:
        nearest = self.table(ids).argmax(1)
        return self.table(nearest)  # here


class IdsFromParameter(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table((ids * self.shift).long())  # here


class RandomIds(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table(torch.randint_like(ids, 10))  # here


class ChangedIds(Base):
    def forward(self, ids: Tensor) -> Any:
        ids.clamp_(0, 9)
        return self.table(ids)  # here


class LearnedWeights(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.bag(ids, per_sample_weights=self.shift.expand(ids.shape))  # here


class WithoutGradient(Base):
    def forward(self, ids: Tensor) -> Any:
        with torch.no_grad():
            x = self.table(ids)  # here
        return self.linear(x)


class MaxNorm(Base):
    def forward(self, ids: Tensor) -> Any:
        return F.embedding(ids, self.table.weight, max_norm=1.0)  # here


class ConstantIds(Base):
    def forward(self, ids: Tensor) -> Any:
        return self.table(ids) + F.embedding_bag(ids, self.bag.weight, mode="mean", per_sample_weights=ids)  # here


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Any:
        return self.table(ids)


EMBEDDING = [
    (TiedOutput, "out.weight is an embedding's weight used by Linear (tied weights)", "weight of its own"),
    (WholeTable, "table.weight is used directly, which needs the whole table", "look rows up"),
    (ScaledTable, "table.weight is used directly", "look rows up"),
    (IdsFromRows, "the ids of the lookup of table.weight depend on looked-up rows", "from the features alone"),
    (IdsFromParameter, "depend on a trained parameter", "from the features alone"),
    (RandomIds, "are random", "from the features alone"),
    (ChangedIds, "are changed in place", "return new tensors"),
    (LearnedWeights, "the per_sample_weights of the lookup of bag.weight depend on", "from the features alone"),
    (WithoutGradient, "is looked up under torch.no_grad()", "detach()"),
    (MaxNorm, "has max_norm=1.0, which is not supported", "leave max_norm out"),
    (ConstantIds, "has per_sample_weights with mode='mean'", 'mode="sum"'),
    (Frozen, "the weight of table is frozen", "buffer"),
]


@pytest.mark.parametrize(("model", "problem", "fix"), TRACING, ids=lambda v: getattr(v, "__name__", ""))
def test_what_cannot_be_traced_is_explained(model: type[nn.Module], problem: str, fix: str) -> None:
    _check(TracingError, model, problem, fix)


@pytest.mark.parametrize(("model", "problem", "fix"), EMBEDDING, ids=lambda v: getattr(v, "__name__", ""))
def test_what_cannot_be_served_is_explained(model: type[nn.Module], problem: str, fix: str) -> None:
    _check(EmbeddingError, model, problem, fix)


def _check(kind: type[IntakeError], model: type[nn.Module], problem: str, fix: str) -> None:
    lines, start = inspect.getsourcelines(model)
    line = next((start + i for i, text in enumerate(lines) if "# here" in text), None)
    with pytest.raises(kind) as caught:
        trace_model(model())
    assert problem.format(line=line) in caught.value.problem, str(caught.value)
    assert fix in str(caught.value)
    if line is not None:
        assert caught.value.where.endswith(f"test_errors.py:{line}"), str(caught.value)


def test_hooks_on_the_model_itself_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    model.register_forward_hook(lambda module, args, output: None)
    with pytest.raises(TracingError, match="forward hooks"):
        trace_model(model)


def test_rows_that_are_too_long_are_refused() -> None:
    with pytest.raises(EmbeddingError, match=r"0 has rows of more than 2\^20 elements.* To do: lower embedding_dim"):
        trace_model(nn.Sequential(nn.Embedding(1, (1 << 20) + 1)))


def test_names_that_the_state_of_optimizers_has_are_refused() -> None:
    model = nn.Linear(2, 1)
    model.register_parameter("weight::sum", nn.Parameter(torch.ones(1)))
    with pytest.raises(IntakeError, match=r"weight::sum: names with '::' are kept .* To do: rename it"):
        trace_model(model)


def test_ids_that_are_no_integers_are_refused_when_they_arrive() -> None:
    stage = trace_model(nn.Sequential(nn.Embedding(4, 2))).stage(0, 0)
    with pytest.raises(EmbeddingError, match=r"the ids of 0\.weight are torch\.float32, not int64"):
        stage.ids({"input": torch.ones(3)})


def test_bags_without_offsets_are_refused_when_they_arrive() -> None:
    stage = trace_model(nn.Sequential(nn.EmbeddingBag(4, 2))).stage(0, 0)
    with pytest.raises(EmbeddingError, match=r"have ids of shape \(3,\) and no offsets"):
        stage.ids({"input": torch.ones(3, dtype=torch.int64)})


def test_different_steps_in_training_and_evaluation_are_a_warning() -> None:
    class Modes(Base):
        def forward(self, ids: Tensor) -> Any:
            x = self.table(ids)
            return self.linear(x) if self.training else x

    assert any("takes different steps in training" in w for w in trace_model(Modes()).warnings)
