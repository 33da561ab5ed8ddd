"""Which files of earlier checkpoints a server's next one can build on.

A checkpoint of rows is a file of all rows, followed by files of those that have changed since. Reading them in this
order ends with the newest value of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_runtime.checkpoint import FileEntry

__all__ = ["SMALLEST_BYTES", "History", "Saved", "builds_on"]

SMALLEST_BYTES = 16 << 20  # of all rows: less is written as a whole, in one file that depends on no other
_MOST_INCREMENTS = 50  # each is a file to open for a restore
_MOST_CHANGED = 0.5  # share of the rows' bytes from which on they are written as a whole


@dataclass(frozen=True)
class Saved:
    """The rows of this server in a checkpoint.

    Attributes:
        folder: of the checkpoint.
        files: oldest first, as a later checkpoint lists them.
        snapshots: numbers of the stores' snapshots, by the name of their part of a file.
        num_rows: of all stores.
    """

    folder: str
    files: tuple[FileEntry, ...]
    snapshots: Mapping[str, int]
    num_rows: int


class History:
    """This server's part of the newest valid checkpoint, as far as it knows it, and of the last one that it wrote.

    A server does not learn whether a checkpoint that it wrote became valid. The next order says which one is.
    """

    def __init__(self) -> None:
        self._valid: Saved | None = None
        self._written: Saved | None = None

    def forget(self) -> None:
        """The state is another one."""
        self._valid = self._written = None

    def restored(self, saved: Saved) -> None:
        """The state is that of a valid checkpoint."""
        self._valid, self._written = saved, None

    def written(self, saved: Saved) -> None:
        """This server's part of a checkpoint is written."""
        self._written = saved

    def newest(self, folder: str | None) -> Saved | None:
        """This server's part of the newest valid checkpoint; None if it has none that it knows."""
        if self._written is not None and self._written.folder == folder:
            self._valid = self._written
        if self._valid is not None and self._valid.folder != folder:
            self._valid = None
        self._written = None
        return self._valid


def builds_on(saved: Saved, changed: int, total: int) -> bool:
    """Whether a checkpoint should have the changed rows only.

    A restore reads at most twice the bytes of all rows, also if many that the first file has were evicted since. What
    is written again for that is on average no more than what has changed and what was evicted.

    Args:
        saved: the checkpoint before.
        changed: bytes of the rows that have changed since.
        total: bytes of all rows.
    """
    if total < SMALLEST_BYTES or changed > _MOST_CHANGED * total or len(saved.files) > _MOST_INCREMENTS:
        return False
    return sum(file.bytes for file in saved.files) + changed <= 2 * total
