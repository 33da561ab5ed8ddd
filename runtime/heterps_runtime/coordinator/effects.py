"""The interface between the core and the process around it."""

from __future__ import annotations

from typing import Any, Protocol

from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.wire.messages import FromCoordinator

__all__ = ["CheckpointRecord", "Effects"]


class CheckpointRecord(Protocol):
    """A valid checkpoint."""

    @property
    def step(self) -> int:
        """Committed steps in it."""

    @property
    def folder(self) -> str:
        """Its folder below the checkpoint path."""


class Effects(Protocol):
    """Actions that the core requests. Calls return at once; results are reported by calls to the core."""

    def open_checkpoints(self) -> None:
        """Take over the checkpoints, and verify the newest; reported by `checkpoints_opened` or `fail`."""

    def send(self, member: str, incarnation: str, message: FromCoordinator) -> None:
        """Queue a message for one process, not for its replacement; messages stay in order."""

    def write_manifest(self, barrier: Barrier, progress: dict[str, Any], plan: dict[str, Any]) -> None:
        """Make a checkpoint valid; reported by `manifest_written` or `checkpoint_failed`."""

    def checkpoint_folder(self, step: int) -> str:
        """A new folder for a checkpoint of `step`."""

    def discard_checkpoint(self, folder: str) -> None:
        """Remove the files of an unfinished checkpoint."""

    def export(self) -> None:
        """Export the model from the newest checkpoint; reported by `exported` or `fail`."""
