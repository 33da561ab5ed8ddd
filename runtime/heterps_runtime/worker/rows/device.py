"""Lookups of a block on an accelerator: one gather and one sum of gradients per dimension, for all lookups together.

A kernel costs an accelerator more to launch than most lookups cost to compute, so the lookups of a micro-batch that
have rows of the same dimension are one gather. Its result is a leaf of the stage's graph, of which each lookup is a
part; a bag pools its part. Sums of gradients are those of `torch.nn.functional.embedding`, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heterps_runtime.worker.rows.entries import Array, Entry
from heterps_runtime.worker.tensors import arrays_of, moved

__all__ = ["DeviceLookups"]


@dataclass
class _Bag:
    """What pools a part of a gather.

    Attributes:
        numbers: (n,) 0, 1, ...: each row of the part is an entry of a bag.
        offsets: (B,) start of each bag.
        weights: (n,), if given.
    """

    numbers: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None


@dataclass
class _Gather:
    """The lookups of one dimension in a micro-batch.

    Attributes:
        sources: (n,) the rows of all lookups, one lookup after the other.
        targets: (n,) where gradients are added: `sources`, or a further row for entries that have none.
        sizes: entries of each lookup.
        num_targets: rows of the sum of gradients.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    sizes: list[int]
    num_targets: int


class DeviceLookups:
    """Lookups of a block of micro-batches.

    Args:
        entries: per micro-batch, in the order of sites.
        num_rows: dim -> U, number of unique rows.
        device: to compute on.
    """

    def __init__(self, entries: Sequence[Sequence[Entry]], num_rows: dict[int, int], device: torch.device) -> None:
        self._entries = entries
        self._num_rows = num_rows
        self._device = device
        self._on_host: dict[int, Array] = {}  # kept until they are copied
        self._rows: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor] = {}
        self._leaves: dict[int, dict[int, torch.Tensor]] = {}  # by micro-batch and dim
        self._bags: list[list[_Bag | None]] = []
        self._gathers: list[dict[int, _Gather]] = []
        for of_micro_batch in entries:
            kept = [_kept(entry) for entry in of_micro_batch]
            self._bags.append([self._bag(e, k) for e, k in zip(of_micro_batch, kept, strict=True)])
            self._gathers.append(self._gathers_of(of_micro_batch, kept))

    def fill(self, rows: dict[int, Array]) -> None:
        """Set the rows: dim -> (U, dim), which must not change until the block's gradients are there."""
        self._on_host = rows
        self._rows = {dim: moved(torch.from_numpy(values), self._device) for dim, values in rows.items()}

    def forward(self, micro_batch: int, *, training: bool) -> list[torch.Tensor]:
        """Outputs of the lookups of a micro-batch."""
        parts = {}
        leaves = self._leaves[micro_batch] = {}
        for dim, gather in self._gathers[micro_batch].items():
            values = self._rows[dim].index_select(0, gather.sources)
            if training:
                leaves[dim] = values.requires_grad_()
            parts[dim] = iter(torch.split(values, gather.sizes))
        results = []
        for entry, bag in zip(self._entries[micro_batch], self._bags[micro_batch], strict=True):
            part = next(parts[entry.dim])
            results.append(part.view(*entry.shape, entry.dim) if bag is None else _pool(part, bag, entry.site.mode))
        return results

    def backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch's outputs to those of their rows."""
        for dim, leaf in self._leaves.pop(micro_batch).items():
            if leaf.grad is None:
                continue
            gather = self._gathers[micro_batch][dim]
            known = self._gradients.get(dim)
            if not leaf.numel():
                summed = leaf.new_zeros(self._num_rows[dim], dim)
            else:
                all_targets = torch.ops.aten.embedding_dense_backward(
                    leaf.grad, gather.targets, gather.num_targets, -1, False
                )
                summed = all_targets[: self._num_rows[dim]]
            self._gradients[dim] = summed if known is None else known.add_(summed)

    def gradients(self, factor: float | None) -> dict[int, tuple[Array, bool]]:
        """Gradients of rows, times a factor: dim -> (U, dim), of dims that have some, and whether all are finite.

        Waits for the device.
        """
        if factor is not None:
            self._gradients = {dim: gradient * factor for dim, gradient in self._gradients.items()}
        dims = list(self._gradients)
        # The device sums them sooner than the host reads them.
        sums = {f"sum {dim}": gradient.sum() for dim, gradient in self._gradients.items()}
        found = arrays_of({str(dim): self._gradients[dim] for dim in dims} | sums)
        return {dim: (found[str(dim)], bool(np.isfinite(found[f"sum {dim}"]))) for dim in dims}

    def _gathers_of(self, entries: Sequence[Entry], kept: Sequence[Array | None]) -> dict[int, _Gather]:
        sources: dict[int, list[Array]] = {}
        targets: dict[int, list[Array]] = {}
        padded: set[int] = set()
        for entry, keeps in zip(entries, kept, strict=True):
            source = entry.inverse if keeps is None else entry.inverse[keeps]
            target = source
            if entry.offsets is None and entry.skip is not None and entry.skip.any():
                # A padding row is read like any other, but gets no gradient.
                target = np.where(entry.skip, np.int32(self._num_rows[entry.dim]), source)
                padded.add(entry.dim)
            sources.setdefault(entry.dim, []).append(source)
            targets.setdefault(entry.dim, []).append(target)
        gathers = {}
        for dim, parts in sources.items():
            there = self._moved(np.concatenate(parts))
            gathers[dim] = _Gather(
                there,
                self._moved(np.concatenate(targets[dim])) if dim in padded else there,
                [len(part) for part in parts],
                self._num_rows[dim] + (dim in padded),
            )
        return gathers

    def _bag(self, entry: Entry, kept: Array | None) -> _Bag | None:
        if entry.offsets is None:
            return None
        offsets, weights = entry.offsets, entry.weights
        size = entry.inverse.size
        if kept is not None:
            before = np.concatenate([[0], np.cumsum(kept)])
            offsets, size = before[offsets], int(before[-1])
            weights = None if weights is None else weights.detach().reshape(-1)[torch.from_numpy(kept)]
        return _Bag(
            torch.arange(size, device=self._device),
            self._moved(offsets.astype(np.int64)),
            None if weights is None else moved(weights.detach().reshape(-1), self._device),
        )

    def _moved(self, array: Array) -> torch.Tensor:
        return moved(torch.from_numpy(array), self._device)


def _kept(entry: Entry) -> Array | None:
    """(n,) the entries of bags that are not padding; None: all."""
    if entry.offsets is None or entry.skip is None or not entry.skip.any():
        return None
    return ~entry.skip


def _pool(part: torch.Tensor, bag: _Bag, mode: str) -> torch.Tensor:
    if not len(part):  # which torch refuses; the sum over no rows keeps the result in the graph
        return part.sum(0).expand(len(bag.offsets), -1)
    return torch.nn.functional.embedding_bag(bag.numbers, part, bag.offsets, mode=mode, per_sample_weights=bag.weights)
