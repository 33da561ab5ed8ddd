"""Checkpoints in a server or worker: written in the background, then reported."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from heterps_runtime.checkpoint import CheckpointWriter, FileEntry, StateFile, Storage
from heterps_runtime.process import log
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Checkpoint, Checkpointed

__all__ = ["Saver"]


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
        self._done: queue.SimpleQueue[tuple[Checkpoint, Future[tuple[FileEntry, ...]]]] = queue.SimpleQueue()

    def save(self, order: Checkpoint, snapshot: Callable[[], Sequence[StateFile]]) -> None:
        """Begin a checkpoint. `snapshot` copies the state; it is not called while an earlier checkpoint is written."""
        if self._writer.busy:
            self._answer(order, (), "an earlier checkpoint is still being written")
            return

        def finished(done: Future[tuple[FileEntry, ...]]) -> None:
            self._done.put((order, done))
            self._wake()

        self._writer.write(order.folder, snapshot()).add_done_callback(finished)

    def report(self) -> None:
        """Report finished and failed checkpoints to the coordinator."""
        while not self._done.empty():
            order, done = self._done.get()
            error = done.exception()
            if error is None:
                self._answer(order, done.result())
            else:
                log(f"checkpoint of step {order.step} failed: {error}")
                self._answer(order, (), str(error))

    def _answer(self, order: Checkpoint, entries: tuple[FileEntry, ...], error: str = "") -> None:
        self._link.send(Checkpointed(order.generation, order.step, order.folder, entries, error))

    def close(self) -> None:
        """Wait for the current write."""
        self._writer.close()
