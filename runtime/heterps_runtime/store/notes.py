"""Notes of what changes in a store while another server copies its rows.

The copy takes any state of each row. What has changed after the note at its beginning is sent again, and what was
removed is named: first while rows go on changing, after another note, and at the end when no step is committed.
"""

from __future__ import annotations

import numpy as np

from heterps_runtime.store.changes import MAX_SNAPSHOTS, Changes
from heterps_runtime.store.kernel import Int64s

__all__ = ["ALL", "Notes"]

ALL = -1  # instead of a note: all rows
_MOST_REMOVED = 1 << 22  # keys that are kept, 32 MB


class Notes:
    """Notes of one store.

    A note is the number of a snapshot that nothing is written of.

    Args:
        changes: of the store.

    Attributes:
        oldest: the oldest note that is kept; None: there is none.
    """

    def __init__(self, changes: Changes) -> None:
        self.oldest: int | None = None
        self._changes = changes
        self._removed: list[tuple[int, Int64s]] = []  # number of the next note, keys
        self._num_removed = 0

    def take(self) -> int | None:
        """Note what changes from now on; returns the note, or None if no number is left for it."""
        if self._changes.now > MAX_SNAPSHOTS:
            return None
        note = self._changes.advance()
        if self.oldest is None:
            self.oldest = note
        return note

    def end(self) -> None:
        """Forget all notes."""
        self.oldest = None
        self._removed, self._num_removed = [], 0

    def removed(self, keys: Int64s) -> None:
        """Note that the rows of keys (n,) are removed."""
        if self.oldest is None:
            return
        self._removed.append((self._changes.now, keys))
        self._num_removed += len(keys)
        if self._num_removed > _MOST_REMOVED:
            self.end()

    def keeps(self, note: int) -> bool:
        """Whether a note is kept."""
        return self.oldest is not None and self.oldest <= note < self._changes.now

    def removed_after(self, note: int) -> Int64s:
        """Keys (n,) of rows that were removed after a note that is kept; they may repeat, and may have rows again."""
        return np.concatenate([np.empty(0, np.int64), *(keys for now, keys in self._removed if now > note)])
