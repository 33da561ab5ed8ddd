"""The embedding rows of micro-batches: unique keys to pull, leaf tensors for the stage, gradients to push.

Rows never enter autograd. The output of a lookup is a leaf tensor of the stage's graph. After the backward pass, its
gradient is added to the gradients of its rows: on a CPU by one compiled loop per lookup, on an accelerator by torch's
own embedding operations on the pulled rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.intake import Site, SiteIds
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys, make_key
from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.worker.gradients import backward

__all__ = ["LookupBlock"]

Array = np.ndarray[Any, Any]


@dataclass
class _Entry:
    """A lookup of a micro-batch."""

    site: Site
    dim: int
    shape: tuple[int, ...]  # of the ids
    inverse: Array  # (n,) positions in the block's unique keys of this dim
    skip: Array | None  # (n,) entries of padding_idx
    offsets: Array | None
    weights: torch.Tensor | None
    winners: Array | None = None
    graph: torch.Tensor | None = None  # on accelerators: the result with its graph


class LookupBlock:
    """Lookups of micro-batches that share one pull and one push.

    Args:
        sites: lookups of the stage.
        tables: of the model, by index.
        ids: per micro-batch and site.
        unique: belongs to the calling thread.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        tables: Sequence[Table],
        ids: Sequence[Sequence[SiteIds]],
        unique: UniqueKeys,
    ) -> None:
        self.keys: dict[int, Array] = {}
        self._rows: dict[int, Array] = {}
        self._device_rows: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, Array] = {}
        self._entries: list[list[_Entry]] = [[] for _ in ids]
        self.arrived = not sites
        raw: dict[int, list[Array]] = {}
        pending: dict[int, list[tuple[_Entry, int]]] = {}
        for m, of_micro_batch in enumerate(ids):
            for site, given in zip(sites, of_micro_batch, strict=True):
                table = tables[site.table]
                values = given.ids.detach().cpu().numpy().reshape(-1)
                skip = None if site.padding_idx is None else values == site.padding_idx
                entry = _Entry(site, table.dim, tuple(given.ids.shape), values, skip, _offsets(given), given.weights)
                self._entries[m].append(entry)
                raw.setdefault(table.dim, []).append(make_key(site.table, values))
                pending.setdefault(table.dim, []).append((entry, values.size))
        for dim, parts in raw.items():
            keys, inverse = unique(parts[0] if len(parts) == 1 else np.concatenate(parts))
            self.keys[dim] = keys
            start = 0
            for entry, size in pending[dim]:
                entry.inverse = inverse[start : start + size]
                start += size

    def fill(self, rows: Mapping[int, Array]) -> None:
        """Set the pulled rows: dim -> (U, dim), in the order of `keys`."""
        self._rows = dict(rows)
        for dim, keys in self.keys.items():
            if not len(keys):
                self._rows[dim] = np.empty((0, dim), next(iter(rows.values())).dtype if rows else np.float32)
        self.arrived = True

    # --- forward and backward -----------------------------------------------------------------------------------------

    def forward(self, micro_batch: int, device: torch.device, *, training: bool) -> list[torch.Tensor]:
        """Outputs of the lookups of a micro-batch, in the order of sites: leaves that require gradients in training."""
        results = []
        for entry in self._entries[micro_batch]:
            value = self._look_up(entry) if device.type == "cpu" else self._look_up_on_device(entry, device, training)
            results.append(value.requires_grad_(training))
        return results

    def backward(self, micro_batch: int, leaves: Sequence[torch.Tensor]) -> None:
        """Add the gradients of a micro-batch's lookups to those of their rows."""
        for entry, leaf in zip(self._entries[micro_batch], leaves, strict=True):
            if leaf.grad is None:
                continue
            if entry.graph is not None:
                backward([entry.graph], [leaf.grad])
                entry.graph = None
                continue
            rows = self._rows[entry.dim]
            gradient = self._gradients.get(entry.dim)
            if gradient is None:
                gradient = self._gradients[entry.dim] = np.zeros_like(rows)
            given = leaf.grad.contiguous().numpy().reshape(-1, entry.dim)
            if entry.site.kind == "embedding":
                scatter_add(given, entry.inverse, gradient, entry.skip)
            else:
                assert entry.winners is not None
                bag_backward(given, self._bags(entry), entry.winners, gradient)

    def gradients(self) -> list[tuple[int, Array, Array]]:
        """Sums of gradients to push: (dim, keys (U,), gradients (U, dim))."""
        for dim, rows in self._device_rows.items():
            if rows.grad is not None:
                self._gradients[dim] = rows.grad.cpu().numpy()
        return [(dim, self.keys[dim], gradient) for dim, gradient in sorted(self._gradients.items()) if len(gradient)]

    # --- one lookup ---------------------------------------------------------------------------------------------------

    def _look_up(self, entry: _Entry) -> torch.Tensor:
        rows = self._rows[entry.dim]
        if entry.site.kind == "embedding":
            return torch.from_numpy(gather(rows, entry.inverse)).view(*entry.shape, entry.dim)
        pooled, entry.winners = bag_forward(rows, self._bags(entry))
        return torch.from_numpy(pooled)

    def _bags(self, entry: _Entry) -> Bags:
        assert entry.offsets is not None
        weights = None if entry.weights is None else entry.weights.detach().cpu().numpy().reshape(-1)
        mode: Any = entry.site.mode
        return Bags(entry.inverse, entry.offsets, mode, weights, entry.skip)

    def _look_up_on_device(self, entry: _Entry, device: torch.device, training: bool) -> torch.Tensor:
        rows = self._device_rows.get(entry.dim)
        if rows is None:
            rows = torch.from_numpy(self._rows[entry.dim].copy()).to(device)
            self._device_rows[entry.dim] = rows.requires_grad_(training)
        positions = torch.from_numpy(entry.inverse.astype(np.int64)).to(device)
        if entry.site.kind == "embedding":
            value = torch.nn.functional.embedding(positions, rows).view(*entry.shape, entry.dim)
            if entry.skip is not None and entry.skip.any():
                # A padding row is read like any other, but gets no gradient.
                kept = torch.from_numpy(~entry.skip).to(device).view(*entry.shape, 1)
                value = torch.where(kept, value, value.detach())
        else:
            value = self._pool_on_device(entry, rows, positions, device)
        if training:
            entry.graph = value
        return value.detach()

    def _pool_on_device(
        self, entry: _Entry, rows: torch.Tensor, positions: torch.Tensor, device: torch.device
    ) -> torch.Tensor:
        assert entry.offsets is not None
        offsets = torch.from_numpy(entry.offsets).to(device)
        weights = None if entry.weights is None else entry.weights.detach().to(device).reshape(-1)
        padding = None
        if entry.skip is not None and entry.skip.any():
            padding = int(entry.inverse[int(np.argmax(entry.skip))])
        return torch.nn.functional.embedding_bag(
            positions,
            rows,
            offsets,
            mode=entry.site.mode,
            per_sample_weights=weights,
            padding_idx=padding,
        )


def _offsets(given: SiteIds) -> Array | None:
    return None if given.offsets is None else given.offsets.detach().cpu().numpy()
