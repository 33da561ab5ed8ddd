"""Lookups of a block: an accelerator's, which torch computes, equal those that are compiled for CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.intake import Site, SiteIds
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.worker.rows import lookups
from heterps_runtime.worker.rows.device import DeviceLookups
from heterps_runtime.worker.rows.entries import RowGradients
from heterps_runtime.worker.rows.lookups import LookupBlock

CPU = torch.device("cpu")
DEVICES = [
    CPU,  # torch's operations, on a machine without a card
    pytest.param(
        torch.device("cuda"),
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
    ),
]
TABLES = [
    Table(0, "users.weight", 40, 4, None),
    Table(1, "items.weight", 30, 4, 0),
    Table(2, "words.weight", 50, 8, 3),
]
SITES = [
    Site(0, "embedding", "", None),
    Site(1, "embedding", "", 0),  # with padding
    Site(2, "embedding", "", 3),
    Site(1, "bag", "mean", 0),
    Site(2, "bag", "sum", None),
    Site(2, "bag", "max", 3),
]


def _ids(draw: torch.Generator, size: int) -> list[SiteIds]:
    """Ids of each site for a micro-batch; some bags are empty, and some have nothing but padding."""

    def integers(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, most, shape, generator=draw)

    def bags(most: int, *, weighted: bool = False) -> SiteIds:
        sizes = integers(4, size)
        count = int(sizes.sum())
        weights = torch.rand(count, generator=draw, dtype=torch.float64) if weighted else None
        return SiteIds(integers(most, count), torch.cumsum(sizes, 0) - sizes, weights)

    return [
        SiteIds(integers(40, size), None, None),
        SiteIds(integers(4, size, 3), None, None),  # many zeros
        SiteIds(integers(50, size), None, None),
        bags(3),
        bags(50, weighted=True),
        bags(6),
    ]


def _run(block: LookupBlock, micro_batches: int) -> tuple[list[Any], list[RowGradients]]:
    """Outputs of all lookups, and the gradients of rows for a loss that weighs each output's entry differently."""
    random = np.random.default_rng(1)
    block.fill({dim: random.normal(size=(len(known.keys), dim)) for dim, known in block.keys.items()})
    outputs = []
    for number in range(micro_batches):
        found = block.forward(number, training=True)
        outputs.append([value.detach().cpu().numpy() for value in found])
        weights = [torch.linspace(1, 2, value.numel(), dtype=value.dtype).view(value.shape) for value in found]
        parts = [(value * w.to(value.device)).sum() for value, w in zip(found, weights, strict=True)]
        torch.autograd.backward(torch.stack(parts).sum())
        block.backward(number)
    return outputs, block.gradients()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [7, 1, 0])
def test_torch_computes_the_lookups_that_are_compiled_for_cpus(
    device: torch.device, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(size)
    ids = [_ids(draw, size) for _ in range(3)]
    compiled = LookupBlock(SITES, TABLES, ids, UniqueKeys(), CPU, 3)

    def on_device(entries: Any) -> DeviceLookups:
        return DeviceLookups(entries, {dim: len(known.keys) for dim, known in compiled.keys.items()}, device)

    monkeypatch.setattr(lookups, "CompiledLookups", on_device)
    torch_computes = LookupBlock(SITES, TABLES, ids, UniqueKeys(), CPU, 3)
    monkeypatch.undo()

    expected, expected_gradients = _run(compiled, len(ids))
    outputs, gradients = _run(torch_computes, len(ids))
    for mine, theirs in zip(outputs, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert [(g.dim, g.finite) for g in gradients] == [(g.dim, True) for g in expected_gradients]
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_array_equal(gradient.keys.keys, other.keys.keys)
        np.testing.assert_allclose(gradient.values, other.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_keeps_no_graph(device: torch.device) -> None:
    draw = torch.Generator().manual_seed(2)
    block = LookupBlock(SITES, TABLES, [_ids(draw, 5)], UniqueKeys(), device, 1)
    block.fill({dim: np.ones((len(known.keys), dim)) for dim, known in block.keys.items()})
    assert not any(value.requires_grad for value in block.forward(0, training=False))
    assert block.gradients() == []


@pytest.mark.parametrize("device", [None, *DEVICES])  # None: compiled
@pytest.mark.parametrize("broken", [np.nan, np.inf, None])
def test_gradients_are_unscaled_and_say_whether_they_are_finite(
    broken: float | None, device: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(3)
    site, ids = Site(0, "embedding", "", None), SiteIds(torch.randint(0, 40, (9,), generator=draw), None, None)
    size = len(torch.unique(ids.ids))
    if device is not None:
        monkeypatch.setattr(lookups, "CompiledLookups", lambda entries: DeviceLookups(entries, {4: size}, device))
    block = LookupBlock([site], TABLES, [[ids]], UniqueKeys(), CPU, 1)
    block.fill({4: np.zeros((size, 4), np.float32)})
    [output] = block.forward(0, training=True)
    weights = torch.full_like(output, 6.0)
    if broken is not None:
        weights[3, 1] = broken
    (output * weights).sum().backward()  # type: ignore[no-untyped-call]
    block.backward(0)
    [gradient] = block.gradients(0.5)
    assert gradient.finite == (broken is None)
    expected = np.where(np.isfinite(gradient.values), gradient.values, 0.0)
    assert 3.0 * 8 * 4 <= expected.sum() <= 3.0 * 9 * 4
