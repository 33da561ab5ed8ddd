"""What happened to a job, for people: a bounded list of events, newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Journal"]

_MAX_EVENTS = 200


class Journal:
    """Events with the time at which they were noted.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)

    def note(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an event; `reason` is CamelCase, for programs."""
        kind = "Warning" if warning else "Normal"
        self._events.append({"time": self._clock(), "type": kind, "reason": reason, "message": message})

    def events(self) -> list[dict[str, Any]]:
        """The events as in the status document, the oldest first."""
        return list(self._events)
