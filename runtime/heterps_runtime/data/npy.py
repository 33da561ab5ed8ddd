"""Files of arrays: mapping them into memory, and writing some whose number of rows is not known in advance.

The header has room for any number of rows and is rewritten at the end. The result is an ordinary .npy file, format 1.0
of numpy.lib.format.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HEADER_BYTES", "NpyWriter", "map_array"]

#: Length of the header; the format requires a multiple of 64.
HEADER_BYTES = 192


# np.load parses a file's header with `ast`. In CPython 3.11, two threads must not do so at the same time ("AST
# constructor recursion depth mismatch"): the lock is for ours, and the attempts for threads of libraries.
_PARSING = threading.Lock()
_ATTEMPTS = 5


def map_array(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file into memory, read-only.

    Raises:
        OSError, ValueError: it cannot be opened, or is no such file.
    """
    with _PARSING:
        for _ in range(_ATTEMPTS - 1):
            try:
                # A plain view: indexing a np.memmap has the overhead of a subclass.
                return np.asarray(np.load(path, mmap_mode="r"))
            except SystemError:  # another thread parsed at that moment
                continue
        return np.asarray(np.load(path, mmap_mode="r"))


class NpyWriter:
    """Appends rows to a .npy file.

    Args:
        path: the file, replaced if it exists.
        dtype: of the elements.
        row_shape: shape of one row, `()` for a vector.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.num_rows = 0
        self._file = path.open("wb")
        self._write_header()

    @property
    def nbytes(self) -> int:
        """Current size of the file."""
        return HEADER_BYTES + self.num_rows * self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append an array (n, *row_shape) of the writer's dtype; raises OSError if the disk is full."""
        assert rows.dtype == self.dtype, (rows.dtype, self.dtype)
        assert rows.shape[1:] == self.row_shape, (rows.shape, self.row_shape)
        self._file.write(np.ascontiguousarray(rows).data)
        self.num_rows += len(rows)

    def finish(self) -> None:
        """Write the final header and flush the file to disk."""
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing flushes. On a full disk this fails again, and must not hide the first error.
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise

    def _write_header(self) -> None:
        shape = (self.num_rows, *self.row_shape)
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": shape}).encode("latin1")
        start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        self._file.write(start + text.ljust(HEADER_BYTES - 11) + b"\n")
