"""The embedding rows of micro-batches: unique keys to pull, tensors for the stage, gradients to push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from heterps_runtime.intake import Site, SiteIds
from heterps_runtime.partition.tables import Table
from heterps_runtime.slots import slot_map
from heterps_runtime.store.initial import ID_BITS
from heterps_runtime.store.keys import UniqueKeys, fill_keys, group_by_shard
from heterps_runtime.worker.rows.compiled import CompiledLookups
from heterps_runtime.worker.rows.device import DeviceLookups
from heterps_runtime.worker.rows.entries import Array, Entry, RowGradients, ServerKeys

__all__ = ["LookupBlock"]

_NONE = np.empty(0, np.int32)


class LookupBlock:
    """Lookups of micro-batches that share one pull and one push.

    Args:
        sites: lookups of the stage.
        tables: of the model, by index.
        ids: per micro-batch and site, on the CPU.
        unique: belongs to the calling thread.
        device: of the stage.
        num_servers: parameter servers.

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
        num_servers: int,
    ) -> None:
        self.keys: dict[int, ServerKeys] = {}
        self.arrived = not sites
        entries: list[list[Entry]] = [[] for _ in ids]
        lookups: dict[int, list[tuple[Entry, SiteIds]]] = {}  # by dim
        for of_micro_batch, known in zip(ids, entries, strict=True):
            for site, given in zip(sites, of_micro_batch, strict=True):
                offsets = None if given.offsets is None else given.offsets.numpy()
                entry = Entry(site, tables[site.table].dim, tuple(given.ids.shape), _NONE, None, offsets, given.weights)
                known.append(entry)
                lookups.setdefault(entry.dim, []).append((entry, given))
        for dim, of_dim in lookups.items():
            self.keys[dim] = _number(of_dim, tables, unique, num_servers)
        self._lookups: CompiledLookups | DeviceLookups
        if device.type == "cpu":
            self._lookups = CompiledLookups(entries)
        else:
            self._lookups = DeviceLookups(entries, {dim: len(k.keys) for dim, k in self.keys.items()}, device)

    def fill(self, rows: Mapping[int, Array]) -> None:
        """Set the pulled rows: dim -> (U, dim), in the order of `keys`."""
        filled = dict(rows)
        for dim, known in self.keys.items():
            if not len(known.keys):
                filled[dim] = np.empty((0, dim), next(iter(rows.values())).dtype if rows else np.float32)
        self._lookups.fill(filled)
        self.arrived = True

    def forward(self, micro_batch: int, *, training: bool) -> list[torch.Tensor]:
        """Outputs of the lookups of a micro-batch, in the order of sites: they take gradients in training."""
        return self._lookups.forward(micro_batch, training=training)

    def backward(self, micro_batch: int) -> None:
        """Add the gradients of a micro-batch's outputs to those of their rows."""
        self._lookups.backward(micro_batch)

    def gradients(self, factor: float | None = None) -> list[RowGradients]:
        """Sums of gradients to push, multiplied by a factor if one is given."""
        found = self._lookups.gradients(factor)
        return [RowGradients(dim, self.keys[dim], *summed) for dim, summed in sorted(found.items()) if len(summed[0])]


def _number(
    lookups: Sequence[tuple[Entry, SiteIds]], tables: Sequence[Table], unique: UniqueKeys, num_servers: int
) -> ServerKeys:
    """The unique keys of lookups of one dimension; sets which of them each lookup reads."""
    keys = np.empty(sum(given.ids.numel() for _, given in lookups), np.int64)
    start = 0
    for entry, given in lookups:
        site, size = entry.site, given.ids.numel()
        mine = keys[start : start + size]
        fill_keys(site.table, tables[site.table].num_embeddings, given.ids.numpy().reshape(-1), mine)
        if site.padding_idx is not None:
            entry.skip = mine == (site.table << ID_BITS | site.padding_idx)
        start += size
    found, inverse = unique(keys)
    starts = np.array([0, len(found)])
    if num_servers > 1:
        found, starts = group_by_shard(found, inverse, slot_map(num_servers), num_servers)
    start = 0
    for entry, given in lookups:
        entry.inverse = inverse[start : start + given.ids.numel()]
        start += given.ids.numel()
    return ServerKeys(found, starts)
