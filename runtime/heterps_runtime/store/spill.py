"""Files on a local disk for rows that do not fit into memory.

A file is made of slots, in blocks that are whole pages. Blocks are written as a whole and rows are read singly, many at
once by several threads of compiled code: a disk answers sixteen requests in about the time of one, and a call from
Python would take as long as the disk.

Files have no name: the kernel deletes them when the server ends, however it ends. What they hold is in checkpoints,
too.
"""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numba import types
from numpy.typing import NDArray

from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.store.kernel import Int32s, Int64s, kernel

__all__ = ["PAGE", "SpillFile", "SpillSpace"]

Bytes = NDArray[np.uint8]

PAGE = 4096  # bytes; a disk reads and writes whole pages, and a page that is written in part is read first

_FIELD = "spec.parameterServer.spill"
_REMEDY = (
    f"raise {_FIELD}.maxBytes or .memory, or add servers (spec.parameterServer.replicas); "
    "the job then goes on from its newest checkpoint"
)
_THREADS = 16
_ITEMS_PER_THREAD = 16  # at least; fewer are read from the kernel's cache as fast as handed over
_GROWTH = 32 << 20  # bytes that a file grows by
_MOST_PAGES = 4  # of a block, unless a row is larger
_LEAST_USE = 0.85  # share of a block's pages that rows should fill
_MOST_VECTORS = 1024  # parts that pwritev takes (IOV_MAX)
_HEADER = 4  # bytes before a row: its number

_call: Callable[..., Any] = types.ExternalFunction
_SIGNATURE = types.int64(types.int32, types.uintp, types.int32, types.int64)
_preadv = _call("preadv", _SIGNATURE)
_pwritev = _call("pwritev", _SIGNATURE)


class Tenant(Protocol):
    """A store that shares a space."""

    @property
    def wanted_nbytes(self) -> int:
        """Bytes of memory with which it needs no disk."""


class SpillSpace:
    """Memory and disk that the stores of one server share.

    Args:
        folder: on a local disk.
        memory: bytes of rows and state that stay in memory.
        size: most bytes on disk; None: as many as there are.

    Attributes:
        num_read: rows that were read because they were needed.
        num_written: rows that were written.
    """

    def __init__(self, folder: Path, memory: int, size: int | None = None) -> None:
        self.folder = folder
        self.num_read = self.num_written = 0
        self._memory = memory
        self._size = size
        self._files: weakref.WeakSet[SpillFile] = weakref.WeakSet()
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spill")

    @property
    def nbytes(self) -> int:
        """Bytes on disk; any thread may ask."""
        return sum(file.nbytes for file in list(self._files))

    def add_tenant(self, tenant: Tenant) -> None:
        """Let a store take part as long as it exists."""
        self._tenants.add(tenant)

    def share_of(self, tenant: Tenant) -> int:
        """Bytes of memory for a store: memory is divided in proportion to what stores want."""
        wanted = sum(other.wanted_nbytes for other in self._tenants)
        return self._memory * tenant.wanted_nbytes // max(1, wanted)

    def new_file(self, widths: Sequence[int]) -> SpillFile:
        """A new, empty file.

        Args:
            widths: bytes of a row in each of the arrays that it is in.

        Raises:
            UserError: the folder cannot be written.
        """
        file = SpillFile(self, widths)
        self._files.add(file)
        return file

    def grant(self, nbytes: int) -> int:
        """How many bytes a file may grow by, at least `nbytes`.

        Raises:
            UserError: by fewer.
        """
        if self._size is None:
            return max(nbytes, _GROWTH)
        room = self._size - self.nbytes
        if room < nbytes:
            raise UserError(
                f"{_FIELD}.maxBytes: the rows of this server need more than {self._memory / 1e6:,.2f} MB of memory "
                f"and {self._size / 1e6:,.2f} MB on disk: {_REMEDY}"
            )
        return min(max(nbytes, _GROWTH), room)

    def transfer(self, move: Callable[[int, int], None], count: int) -> None:
        """Call `move(start, stop)` for parts of `count` items, in several threads.

        Raises:
            TransientError, UserError: as `move` does, after all parts have ended.
        """
        threads = min(_THREADS, count // _ITEMS_PER_THREAD)
        if threads <= 1:
            move(0, count)
            return
        bounds = [count * i // threads for i in range(threads + 1)]
        parts = [self._threads.submit(move, start, stop) for start, stop in itertools.pairwise(bounds)]
        wait(parts)
        for part in parts:
            part.result()


class SpillFile:
    """Rows in slots; see `SpillSpace.new_file`.

    Attributes:
        slots_per_block: in each block.
        nbytes: size.
    """

    def __init__(self, space: SpillSpace, widths: Sequence[int]) -> None:
        self._space = space
        self._row_nbytes = _HEADER + sum(widths)
        self.slots_per_block = slots_per_block(self._row_nbytes, len(widths))
        self._block_nbytes = -(-self.slots_per_block * self._row_nbytes // PAGE) * PAGE
        self._layout: Int64s = np.array([self.slots_per_block, self._row_nbytes, self._block_nbytes], np.int64)
        self._padding = np.zeros(self._block_nbytes, np.uint8)
        self.nbytes = 0
        try:
            space.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=space.folder) as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise UserError(
                f"{_FIELD}.directory: {space.folder} cannot be written: {error.strerror}; name a folder of a local disk"
            ) from error
        weakref.finalize(self, os.close, self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # the next page is not needed next

    def reserve(self, num_blocks: int) -> None:
        """Obtain disk for so many blocks.

        Raises:
            UserError: the disk is full, or `maxBytes` of it are used up.
            TransientError: the disk does not work.
        """
        missing = num_blocks * self._block_nbytes - self.nbytes
        if missing <= 0:
            return
        growth = self._space.grant(missing) // self._block_nbytes * self._block_nbytes
        try:
            os.posix_fallocate(self._descriptor, self.nbytes, growth)
        except OSError as error:
            raise self._explained(error) from error
        self.nbytes += growth

    def write(self, slots: Int32s, index: Int32s, arrays: Sequence[NDArray[Any]]) -> None:
        """Write rows to slots.

        Args:
            slots: (n,), of whole blocks, except the last.
            index: (n,), of the rows in each array.
            arrays: row numbers, and then what rows are made of; or whole records.

        Raises:
            TransientError: the disk does not work.
            UserError: it is full.
        """
        self._transfer(_write, slots, index, arrays, self.slots_per_block)

    def read(self, slots: Int32s, index: Int32s, arrays: Sequence[NDArray[Any]]) -> None:
        """Read rows (n,) from slots, without their numbers, to these places of arrays.

        Raises:
            TransientError: the disk does not work.
        """
        self._transfer(_read, slots, index, arrays, 1)

    def read_blocks(self, blocks: Int32s) -> tuple[Int32s, NDArray[np.uint8]]:
        """Read all slots of blocks (m,): the row numbers (m * slots,), and records (m * slots, bytes) to write again.

        Raises:
            TransientError: the disk does not work.
        """
        whole = np.empty((len(blocks), self._block_nbytes), np.uint8)
        index = np.arange(len(blocks), dtype=np.int32)
        self._transfer(_read_blocks, blocks * np.int32(self.slots_per_block), index, [whole], 1)
        records = whole[:, : self.slots_per_block * self._row_nbytes].reshape(-1, self._row_nbytes)
        return np.ascontiguousarray(records[:, :_HEADER]).view(np.int32).reshape(-1), np.ascontiguousarray(records)

    def _transfer(
        self,
        transfer: Callable[..., int],
        slots: Int32s,
        index: Int32s,
        arrays: Sequence[NDArray[Any]],
        slots_per_call: int,
    ) -> None:
        addresses = np.array([array.ctypes.data for array in arrays], np.int64)
        widths = np.array([array.strides[0] for array in arrays], np.int64)
        memory = addresses, widths, self._padding

        def move(start: int, stop: int) -> None:
            part = slice(start * slots_per_call, stop * slots_per_call)
            done = transfer(self._descriptor, self._layout, *memory, slots[part], index[part])
            if done < len(slots[part]):
                raise self._failure(int(slots[part][done]) // self.slots_per_block, writes=transfer is _write)

        self._space.transfer(move, -(-len(slots) // slots_per_call))

    def _failure(self, block: int, *, writes: bool) -> TransientError | UserError:
        """Why compiled code, which has no error number, could not move a block: the same again from Python."""
        offset = block * self._block_nbytes
        try:
            if writes:
                done = os.pwrite(self._descriptor, bytes(self._block_nbytes), offset)
            else:
                done = len(os.pread(self._descriptor, self._block_nbytes, offset))
        except OSError as error:
            return self._explained(error)
        return TransientError(f"{_FIELD}: {self._space.folder}: {done} of {self._block_nbytes} bytes were moved")

    def _explained(self, error: OSError) -> TransientError | UserError:
        where = f"{_FIELD}: {self._space.folder}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return UserError(f"{where}: free disk there, name another one in {_FIELD}.directory, {_REMEDY}")
        return TransientError(where)


def slots_per_block(row_nbytes: int, num_arrays: int) -> int:
    """Rows that fill most of a block's pages."""
    if row_nbytes > PAGE * _MOST_PAGES:
        return 1
    most = (_MOST_VECTORS - 1) // num_arrays
    sizes = [pages * PAGE for pages in range(-(-row_nbytes // PAGE), _MOST_PAGES + 1)]
    used = {min(most, size // row_nbytes): min(most, size // row_nbytes) * row_nbytes / size for size in sizes}
    return next((rows for rows, use in used.items() if use >= _LEAST_USE), max(used, key=lambda rows: used[rows]))


@kernel
def _write(
    descriptor: int, layout: Int64s, addresses: Int64s, widths: Int64s, padding: Bytes, slots: Int32s, index: Int32s
) -> int:
    """Write whole blocks; returns the first slot that could not be written, or how many there are.

    Args:
        descriptor: of the file.
        layout: slots per block, bytes per row, bytes per block.
        addresses: of the arrays.
        widths: bytes per row in each array.
        padding: zeros, as many as a block has bytes.
        slots: (n,), ascending within blocks.
        index: (n,), of the rows in the arrays.
    """
    size, row_nbytes, block_nbytes = layout[0], layout[1], layout[2]
    vectors = np.empty(2 * (size * widths.size + 1), np.int64)
    for first in range(0, slots.size, size):
        stop = min(first + size, slots.size)
        count = 0
        for i in range(first, stop):
            for k in range(widths.size):
                vectors[count] = addresses[k] + index[i] * widths[k]
                vectors[count + 1] = widths[k]
                count += 2
        rest = block_nbytes - (stop - first) * row_nbytes
        if rest > 0:
            vectors[count], vectors[count + 1] = padding.ctypes.data, rest
            count += 2
        offset = slots[first] // size * block_nbytes
        if _pwritev(descriptor, vectors.ctypes.data, count // 2, offset) != block_nbytes:
            return first
    return slots.size


@kernel
def _read(
    descriptor: int, layout: Int64s, addresses: Int64s, widths: Int64s, padding: Bytes, slots: Int32s, index: Int32s
) -> int:
    """Read rows without their numbers; see `_write`."""
    size, row_nbytes, block_nbytes = layout[0], layout[1], layout[2]
    vectors = np.empty(2 * widths.size, np.int64)
    for i in range(slots.size):
        for k in range(widths.size):
            vectors[2 * k] = addresses[k] + index[i] * widths[k]
            vectors[2 * k + 1] = widths[k]
        offset = slots[i] // size * block_nbytes + slots[i] % size * row_nbytes + _HEADER
        if _preadv(descriptor, vectors.ctypes.data, widths.size, offset) != row_nbytes - _HEADER:
            return i
    return slots.size


@kernel
def _read_blocks(
    descriptor: int, layout: Int64s, addresses: Int64s, widths: Int64s, padding: Bytes, slots: Int32s, index: Int32s
) -> int:
    """Read the whole blocks of slots; see `_write`."""
    size, block_nbytes = layout[0], layout[2]
    vectors = np.empty(2, np.int64)
    vectors[1] = block_nbytes
    for i in range(slots.size):
        vectors[0] = addresses[0] + index[i] * block_nbytes
        if _preadv(descriptor, vectors.ctypes.data, 1, slots[i] // size * block_nbytes) != block_nbytes:
            return i
    return slots.size
