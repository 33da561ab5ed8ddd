"""A split that is read while it is trained on: blocks are fetched ahead of the steps that need them."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from heterps_runtime.data.block_cache import BlockCache
from heterps_runtime.data.dataset import Dataset, DatasetSchema, Run
from heterps_runtime.data.errors import DataCacheError, DataError
from heterps_runtime.data.files import patiently
from heterps_runtime.data.folder import Progress, size_text
from heterps_runtime.data.index import open_index
from heterps_runtime.data.order import RowOrder, Rows
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.records import Arrays, array_types, arrays_of, empty, joined, row_bytes
from heterps_runtime.data.spec import DataSpec, Split
from heterps_runtime.data.windows import WindowedOrder

__all__ = ["StreamedDataset"]

_READERS = 4  # threads: they wait for a store most of the time
_READ_BY = 0.75  # of a window's steps: then the next one has been read


class StreamedDataset(Dataset):
    """Rows of a split, read in blocks.

    Args:
        spec: the job's data.
        split: of the data.
        progress: see `folder.Progress`.

    Raises:
        DataError: the data is wrong, or cannot be read; the message names the remedy.
    """

    def __init__(self, spec: DataSpec, split: Split, progress: Progress) -> None:
        self._index = open_index(spec, split, progress)
        source = self._index.source
        schema = DatasetSchema.of(spec, source.single_valued, source.multi_valued)
        super().__init__(schema, self._index.num_rows)
        self.layout = self._index.layout
        self._source, self._spec = source, spec
        self._types = array_types(source)
        self._cache = BlockCache(self._index.folder, list(self._types), spec.cache_max_bytes, progress)
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="blocks")
        self._expected: dict[int, Future[Arrays]] = {}  # the blocks of this window and the next
        self._expecting: tuple[range, int, int] | None = None  # what they were chosen for
        self._later: list[int] = []  # blocks of the next window that are not in this one
        self._counting = threading.Lock()
        self._bytes_per_row = float(row_bytes(source))  # of blocks read so far, once there are some

    # --- orders -------------------------------------------------------------------------------------------------------
    def training_order(self, global_batch_size: int, seed: int) -> WindowedOrder:
        """See `Dataset.training_order`."""
        return WindowedOrder(self._index.block_rows, global_batch_size, seed, self._spec.window_rows)

    def evaluation_order(self, global_batch_size: int) -> WindowedOrder:
        """See `Dataset.evaluation_order`."""
        return WindowedOrder(self._index.block_rows, global_batch_size, None, self._spec.window_rows)

    # --- reading ahead ------------------------------------------------------------------------------------------------
    def read_ahead(self, order: RowOrder, step: int, start: int, stop: int, end: int) -> None:
        """See `Dataset.read_ahead`."""
        assert isinstance(order, WindowedOrder)
        window = order.window(step)
        if (window, start, stop) != self._expecting:
            self._expecting = (window, start, stop)
            now = order.blocks(step, start, stop).tolist()
            later = []
            if window.stop < end:
                size = order.batches.size(window.stop)  # the end of an epoch may have a shorter batch
                later = order.blocks(window.stop, min(start, size), min(stop, size)).tolist()
            self._expect(now, [block for block in later if block not in set(now)])
        # At an even pace, so that reading takes the same part of each step.
        pace = (step + 1 - window.start) / (_READ_BY * len(window))
        for block in self._later[: math.ceil(len(self._later) * pace)]:
            self._submit(block)

    def _expect(self, now: list[int], later: list[int]) -> None:
        """Fetch the blocks of this window, and choose those of the next as far as they fit into the cache."""
        room = self._spec.cache_max_bytes - self._bytes_of(now)
        if room < 0:
            raise DataCacheError(
                f"spec.data.cache.maxBytes: is {size_text(self._spec.cache_max_bytes)}, but this worker's share of a "
                f"window of {self._spec.window_rows:,} rows takes about {size_text(int(self._bytes_of(now)))}; raise "
                "it, or lower spec.data.windowRows"
            )
        fitting = np.cumsum(self._index.block_rows[later]) * self._bytes_per_row <= room
        self._later = later[: int(fitting.sum())]
        for block in set(self._expected) - {*now, *self._later}:
            self._expected.pop(block).cancel()
        for block in now:
            self._submit(block)

    def _submit(self, block: int) -> None:
        if block not in self._expected:
            self._expected[block] = self._threads.submit(self._fetch, block)

    def _bytes_of(self, blocks: Sequence[int]) -> float:
        return float(self._index.block_rows[blocks].sum()) * self._bytes_per_row if len(blocks) else 0.0

    def forget(self) -> None:
        """See `Dataset.forget`."""
        self._expecting = None
        self._expect([], [])

    # --- reading ------------------------------------------------------------------------------------------------------
    def runs(self, rows: Rows) -> list[Run]:
        """See `Dataset.runs`."""
        if not len(rows):
            return [Run(empty(self._types), rows)]
        blocks = np.searchsorted(self._index.starts, rows, side="right") - 1
        bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
        runs = []
        for a, b in itertools.pairwise(bounds):
            block = int(blocks[a])
            expected = self._expected.get(block)
            arrays = expected.result() if expected is not None else self._fetch(block)
            runs.append(Run(arrays, rows[a:b] - self._index.starts[block]))
        return runs

    def location(self, row: int) -> str:
        """See `Dataset.location`."""
        block = int(np.searchsorted(self._index.starts, row, side="right")) - 1
        return self._place(block).row(row - int(self._index.starts[block]))

    def _place(self, block: int) -> BatchLocation:
        return BatchLocation(self._source.files[self._index.files[block]].path, self._index.first_in_file(block))

    def _fetch(self, block: int) -> Arrays:
        """The arrays of a block, from the cache or the source."""
        cached = self._cache.get(block)
        if cached is None:
            with self._cache.locked(block):
                cached = self._cache.get(block)  # another process may have read it in the meantime
                if cached is None:
                    cached = self._cache.add(block, self._read(block))
        return cached

    def _read(self, block: int) -> Arrays:
        """Read a block from its source.

        Raises:
            DataError: the data is wrong.
            DataUnavailableError: the store does not deliver it.
        """
        file = self._source.files[self._index.files[block]]
        arrays = patiently(lambda: self._convert(block), f"{self._source.field}: {file.path}")
        with self._counting:
            self.rows_read += len(arrays["label"])
        self._bytes_per_row = max(self._bytes_per_row, sum(a.nbytes for a in arrays.values()) / len(arrays["label"]))
        return arrays

    def _convert(self, block: int) -> Arrays:
        file = self._source.files[self._index.files[block]]
        first, unit = self._index.first_in_file(block), self._index.unit(block)
        parts, row = [], first
        for batch in self._source.read(file, unit):
            if batch.num_rows:
                parts.append(arrays_of(batch, self._source, BatchLocation(file.path, row)))
                row += batch.num_rows
        if row - first != unit.rows:
            raise DataError(
                f"{self._source.field}: {file.path} has {row - first:,} rows where there were {unit.rows:,} when the "
                "job's data was listed; put the file back and resume the job"
            )
        return joined(parts, self._types)
