"""Lookups of a block on a CPU: one compiled loop per lookup, which torch's autograd does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.worker.rows.entries import Array, Entry

__all__ = ["CompiledLookups"]


class CompiledLookups:
    """Outputs of lookups are leaf tensors of the stage's graph.

    Args:
        entries: per micro-batch, in the order of sites.
    """

    def __init__(self, entries: Sequence[Sequence[Entry]]) -> None:
        self._entries = entries
        self._rows: dict[int, Array] = {}
        self._gradients: dict[int, Array] = {}
        self._leaves: dict[int, list[torch.Tensor]] = {}  # by micro-batch
        self._winners: dict[tuple[int, int], Array] = {}  # by micro-batch and lookup

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
            results.append(values.requires_grad_(training))
        if training:
            self._leaves[micro_batch] = results
        return results

    def backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch's outputs to those of their rows."""
        leaves = self._leaves.pop(micro_batch)
        for i, (entry, leaf) in enumerate(zip(self._entries[micro_batch], leaves, strict=True)):
            if leaf.grad is None:
                continue
            gradient = self._gradients.get(entry.dim)
            if gradient is None:
                gradient = self._gradients[entry.dim] = np.zeros_like(self._rows[entry.dim])
            given = leaf.grad.contiguous().numpy().reshape(-1, entry.dim)
            if entry.site.kind == "embedding":
                scatter_add(given, entry.inverse, gradient, entry.skip)
            else:
                bag_backward(given, _bags(entry), self._winners[micro_batch, i], gradient)

    def gradients(self) -> dict[int, Array]:
        """Gradients of the rows: dim -> (U, dim), of the dims that have some."""
        return self._gradients


def _bags(entry: Entry) -> Bags:
    assert entry.offsets is not None
    weights = None if entry.weights is None else entry.weights.detach().numpy().reshape(-1)
    mode: Any = entry.site.mode
    return Bags(entry.inverse, entry.offsets, mode, weights, entry.skip)
