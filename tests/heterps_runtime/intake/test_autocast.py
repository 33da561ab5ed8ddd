"""A module's own autocast: a model cut in any way computes in the types that PyTorch computes in."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from heterps_runtime.intake import trace_model
from tests.heterps_runtime.helpers.chains import assert_equal, chained, unsplit


class Tower(nn.Module):
    """Layers that ask for bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(torch.relu(self.first(x)))
        return x


class Model(nn.Module):
    """A region in a submodule, one in `forward`, and one that is off within it; the addition is in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.before, self.tower, self.after = nn.Linear(8, 8), Tower(), nn.Linear(8, 8)
        self.exact, self.act, self.out = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        short = self.tower(self.before(self.table(ids)))
        with torch.autocast("cpu", torch.bfloat16):
            x = self.after(short)
            with torch.autocast("cpu", enabled=False):
                x = self.exact(self.act(x + short).float())
        logits: Tensor = self.out(x).squeeze(-1)
        return logits


class Off(nn.Module):
    """A layer that must not be computed in a shorter type."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            logits: Tensor = self.out(self.table(ids)).squeeze(-1)
        return logits


class ShortLogits(Off):
    """Logits in bfloat16."""

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = self.out(self.table(ids)).squeeze(-1)
        return logits


def test_every_way_to_cut_computes_in_the_types_of_pytorch() -> None:
    torch.manual_seed(1)
    module = Model()
    model = trace_model(module)
    batch = {"ids": torch.arange(16)}
    upstream = torch.randn(16, generator=torch.Generator().manual_seed(2))
    expected = unsplit(module, batch, upstream)
    layers = len(model.layers)
    assert layers == 7
    for cuts in (c for n in range(3) for c in itertools.combinations(range(1, layers), n)):
        assert_equal(chained(model, cuts, batch, upstream, to_features=False), expected)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", [Model, Off, ShortLogits])
def test_regions_hold_within_the_precision_of_the_job(kind: type[Model | Off], precision: torch.dtype | None) -> None:
    torch.manual_seed(1)
    module = kind()
    stage = (model := trace_model(module)).stage(0, len(model.layers) - 1).multiply_in(precision)
    inputs = {"ids": torch.arange(16)}
    rows = [module.table(site.ids) for site in stage.ids(inputs)]
    with torch.no_grad():
        logits = stage.forward(inputs, rows)["logits"]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            expected = module(**inputs)
    assert torch.equal(logits, expected.float())
    assert logits.dtype == torch.float32
