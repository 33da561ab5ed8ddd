"""A model cut in any way computes what the user's module computes, forwards and backwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heterps_runtime.intake import trace_model
from tests.heterps_runtime.helpers.chains import assert_equal, chained, unsplit
from tests.heterps_runtime.helpers.models import EXAMPLES

_MOST_CUTS = 40


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _ways_to_cut(num_layers: int) -> list[tuple[int, ...]]:
    """Every way to cut into one to four stages, or a fixed sample of them."""
    ways = [cuts for n in range(4) for cuts in itertools.combinations(range(1, num_layers), n)]
    return ways if len(ways) <= _MOST_CUTS else ways[:1] + random.Random(7).sample(ways[1:], _MOST_CUTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_way_to_cut_gives_the_same_logits_and_gradients(name: str) -> None:
    torch.manual_seed(1)
    module = EXAMPLES[name].build()
    model = trace_model(module)
    batch = EXAMPLES[name].batch(torch.Generator().manual_seed(2), 6)
    upstream = torch.randn(module(**batch).shape, generator=torch.Generator().manual_seed(3))
    expected = unsplit(module, batch, upstream)
    floats = {n for n, v in batch.items() if v.is_floating_point()}
    # the weights of a bag are prepared with the ids, so no gradient goes through them to the feature
    without = {"price"} if name == "bags" else set()
    ways = _ways_to_cut(len(model.layers))
    assert len(ways) > 10
    for i, cuts in enumerate(ways):
        to_features = i % 2 == 0
        got = chained(model, cuts, batch, upstream, to_features=to_features)
        assert_equal(got, expected, but=frozenset(without if to_features else floats))


class Chain(nn.Module):
    """Steps of random kinds, each reading the one before and one or two earlier values."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = [(kind, left, right) for kind, left, right in steps]
        self.tables = nn.ModuleList([nn.Embedding(11, 4), nn.Embedding(7, 4)])
        self.linears = nn.ModuleList([nn.Linear(4, 4) for _ in steps])
        self.act = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, ids: Tensor, numbers: Tensor) -> Any:
        values = [self.tables[0](ids), numbers]
        for i, (kind, left, right) in enumerate(self.steps):
            x, y = values[-1 - left % len(values)], values[-1 - right % len(values)]
            if kind == "linear":
                z = self.linears[i](x)
            elif kind == "add":
                z = self.linears[i](x)
                z += y
            elif kind == "act":
                z = self.act(x * 1.5)
            elif kind == "in place":
                z = self.act(self.linears[i](x))
            elif kind == "lookup":
                z = self.tables[1]((ids + i) % 7) * x
            elif kind == "split":
                first, second = torch.cat([x, y], dim=1).chunk(2, dim=1)
                z = first - second.view(x.shape[0], -1)
            elif kind == "view":
                z = self.linears[i](x)
                narrow = z[:, 1:3]
                narrow.mul_(2.0)
            else:
                z = x * self.scale + y
            values.append(z)
        return values[-1].sum(1)


_KINDS = ["linear", "add", "act", "in place", "lookup", "split", "view", "scale"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 3), st.integers(0, 5)), min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
def test_random_chains_with_skips_splits_and_in_place_steps_survive_any_cut(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    torch.manual_seed(seed)
    module = Chain(steps)
    model = trace_model(module)
    generator = torch.Generator().manual_seed(seed)
    batch = {"ids": torch.randint(11, (5,), generator=generator), "numbers": torch.randn(5, 4, generator=generator)}
    upstream = torch.randn(5, generator=generator)
    expected = unsplit(module, batch, upstream)
    ways = _ways_to_cut(len(model.layers))
    for cuts in random.Random(seed).sample(ways, min(len(ways), 6)):
        assert_equal(chained(model, cuts, batch, upstream, to_features=True), expected)
        assert_equal(chained(model, cuts, batch, upstream), expected, but=frozenset({"numbers"}))
