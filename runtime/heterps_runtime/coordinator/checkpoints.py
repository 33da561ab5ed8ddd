"""The checkpoints of a job: the newest valid one, the one in progress, and failures.

One checkpoint is written at a time. Its manifest makes it valid, and is written when all members have reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from heterps_runtime.checkpoint.format import Origin
from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.coordinator.effects import CheckpointRecord, Effects
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.wire.messages import Checkpoint, Checkpointed, Damaged, Restore

__all__ = ["Checkpoints"]


class Checkpoints:
    """Checkpoints of one job.

    Args:
        effects: writes and deletes them.
        journal: records events.
        every: steps between two of them.
    """

    def __init__(self, effects: Effects, journal: Journal, every: int) -> None:
        self._effects = effects
        self._every = every
        self._event = journal.note
        self.opened = False  # whether they were taken over, and it is known which one is the newest valid
        self.latest: CheckpointRecord | None = None  # the newest valid checkpoint
        self.time: float | None = None  # at which the latest became valid, Unix seconds; None: in an earlier run
        self.requested = False  # at the next commit
        self.failures = 0
        self.error = ""  # of the last failure
        self._barrier: Barrier | None = None  # of the checkpoint in progress
        self._progress: dict[str, Any] = {}  # of the job at its commit

    @property
    def step(self) -> int:
        """Committed steps in the newest valid checkpoint; 0 if there is none."""
        return self.latest.step if self.latest else 0

    def give_up(self, member: str, damaged: Damaged) -> bool:
        """Note that a member cannot restore a checkpoint; returns whether it was the newest valid one until now.

        Then `opened` is False until the one before is known, so that no generation restores anything.
        """
        if not self.opened or self.latest is None or self.latest.folder != damaged.folder:
            return False
        self.opened, self.latest = False, None
        self._effects.pass_over_checkpoint(replace(damaged, reason=f"{member}: {damaged.reason}"))
        return True

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is in progress."""
        return self._barrier is not None

    def due(self, committed: int) -> bool:
        """Whether one is to be begun at this commit."""
        return self.requested or committed % self._every == 0

    def delays_newcomers(self, committed: int) -> bool:
        """Whether members that wait for a commit wait for a later one, as their generation would abandon a checkpoint.

        Not for one that is not written when the next is due: a store may hang.
        """
        barrier = self._barrier
        return barrier is not None and not barrier.complete and committed < barrier.step + self._every

    def begin(self, generation: int, origin: Origin, writers: Iterable[str], progress: dict[str, Any]) -> Checkpoint:
        """Begin a checkpoint; returns the order to its writers.

        Args:
            generation: in force.
            origin: the commit.
            writers: members that write its parts.
            progress: for its manifest.
        """
        assert self._barrier is None
        self.requested = False
        self._barrier = Barrier(origin, self._effects.checkpoint_folder(origin.step), list(writers))
        self._progress = progress
        return Checkpoint(generation, origin.step, self._barrier.folder, self.latest.folder if self.latest else None)

    def report(self, member: str, report: Checkpointed, plan: dict[str, Any]) -> str:
        """Take a writer's report; returns its error, or an empty string if there is none or the report is too late."""
        barrier = self._barrier
        if barrier is None or barrier.complete or report.folder != barrier.folder:
            return ""  # once all parts are written, only the manifest can fail
        if report.error:
            return f"{member}: {report.error}"
        if barrier.report(member, report.step, report.entries) and barrier.complete:
            self._effects.write_manifest(barrier, self._progress, plan)
        return ""

    def written(self, record: CheckpointRecord) -> bool:
        """Note that a checkpoint is valid; returns whether it is the one in progress."""
        self.latest = record
        self.time = self._event("CheckpointWritten", f"step {record.step}")
        if self._barrier is None or record.folder != self._barrier.folder:
            return False
        self._barrier = None
        return True

    def fail(self, folder: str, reason: str) -> int | None:
        """Note that a checkpoint failed; returns its step, or None if it is not the one in progress."""
        if self._barrier is None or folder != self._barrier.folder:
            return None
        step, self._barrier = self._barrier.step, None
        self.failures += 1
        self.error = reason
        self._event("CheckpointFailed", f"step {step}: {reason}; {self.kept}", warning=True)
        self._effects.discard_checkpoint(folder)
        return step

    def go_back(self, progress: Progress) -> Restore:
        """Drop the steps since the newest valid checkpoint; returns what all members restore."""
        if self.step != progress.committed:
            self._event("RolledBack", f"from step {progress.committed} to {self.step} (checkpoint)", warning=True)
            self.requested = False  # what is left is saved
        progress.rewind(self.step, self.latest)
        return Restore(self.step, self.latest.folder if self.latest else None)

    def abandon(self, why: str) -> None:
        """Give up the checkpoint in progress, unless only its manifest is missing; another one is begun soon."""
        if self._barrier is not None and not self._barrier.complete:
            abandoned, self._barrier, self.requested = self._barrier, None, True
            self._event("CheckpointAbandoned", f"step {abandoned.step}: {why}", warning=True)
            self._effects.discard_checkpoint(abandoned.folder)

    @property
    def waits_for(self) -> str:
        """Describe what the checkpoint in progress waits for."""
        assert self._barrier is not None
        missing = ", ".join(self._barrier.missing) or "its manifest"
        return f"the checkpoint of step {self._barrier.step} waits for {missing}"

    @property
    def kept(self) -> str:
        """Describe the checkpoint that remains after a failure."""
        return f"checkpoint of step {self.latest.step} stays" if self.latest else "there is no earlier checkpoint"
