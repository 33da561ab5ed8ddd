"""Checkpoints in a server or worker: written in the background, then reported."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from heterps_runtime.checkpoint import CheckpointWriter, FileEntry, RowFile, StateFile, Storage
from heterps_runtime.processes.process import log
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Checkpoint, Checkpointed

__all__ = ["Part", "Saver"]


Entries = tuple[FileEntry, ...]
_NO_TOTALS: Mapping[str, float] = {}


def _ignore(entries: Entries | None) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Part:
    """A member's part of a checkpoint.

    Attributes:
        files: to write.
        earlier: files of earlier checkpoints that it consists of as well, to be read before these.
        over: called in the member's thread with the entries of `files`, or with None if they could not be written.
        totals: counters of the member as of the commit.
    """

    files: Sequence[StateFile | RowFile]
    earlier: Entries = ()
    over: Callable[[Entries | None], None] = field(default=_ignore)
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    """A checkpoint that has not begun."""

    order: Checkpoint
    committed: Callable[[], int]
    snapshot: Callable[[], Part]


class Saver:
    """Answers `checkpoint` messages of one member.

    All methods belong to the member's thread. Another thread writes the files and calls `wake` at the end; the member
    then calls `report`.

    Args:
        storage: of the job's checkpoints.
        link: line to the coordinator.
        wake: makes the member's poll return; called from any thread.
    """

    def __init__(self, storage: Storage, link: ControlLink, wake: Callable[[], None]) -> None:
        self._writer = CheckpointWriter(storage)
        self._link = link
        self._wake = wake
        self._done: queue.SimpleQueue[tuple[Checkpoint, Part, Future[Entries]]] = queue.SimpleQueue()
        self._waiting: _Request | None = None

    def save(self, order: Checkpoint, committed: Callable[[], int], snapshot: Callable[[], Part]) -> None:
        """Begin a checkpoint, or let it wait until an earlier one is written, which the coordinator has given up.

        Two snapshots at a time could take too much memory. If training goes on, the state to save is gone, and
        the checkpoint fails. At the end training does not go on, so the last checkpoint is never lost.

        Args:
            order: of the coordinator.
            committed: returns the number of committed steps in the state.
            snapshot: copies the state, or begins to.
        """
        self._waiting = _Request(order, committed, snapshot)
        self._begin()

    def forget(self) -> None:
        """Drop a checkpoint that waits: its generation is over."""
        self._waiting = None

    def _begin(self) -> None:
        if self._waiting is None or self._writer.busy:
            return
        request, self._waiting = self._waiting, None
        order = request.order
        if request.committed() != order.step:
            self._answer(order, (), "training went on while an earlier checkpoint was being written")
            return

        part = request.snapshot()
        files, part = part.files, replace(part, files=())  # the writer alone holds the copies, and frees each in time

        def finished(done: Future[Entries]) -> None:
            self._done.put((order, part, done))
            self._wake()

        self._writer.write(order.folder, files).add_done_callback(finished)

    def report(self) -> None:
        """Report finished and failed checkpoints to the coordinator, and begin the one that waits for them."""
        while not self._done.empty():
            order, part, done = self._done.get()
            error = done.exception()
            if error is None:
                part.over(done.result())
                self._answer(order, (*part.earlier, *done.result()), totals=part.totals)
            else:
                part.over(None)
                log(f"checkpoint of step {order.step} failed: {error}")
                self._answer(order, (), str(error))
        self._begin()

    def _answer(
        self, order: Checkpoint, entries: Entries, error: str = "", totals: Mapping[str, float] = _NO_TOTALS
    ) -> None:
        self._link.send(Checkpointed(order.generation, order.step, order.folder, entries, error, dict(totals)))

    def close(self) -> None:
        """Wait for the current write."""
        self._writer.close()
