"""The blocks of a streamed split on a local disk, shared by the processes of a machine.

    CACHE/<fingerprint>/block-<number>    the arrays of a block's rows (`records`), as tensors of Arrow IPC
                        lock-<k>          locked while one of the blocks whose number has the remainder k is read
                        lock-room         locked while blocks make room for another

Blocks are memory-mapped: the page cache of the kernel is the tier in memory, and processes share it. `maxBytes` limits
the blocks together with the other data sets of the cache's folder. The least recently used ones make room; a process
that has mapped one keeps it until it lets go.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from heterps_runtime.data.folder import Progress, evict
from heterps_runtime.data.records import Arrays

__all__ = ["BlockCache"]

_LOCKS = 64  # processes wait for each other's reading of a block only if the remainders are the same
_PREFIX, _PARTIAL = "block-", "partial-"
_ABANDONED_SECONDS = 600
_FULL = (errno.ENOSPC, errno.EDQUOT)


class BlockCache:
    """The cached blocks of one split. Thread-safe.

    Args:
        folder: of the split, which exists.
        names: of the arrays, in the order of each file.
        max_bytes: of all data sets of the cache together.
        progress: is told when other data sets are removed.
    """

    def __init__(self, folder: Path, names: Sequence[str], max_bytes: int, progress: Progress) -> None:
        self._folder = folder
        self._names = tuple(names)
        self._max_bytes = max_bytes
        self._progress = progress
        self._others: int | None = None  # bytes of other data sets; None: not measured yet

    def get(self, block: int) -> Arrays | None:
        """The arrays of a block, mapped into memory and read-only; None if it is not cached, or damaged."""
        path = self._path(block)
        try:
            with pa.memory_map(str(path)) as file:
                arrays = {name: np.asarray(pa.ipc.read_tensor(file)) for name in self._names}
            with suppress(FileNotFoundError):  # another process may have made room in the meantime
                os.utime(path)  # the time of last use
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError, ValueError):  # cut short by a machine that went down
            path.unlink(missing_ok=True)
            return None
        return arrays

    @contextmanager
    def locked(self, block: int) -> Iterator[None]:
        """Hold the lock under which a block is read from its source, so that one process does it."""
        with (self._folder / f"lock-{block % _LOCKS:02}").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def add(self, block: int, arrays: Arrays) -> Arrays:
        """Store a block; the caller holds its lock.

        Returns:
            The arrays as `get` returns them; those given, if the block does not fit into the limit or on the disk.
        """
        path = self._path(block)
        partial = self._folder / f"{_PARTIAL}{os.getpid()}-{threading.get_ident()}"
        try:
            with pa.OSFile(str(partial), "wb") as file:
                for name in self._names:
                    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.ascontiguousarray(arrays[name])), file)
            with (self._folder / "lock-room").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # so that processes and threads together stay within the limit
                if not self._make_room(partial.stat().st_size):
                    partial.unlink()
                    return arrays
                partial.rename(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno in _FULL or "No space left" in str(error):
                return arrays
            raise
        return self.get(block) or arrays

    def _path(self, block: int) -> Path:
        return self._folder / f"{_PREFIX}{block}"

    def _make_room(self, needed: int) -> bool:
        """Remove the blocks used longest ago, then other data sets; returns whether `needed` bytes fit."""
        used: list[tuple[int, int, str]] = []  # time of last use, bytes, path
        now = time.time()
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # damaged, and therefore removed by another thread
                found = entry.stat()
                if entry.name.startswith(_PREFIX):
                    used.append((found.st_mtime_ns, found.st_size, entry.path))
                elif entry.name.startswith(_PARTIAL) and now - found.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry)  # of a process that was killed
        own = sum(size for _, size, _ in used)
        if self._others is None or own + self._others + needed > self._max_bytes:
            allowed = max(0, self._max_bytes - own - needed)
            self._others = evict(self._folder.parent, allowed, self._folder, self._progress)
        allowed = self._max_bytes - self._others - needed
        for _, size, path in sorted(used):
            if own <= allowed:
                break
            Path(path).unlink(missing_ok=True)
            own -= size
        return own <= allowed
