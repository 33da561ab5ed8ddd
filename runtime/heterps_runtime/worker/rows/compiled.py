"""Lookups of a block on a CPU: one compiled loop per lookup, which torch's autograd does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.worker.rows.entries import Array, Entry
from heterps_runtime.worker.tensors import is_finite

__all__ = ["CompiledLookups"]


class _Watched(torch.autograd.Function):
    """Hands over a tensor's gradient as it is. A leaf keeps a contiguous copy of a part of a wider gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        trigger: torch.Tensor,
        found: dict[tuple[int, int], torch.Tensor],
        key: tuple[int, int],
    ) -> torch.Tensor:
        ctx.found, ctx.key = found, key
        return values

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, ...]:
        ctx.found[ctx.key] = grad
        return None, None, None, None


class CompiledLookups:
    """Outputs of lookups are where the stage's graph begins.

    Args:
        entries: per micro-batch, in the order of sites.
    """

    def __init__(self, entries: Sequence[Sequence[Entry]]) -> None:
        self._entries = entries
        self._rows: dict[int, Array] = {}
        self._gradients: dict[int, Array] = {}
        self._outputs: dict[tuple[int, int], torch.Tensor] = {}  # gradients, by micro-batch and lookup
        self._winners: dict[tuple[int, int], Array] = {}
        self._trigger = torch.zeros((), requires_grad=True)  # lets autograd follow what is computed from the outputs

    def fill(self, rows: dict[int, Array]) -> None:
        """Set the rows: dim -> (U, dim)."""
        self._rows = rows

    def forward(self, micro_batch: int, *, training: bool) -> list[torch.Tensor]:
        """Outputs of the lookups of a micro-batch."""
        results = []
        for i, entry in enumerate(self._entries[micro_batch]):
            rows = self._rows[entry.dim]
            if entry.site.kind == "embedding":
                values = torch.from_numpy(gather(rows, entry.inverse)).view(*entry.shape, entry.dim)
            else:
                pooled, self._winners[micro_batch, i] = bag_forward(rows, _bags(entry))
                values = torch.from_numpy(pooled)
            results.append(self._watched(values, micro_batch, i) if training else values)
        return results

    def _watched(self, values: torch.Tensor, micro_batch: int, lookup: int) -> torch.Tensor:
        """An output whose gradient autograd hands over."""
        output: torch.Tensor = _Watched.apply(values, self._trigger, self._outputs, (micro_batch, lookup))  # type: ignore[no-untyped-call]
        return output

    def backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch's outputs to those of their rows."""
        for i, entry in enumerate(self._entries[micro_batch]):
            grad = self._outputs.pop((micro_batch, i), None)
            if grad is None:
                continue
            gradient = self._gradients.get(entry.dim)
            if gradient is None:
                gradient = self._gradients[entry.dim] = np.zeros_like(self._rows[entry.dim])
            if entry.site.kind == "embedding":
                scatter_add(grad.numpy(), entry.inverse, gradient, entry.skip)
            else:
                bag_backward(grad.numpy(), _bags(entry), self._winners[micro_batch, i], gradient)

    def gradients(self, factor: float | None) -> dict[int, tuple[Array, bool]]:
        """Gradients of rows, times a factor: dim -> (U, dim), of dims that have some, and whether all are finite."""
        if factor is not None:
            self._gradients = {dim: gradient * np.float32(factor) for dim, gradient in self._gradients.items()}
        return {dim: (gradient, is_finite(gradient)) for dim, gradient in self._gradients.items()}


def _bags(entry: Entry) -> Bags:
    assert entry.offsets is not None
    weights = None if entry.weights is None else entry.weights.detach().numpy().reshape(-1)
    mode: Any = entry.site.mode
    return Bags(entry.inverse, entry.offsets, mode, weights, entry.skip)
