"""Fully connected layers by oneDNN: the same results and gradients as PyTorch's, in float32 and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from heterps_runtime.config import RunConfig
from heterps_runtime.intake import StageModule, linear, trace_model
from heterps_runtime.worker.model import UserModel
from tests.heterps_runtime.helpers.jobs import configuration

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
pytestmark = pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")

SAMPLES, WIDTH = 12, 29  # rows that are no multiple of a cache line


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Small layers count as large ones; the shapes of the inputs of those that oneDNN computes."""
    found: list[tuple[int, ...]] = []
    product = linear._product

    def noting(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        found.append(tuple(left.shape))
        return product(left, right, bias)

    monkeypatch.setattr(linear, "_LEAST_PRODUCTS", 1)
    monkeypatch.setattr(linear, "_product", noting)
    return found


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


INPUTS: dict[str, Callable[[], Tensor]] = {
    "a matrix": lambda: _random(SAMPLES, WIDTH),
    "a sequence": lambda: _random(SAMPLES, 3, WIDTH),
    "a vector": lambda: _random(WIDTH),
    "columns of a wider matrix": lambda: _random(SAMPLES, 2 * WIDTH)[:, ::2],
    "a transposed matrix": lambda: _random(WIDTH, SAMPLES).t(),
    "one row for all": lambda: _random(WIDTH).expand(SAMPLES, WIDTH),
}
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as they come": lambda y: (y * _random(*y.shape)).sum(),
    "all the same": lambda y: y.sum(),
    "transposed": lambda y: (y.transpose(0, -1) * _random(*y.transpose(0, -1).shape)).sum(),
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_results_and_gradients_are_those_of_pytorch(
    inputs: str, gradient: str, with_bias: bool, calls: list[tuple[int, ...]]
) -> None:
    def compute(layer: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = INPUTS[inputs]().to(dtype)
        values = [_random(7, WIDTH).to(dtype), _random(7).to(dtype)][: 1 + with_bias]
        leaves = [tensor.detach().requires_grad_() for tensor in (given, *values)]
        result = layer(*leaves)
        GRADIENTS[gradient](result.double()).backward()  # type: ignore[no-untyped-call]
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    found = compute(linear.linear, torch.float32)
    assert len(calls) == 3
    assert {tensor.dtype for tensor in found} == {torch.float32}
    for tensor, exact in zip(found, compute(nn.functional.linear, torch.float64), strict=True):
        torch.testing.assert_close(tensor.double(), exact, rtol=1e-5, atol=1e-5)


def test_only_wanted_gradients_are_computed(calls: list[tuple[int, ...]]) -> None:
    inputs, weight = _random(SAMPLES, WIDTH).float(), _random(7, WIDTH).float()
    linear.linear(inputs, weight.requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]
    assert len(calls) == 2
    calls.clear()
    linear.linear(inputs.requires_grad_(), weight.detach()).sum().backward()  # type: ignore[no-untyped-call]
    assert len(calls) == 2
    calls.clear()
    with torch.no_grad():
        assert not linear.linear(inputs, weight).requires_grad
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype, calls: list[tuple[int, ...]]) -> None:
    inputs, weight = _random(SAMPLES, WIDTH).to(dtype), _random(7, WIDTH).to(dtype)
    assert torch.equal(linear.linear(inputs, weight), nn.functional.linear(inputs, weight))
    assert calls == []


def test_autocast_and_small_layers_are_left_to_torch(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, weight = _random(SAMPLES, WIDTH).float(), _random(7, WIDTH).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert linear.linear(inputs, weight).dtype == torch.bfloat16
    monkeypatch.setattr(linear, "_LEAST_PRODUCTS", SAMPLES * WIDTH * 7 + 1)
    linear.linear(inputs, weight)
    assert calls == []
    monkeypatch.setattr(linear, "_LEAST_PRODUCTS", SAMPLES * WIDTH * 7)
    linear.linear(inputs, weight)
    assert len(calls) == 1


def test_a_vector_as_weight_is_left_to_torch(calls: list[tuple[int, ...]]) -> None:
    inputs, weight = _random(SAMPLES, WIDTH).float(), _random(WIDTH).float()
    assert torch.equal(linear.linear(inputs, weight), nn.functional.linear(inputs, weight))
    assert calls == []


def test_no_samples_are_no_error(calls: list[tuple[int, ...]]) -> None:
    assert linear.linear(torch.zeros(0, WIDTH), torch.zeros(7, WIDTH)).shape == (0, 7)


class Model(nn.Module):
    """A layer that is a module, one within another module, one that is a call, and one of a subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 5)
        self.first, self.tower = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 4), nn.ReLU())
        self.weight, self.out = nn.Parameter(_random(4, 4).float()), Doubled(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.linear(input=self.tower(self.first(self.table(ids))), weight=self.weight)
        logits: Tensor = self.out(x).squeeze(-1)
        return logits


class Doubled(nn.Linear):
    """A layer of the user's own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_stage_computes_all_its_layers_so(calls: list[tuple[int, ...]]) -> None:
    torch.manual_seed(3)
    module = Model()
    model = trace_model(module)
    ids, rows = torch.arange(SAMPLES), module.table.weight.detach()

    def compute(stage: StageModule) -> list[Tensor]:
        leaves = {name: value.requires_grad_() for name, value in stage.initial_parameters().items()}
        stage.bind(leaves)
        [logits] = stage.forward({"ids": ids}, [rows[ids]]).values()
        logits.sum().backward()  # type: ignore[no-untyped-call]
        return [logits.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]

    expected = compute(model.stage(0, len(model.layers) - 1))
    assert calls == []
    found = compute(model.stage(0, len(model.layers) - 1).use_onednn())
    # The subclass calls the function from code that is traced, so that it counts, too.
    assert [shape for shape in calls if shape[0] == SAMPLES][:4] == [(SAMPLES, n) for n in (5, 6, 4, 4)]
    assert len(expected) == len(found) == 8
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("text", "faster"),
    [("vendor_id\t: AuthenticAMD\n", True), ("vendor_id\t: GenuineIntel\n", False), ("CPU implementer: 0x41\n", False)],
)
def test_the_processor_decides(text: str, faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{text}")
    monkeypatch.setattr(linear, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    linear.onednn_is_faster.cache_clear()
    try:
        assert linear.onednn_is_faster() == faster
        model = UserModel.build(RunConfig.from_json(configuration(tmp_path / "job", precision="fp32")), None)
        stage = model.stage(0, len(model.layered.layers) - 1, torch.device("cpu"))
        assert any(type(part) is linear._Linear for part in stage.module.modules()) == faster
    finally:
        linear.onednn_is_faster.cache_clear()


def test_an_unknown_processor_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_CPU_INFO", tmp_path / "none")
    assert linear._vendor() == ""
