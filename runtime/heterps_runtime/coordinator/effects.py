"""What the core asks of the world, and what it needs to know of a checkpoint."""

from __future__ import annotations

from typing import Any, Protocol

from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.wire.messages import FromCoordinator

__all__ = ["CheckpointRecord", "Effects"]


class CheckpointRecord(Protocol):
    """What the core needs to know of a valid checkpoint."""

    @property
    def step(self) -> int:
        """Committed steps that it holds."""

    @property
    def folder(self) -> str:
        """Its folder below the checkpoint path."""


class Effects(Protocol):
    """What the core asks of the world. Each call returns at once; results come back as calls to the core."""

    def send(self, member: str, incarnation: str, message: FromCoordinator) -> None:
        """Queue a message for one process, not for the one that replaces it; messages to it stay in order."""

    def write_manifest(self, barrier: Barrier, progress: dict[str, Any], plan: dict[str, Any]) -> None:
        """Make a checkpoint valid; answers with `manifest_written` or `checkpoint_failed`."""

    def checkpoint_folder(self, step: int) -> str:
        """A fresh folder for a checkpoint of `step`."""

    def discard_checkpoint(self, folder: str) -> None:
        """Remove what an unfinished checkpoint left behind."""

    def export(self, step: int) -> None:
        """Write the model from the checkpoint of `step`; answers with `exported` or `fail`."""
