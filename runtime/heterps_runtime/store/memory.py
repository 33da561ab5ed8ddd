"""Arrays that grow without copying.

Rows of a shard live in a few large arrays that double as rows come. Copying a gigabyte takes about half a second in
which a server would answer no request. An anonymous memory map grows by moving page tables instead (mremap), and pages
that no row has used yet cost no memory.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Slab"]

_HUGE_PAGES_FROM = 4 << 20  # bytes; below that a 2 MiB page would mostly be waste
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Slab:
    """A growing array (capacity, *row_shape), zero where it was never written.

    Attributes:
        array: The current memory. Fetch it anew after `reserve`: growth may move it, and an old view kept anywhere
            forces a copy instead of a move.
    """

    def __init__(self, dtype: DTypeLike, row_shape: tuple[int, ...] = (), capacity: int = 1024) -> None:
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self.row_nbytes = int(self._dtype.itemsize * np.prod(row_shape, dtype=np.int64))
        self._map = mmap.mmap(-1, capacity * self.row_nbytes, flags=_FLAGS)
        self.array: NDArray[Any] = self._over_map(capacity)

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return len(self.array)

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows, keeping all contents; at least doubles when it grows.

        Raises:
            MemoryError: the system has no such amount of memory; the slab is as before.
        """
        old = self.capacity
        if num_rows <= old:
            return
        new = max(num_rows, 2 * old)
        del self.array  # a map with views on it cannot move
        try:
            self._map.resize(new * self.row_nbytes)
        except (BufferError, SystemError):  # another view exists, or this system has no mremap
            self.array = self._over_map(old)
            self._copy_into_larger(new)
        except OSError as error:
            self.array = self._over_map(old)
            raise MemoryError(f"no memory for {new} rows of {self.row_nbytes} bytes") from error
        self.array = self._over_map(new)

    def _copy_into_larger(self, capacity: int) -> None:
        try:
            larger = mmap.mmap(-1, capacity * self.row_nbytes, flags=_FLAGS)
        except OSError as error:
            raise MemoryError(f"no memory for {capacity} rows of {self.row_nbytes} bytes") from error
        old = self.array
        self._map = larger
        self._over_map(capacity)[: len(old)] = old

    def _over_map(self, capacity: int) -> NDArray[Any]:
        if len(self._map) >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages refuses
                # Rows are hit at random: fewer, larger pages spare misses of the address cache.
                self._map.madvise(mmap.MADV_HUGEPAGE)
        count = capacity * int(np.prod(self._row_shape, dtype=np.int64))
        return np.frombuffer(self._map, self._dtype, count).reshape(capacity, *self._row_shape)
