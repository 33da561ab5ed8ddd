"""Arrays that grow without copying.

The rows of a shard are in a few large arrays that double in size. Copying a gigabyte takes about half a second, during
which a server answers no request. An anonymous memory map grows by moving page tables (mremap), and unused pages take
no memory.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Slab"]

_HUGE_PAGES_FROM = 4 << 20  # bytes; 2 MiB pages would waste memory in smaller arrays
_UNIT = 2 << 20  # bytes of a huge page, in which memory is obtained in advance and given back
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; Python has no name for it
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Slab:
    """A growing array (capacity, *row_shape), initially zero.

    Attributes:
        array: the current memory. Read it again after `reserve`, which may move it. A remaining old view forces a copy.

    Raises:
        MemoryError: there is not enough memory.
    """

    def __init__(self, dtype: DTypeLike, row_shape: tuple[int, ...] = (), capacity: int = 1024) -> None:
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self.row_nbytes = self._dtype.itemsize * math.prod(row_shape)
        self._map = _anonymous(capacity, self.row_nbytes)
        self._populated = self._released = 0  # bytes
        self.array: NDArray[Any] = self._over_map(capacity)

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return len(self.array)

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows; at least doubles the capacity when it grows.

        Raises:
            MemoryError: there is not enough memory; the slab is unchanged.
        """
        old = self.capacity
        if num_rows <= old:
            return
        new = max(num_rows, 2 * old)
        del self.array  # a map with views cannot move
        try:
            self._map.resize(new * self.row_nbytes)
        except (BufferError, SystemError):  # another view exists, or this system has no mremap
            self.array = self._over_map(old)
            self._copy_into_larger(new)
        except (OSError, OverflowError) as error:
            self.array = self._over_map(old)
            raise MemoryError(f"no memory for {new} rows of {self.row_nbytes} bytes") from error
        self.array = self._over_map(new)

    def populate(self, num_rows: int) -> None:
        """Obtain memory for the first `num_rows` rows now, for code that reads rows before it writes them.

        Otherwise a read maps a page of zeros, which a write then replaces: that takes twenty times as long.
        """
        start, stop = self._populated, min(-(-num_rows * self.row_nbytes // _UNIT) * _UNIT, len(self._map))
        if stop > start:
            self._populated = stop
            with suppress(OSError):  # an older kernel
                self._map.madvise(_POPULATE_WRITE, start, stop - start)

    def release(self, num_rows: int) -> None:
        """Give back the memory of the first `num_rows` rows, as far as it is whole pages: they are zero again."""
        start, stop = self._released, num_rows * self.row_nbytes // _UNIT * _UNIT
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            self._released = stop
            with suppress(OSError):  # of a process whose memory is locked
                self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def release_after(self, num_rows: int) -> None:
        """Give back the memory behind the first `num_rows` rows, as far as it is whole pages: it is zero again."""
        start = -(-num_rows * self.row_nbytes // _UNIT) * _UNIT
        if start < len(self._map) and hasattr(mmap, "MADV_DONTNEED"):
            with suppress(OSError):  # of a process whose memory is locked
                self._map.madvise(mmap.MADV_DONTNEED, start, len(self._map) - start)

    def _copy_into_larger(self, capacity: int) -> None:
        larger = _anonymous(capacity, self.row_nbytes)
        old = self.array
        self._map = larger
        self._over_map(capacity)[: len(old)] = old

    def _over_map(self, capacity: int) -> NDArray[Any]:
        if len(self._map) >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages refuses
                # Rows are accessed at random: larger pages cause fewer TLB misses.
                self._map.madvise(mmap.MADV_HUGEPAGE)
        count = capacity * math.prod(self._row_shape)
        return np.frombuffer(self._map, self._dtype, count).reshape(capacity, *self._row_shape)


def _anonymous(num_rows: int, row_nbytes: int) -> mmap.mmap:
    """Map memory for so many rows.

    Raises:
        MemoryError: there is not enough memory.
    """
    try:
        return mmap.mmap(-1, num_rows * row_nbytes, flags=_FLAGS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {num_rows} rows of {row_nbytes} bytes") from error
