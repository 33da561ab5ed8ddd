"""Writing that survives a power failure."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder"]


def sync_folder(folder: str | Path) -> None:
    """Flush a folder, so that new and renamed entries in it survive a power failure.

    Raises:
        OSError: the folder cannot be opened or flushed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
