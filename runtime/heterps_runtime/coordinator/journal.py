"""The events of a job, for users."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from heterps_runtime.coordinator.words import as_reason, as_text

__all__ = ["Journal"]

_MAX_EVENTS = 200


class Journal:
    """The latest events, with their times.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)

    def note(self, reason: str, message: str, *, warning: bool = False) -> float:
        """Add an event; returns its time. `reason` is in CamelCase, for programs."""
        kind, now = "Warning" if warning else "Normal", self._clock()
        self._events.append({"time": now, "type": kind, **self.worded(reason, message)})
        return now

    @staticmethod
    def worded(reason: str, message: str) -> dict[str, str]:
        """A reason and a message as the status document may have them."""
        return {"reason": as_reason(reason), "message": as_text(message)}

    def events(self) -> list[dict[str, Any]]:
        """The events as in the status document, oldest first."""
        return list(self._events)
