"""The interface between the core and the process around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.wire.messages import Damaged, FromCoordinator

__all__ = ["Address", "CheckpointRecord", "Effects"]

Address = tuple[str, str]  # name and incarnation of a process


class CheckpointRecord(Protocol):
    """A valid checkpoint."""

    @property
    def step(self) -> int:
        """Committed steps in it."""

    @property
    def folder(self) -> str:
        """Its folder below the checkpoint path."""

    @property
    def samples(self) -> int:
        """Samples trained on up to it."""

    @property
    def num_rows(self) -> int:
        """Rows of the training data; 0: it began with another job's model, and has seen no data."""

    @property
    def layout(self) -> str:
        """Of the training data, see `DataSize`."""

    @property
    def earlier_steps(self) -> int:
        """Steps of other jobs, whose optimizer state this job has gone on with, less the steps that it has skipped."""

    @property
    def loss_scale(self) -> Mapping[str, Any] | None:
        """The loss scale after its step, as `LossScale.to_json` writes it; None: the job does not scale losses."""


class Effects(Protocol):
    """Actions that the core requests. Calls return at once; results are reported by calls to the core."""

    def open_checkpoints(self) -> None:
        """Take over the checkpoints, and find the newest; reported by `checkpoints_opened` or `fail`."""

    def pass_over_checkpoint(self, damaged: Damaged) -> None:
        """Mark a checkpoint as damaged, and find the one before; reported as by `open_checkpoints`."""

    def send(self, processes: Sequence[Address], message: FromCoordinator) -> None:
        """Queue a message for processes, not for their replacements. It is encoded once; messages stay in order."""

    def write_manifest(self, barrier: Barrier, progress: dict[str, Any], plan: dict[str, Any]) -> None:
        """Make a checkpoint valid; reported by `manifest_written` or `checkpoint_failed`."""

    def checkpoint_folder(self, step: int) -> str:
        """A new folder for a checkpoint of `step`."""

    def discard_checkpoint(self, folder: str) -> None:
        """Remove the files of an unfinished checkpoint."""

    def export(self) -> None:
        """Export the model from the newest checkpoint; reported by `exported` or `fail`."""
