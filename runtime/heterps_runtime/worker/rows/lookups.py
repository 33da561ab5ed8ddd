"""The embedding rows of micro-batches: unique keys to pull, tensors for the stage, gradients to push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from heterps_runtime.intake import Site, SiteIds
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys, make_key
from heterps_runtime.worker.rows.compiled import CompiledLookups
from heterps_runtime.worker.rows.device import DeviceLookups
from heterps_runtime.worker.rows.entries import Array, Entry

__all__ = ["LookupBlock"]


class LookupBlock:
    """Lookups of micro-batches that share one pull and one push.

    Args:
        sites: lookups of the stage.
        tables: of the model, by index.
        ids: per micro-batch and site, on the CPU.
        unique: belongs to the calling thread.
        device: of the stage.

    Attributes:
        keys: dim -> unique keys (U,) of the rows.
        arrived: whether the rows have been set.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        tables: Sequence[Table],
        ids: Sequence[Sequence[SiteIds]],
        unique: UniqueKeys,
        device: torch.device,
    ) -> None:
        self.keys: dict[int, Array] = {}
        self.arrived = not sites
        entries: list[list[Entry]] = [[] for _ in ids]
        raw: dict[int, list[Array]] = {}
        pending: dict[int, list[tuple[Entry, int]]] = {}
        for of_micro_batch, known in zip(ids, entries, strict=True):
            for site, given in zip(sites, of_micro_batch, strict=True):
                table = tables[site.table]
                values = given.ids.numpy().reshape(-1)
                skip = None if site.padding_idx is None else values == site.padding_idx
                offsets = None if given.offsets is None else given.offsets.numpy()
                entry = Entry(site, table.dim, tuple(given.ids.shape), values, skip, offsets, given.weights)
                known.append(entry)
                raw.setdefault(table.dim, []).append(make_key(site.table, values))
                pending.setdefault(table.dim, []).append((entry, values.size))
        for dim, parts in raw.items():
            keys, inverse = unique(parts[0] if len(parts) == 1 else np.concatenate(parts))
            self.keys[dim] = keys
            start = 0
            for entry, size in pending[dim]:
                entry.inverse = inverse[start : start + size]
                start += size
        self._lookups: CompiledLookups | DeviceLookups
        if device.type == "cpu":
            self._lookups = CompiledLookups(entries)
        else:
            self._lookups = DeviceLookups(entries, {dim: len(keys) for dim, keys in self.keys.items()}, device)

    def fill(self, rows: Mapping[int, Array]) -> None:
        """Set the pulled rows: dim -> (U, dim), in the order of `keys`."""
        filled = dict(rows)
        for dim, keys in self.keys.items():
            if not len(keys):
                filled[dim] = np.empty((0, dim), next(iter(rows.values())).dtype if rows else np.float32)
        self._lookups.fill(filled)
        self.arrived = True

    def forward(self, micro_batch: int, *, training: bool) -> list[torch.Tensor]:
        """Outputs of the lookups of a micro-batch, in the order of sites: they take gradients in training."""
        return self._lookups.forward(micro_batch, training=training)

    def backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch's outputs to those of their rows."""
        self._lookups.backward(micro_batch)

    def gradients(self) -> list[tuple[int, Array, Array]]:
        """Sums of gradients to push: (dim, keys (U,), gradients (U, dim))."""
        found = self._lookups.gradients()
        return [(dim, self.keys[dim], gradient) for dim, gradient in sorted(found.items()) if len(gradient)]
