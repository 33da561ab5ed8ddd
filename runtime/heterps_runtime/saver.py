"""What a server or a worker does when the coordinator orders a checkpoint: write in the background, then report."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from heterps_runtime.checkpoint import CheckpointWriter, FileEntry, StateFile, Storage
from heterps_runtime.link import ControlLink
from heterps_runtime.process import log

__all__ = ["Saver"]

Answer = dict[str, Any]


class Saver:
    """Answers `checkpoint` messages of one member.

    All methods belong to the member's thread. Files are written in a thread of their own, which calls `wake` at the
    end; the member then calls `report`.

    Args:
        storage: where the job's checkpoints lie.
        link: line to the coordinator.
        wake: makes the member's poll return; called from any thread.
    """

    def __init__(self, storage: Storage, link: ControlLink, wake: Callable[[], None]) -> None:
        self._writer = CheckpointWriter(storage)
        self._link = link
        self._wake = wake
        self._done: queue.SimpleQueue[tuple[Answer, Future[tuple[FileEntry, ...]]]] = queue.SimpleQueue()

    def save(self, fields: dict[str, Any], snapshot: Callable[[], Sequence[StateFile]]) -> None:
        """Begin a checkpoint; `snapshot` copies the state, and is not called while the one before is being written."""
        answer = {name: fields[name] for name in ("generation", "step", "folder")}
        if self._writer.busy:
            self._link.send("checkpointed", **answer, error="the checkpoint before is still being written")
            return

        def finished(done: Future[tuple[FileEntry, ...]]) -> None:
            self._done.put((answer, done))
            self._wake()

        self._writer.write(fields["folder"], snapshot()).add_done_callback(finished)

    def report(self) -> None:
        """Tell the coordinator what has been written, or why it could not be."""
        while not self._done.empty():
            answer, done = self._done.get()
            error = done.exception()
            if error is None:
                self._link.send("checkpointed", **answer, entries=[asdict(e) for e in done.result()])
            else:
                log(f"checkpoint of step {answer['step']} failed: {error}")
                self._link.send("checkpointed", **answer, error=str(error))

    def close(self) -> None:
        """Wait for the write under way."""
        self._writer.close()
