"""Copying rows in a server's thread while another thread writes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from heterps_runtime.checkpoint import RowPart
from heterps_runtime.errors import TransientError
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.store.snapshot import RowChunk, RowSnapshot

__all__ = ["Copier"]

_WAITING_PIECES = 2  # copied, and not yet written


class Copier:
    """Snapshots of several stores at one commit, copied one after another.

    The server's thread calls `advance` between its other work, and `cancel` if the stores begin anew. The thread that
    writes consumes `parts`, whose pieces come in this order.

    Args:
        stores: by the name of their part of a file.
        snapshots: of these stores, likewise.
        wake: makes the server call `advance` again; called by the thread that writes.
    """

    def __init__(
        self, stores: Mapping[str, KeyedRows], snapshots: Mapping[str, RowSnapshot], wake: Callable[[], None]
    ) -> None:
        self._stores = stores
        self._open = {name: snapshot for name, snapshot in snapshots.items() if snapshot.total}
        self._wake = wake
        self._ready: deque[RowChunk] = deque()
        self._cancelled = ""
        self._changed = threading.Condition()
        self.parts = [self._part(name, snapshot) for name, snapshot in self._open.items()]
        for name in snapshots.keys() - self._open.keys():
            stores[name].end_snapshot()

    def _part(self, name: str, snapshot: RowSnapshot) -> RowPart:
        columns = self._stores[name].column_types
        return RowPart(name, snapshot.total, snapshot.piece_rows, columns, self._pieces(snapshot.total))

    def advance(self) -> bool:
        """Copy some rows, in a few milliseconds; returns whether more can be copied at once."""
        with self._changed:
            full = len(self._ready) >= _WAITING_PIECES
        if full or not self._open:
            return False
        name, snapshot = next(iter(self._open.items()))
        piece = snapshot.advance()
        if snapshot.done:
            self._stores[name].end_snapshot()
            del self._open[name]
        if piece is not None:
            with self._changed:
                self._ready.append(piece)
                self._changed.notify()
        return True

    def cancel(self, reason: str) -> None:
        """Give up what is not copied yet; the thread that writes gets an error. Without effect if all is copied."""
        if not self._open:
            return
        for name in self._open:
            self._stores[name].end_snapshot()
        self._open = {}
        with self._changed:
            self._cancelled = reason
            self._changed.notify()

    def _pieces(self, total: int) -> Iterator[RowChunk]:
        """The pieces of a part, for the thread that writes.

        Raises:
            TransientError: the copy was cancelled.
        """
        while total:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._cancelled)
                if not self._ready:
                    raise TransientError(self._cancelled)
                piece = self._ready.popleft()
            self._wake()
            total -= len(piece.keys)
            yield piece
