"""How much a process has done: bytes that it read and wrote, samples that it computed.

Members report the number with each pulse. The coordinator restarts a job as hung only if no step is committed and no
number grows: a slow storage is not a hang, a storage that stands still is.
"""

from __future__ import annotations

import threading

__all__ = ["TOTAL", "WorkCounter"]

TOTAL = "work"  # name among a pulse's totals


class WorkCounter:
    """Counts up from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, amount: int) -> None:
        """Note `amount` bytes or samples."""
        with self._lock:
            self._total += amount

    @property
    def total(self) -> int:
        """All work since the process started."""
        return self._total
