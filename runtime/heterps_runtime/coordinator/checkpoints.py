"""The books of a job's checkpoints: which one is valid, which one is being written, what went wrong.

One checkpoint is written at a time. It becomes valid with its manifest, which is written when all parts are reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.coordinator.effects import CheckpointRecord, Effects
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.wire.messages import Checkpointed

__all__ = ["Checkpoints"]


class Checkpoints:
    """Checkpoints of one job.

    Args:
        effects: writes and deletes them.
        journal: is told of them.
        latest: the newest valid one.
    """

    def __init__(self, effects: Effects, journal: Journal, latest: CheckpointRecord | None) -> None:
        self._effects = effects
        self._event = journal.note
        self.latest = latest
        self.time: float | None = None  # when the latest became valid, Unix seconds; None: in an earlier run
        self.asked = False  # for one at the next commit
        self.failures = 0
        self.error = ""  # of the last failure
        self._barrier: Barrier | None = None  # of the one being written
        self._progress: dict[str, Any] = {}  # that it holds; training goes on meanwhile

    @property
    def step(self) -> int:
        """Committed steps that the newest valid checkpoint holds; 0 if there is none."""
        return self.latest.step if self.latest else 0

    @property
    def writing(self) -> bool:
        """Whether one is being written."""
        return self._barrier is not None

    def begin(self, step: int, writers: Iterable[str], progress: dict[str, Any]) -> str:
        """Begin one; returns its folder.

        Args:
            step: committed steps.
            writers: members that write a part of it.
            progress: for its manifest.
        """
        assert self._barrier is None
        self.asked = False
        self._barrier = Barrier(step, self._effects.checkpoint_folder(step), list(writers))
        self._progress = progress
        return self._barrier.folder

    def report(self, member: str, report: Checkpointed, plan: dict[str, Any]) -> str:
        """Take a writer's report; returns the error that it tells of, empty if there is none or it comes too late."""
        barrier = self._barrier
        if barrier is None or barrier.complete or report.folder != barrier.folder:
            return ""  # once all parts are there, only the manifest can fail
        if report.error:
            return f"{member}: {report.error}"
        if barrier.report(member, report.step, report.entries) and barrier.complete:
            self._effects.write_manifest(barrier, self._progress, plan)
        return ""

    def written(self, record: CheckpointRecord) -> bool:
        """One has become valid; returns whether it is the one that was being written."""
        self.latest = record
        self.time = self._event("CheckpointWritten", f"step {record.step}")
        if self._barrier is None or record.folder != self._barrier.folder:
            return False
        self._barrier = None
        return True

    def fail(self, folder: str, reason: str) -> int | None:
        """One could not be written, and the last good one stays; returns its step, None if it was given up before."""
        if self._barrier is None or folder != self._barrier.folder:
            return None
        step, self._barrier = self._barrier.step, None
        self.failures += 1
        self.error = reason
        self._event("CheckpointFailed", f"step {step}: {reason}; {self.kept}", warning=True)
        self._effects.discard_checkpoint(folder)
        return step

    def abandon(self, why: str) -> None:
        """Members changed: unless only the manifest is missing, what was written is of no use."""
        if self._barrier is not None and not self._barrier.complete:
            abandoned, self._barrier = self._barrier, None
            self._event("CheckpointAbandoned", f"step {abandoned.step}: {why}", warning=True)
            self._effects.discard_checkpoint(abandoned.folder)

    @property
    def kept(self) -> str:
        """What is left after a failure, in words."""
        return f"checkpoint of step {self.latest.step} stays" if self.latest else "there is no earlier checkpoint"
