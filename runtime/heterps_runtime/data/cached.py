"""A split in the local cache, memory-mapped as a whole."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from heterps_runtime.data.cache import CachedSplit, open_cached
from heterps_runtime.data.dataset import Dataset, DatasetSchema, Run
from heterps_runtime.data.folder import Progress
from heterps_runtime.data.npy import map_array
from heterps_runtime.data.order import BatchOrder, Rows, SequentialOrder
from heterps_runtime.data.source import Source
from heterps_runtime.data.spec import DataSpec, Split

__all__ = ["CachedDataset"]


class CachedDataset(Dataset):
    """Rows of a split in the local cache. Thread-safe.

    Args:
        spec: the job's data.
        cached: the split's cache.
    """

    def __init__(self, spec: DataSpec, cached: CachedSplit) -> None:
        super().__init__(DatasetSchema.of(spec, cached.single_valued, cached.multi_valued), cached.num_rows)
        self._cached = cached  # prevents the eviction of the folder
        self._arrays: dict[str, npt.NDArray[Any]] = {
            name: map_array(cached.folder / file) for name, file in cached.arrays.items()
        }

    @classmethod
    def open(cls, spec: DataSpec, split: Split, progress: Progress) -> CachedDataset:
        """Open a split. The first process of a machine builds the cache, the others wait."""
        return cls(spec, open_cached(Source(spec, split), progress))

    def training_order(self, global_batch_size: int, seed: int) -> BatchOrder:
        """See `Dataset.training_order`."""
        return BatchOrder(self.num_rows, global_batch_size, seed)

    def evaluation_order(self, global_batch_size: int) -> SequentialOrder:
        """See `Dataset.evaluation_order`."""
        return SequentialOrder(self.num_rows, global_batch_size)

    def runs(self, rows: Rows) -> list[Run]:
        """See `Dataset.runs`."""
        return [Run(self._arrays, rows)]

    def location(self, row: int) -> str:
        """See `Dataset.location`; the files are not known any more."""
        return f"row {row + 1:,}"
