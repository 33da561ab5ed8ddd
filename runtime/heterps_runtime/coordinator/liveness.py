"""Who has been heard from, and when the job last moved, by the coordinator's own clock.

The clock is monotonic: setting the machine's time, or a laptop's sleep, makes no member look lost. Time in which the
coordinator itself did not run (it was stopped, migrated or starved of CPU) does not count either: the members' messages
waited for it.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["HEARTBEAT_TIMEOUT_SECONDS", "Liveness"]

HEARTBEAT_TIMEOUT_SECONDS = 20.0
_LONGEST_TICK_SECONDS = 2.0  # ticks come every half second; after a longer pause the coordinator was away


class Liveness:
    """Times of the last message of each process and of the last progress.

    Args:
        clock: monotonic seconds.
        timeout_seconds: silence after which a member counts as lost.
    """

    def __init__(self, clock: Callable[[], float], timeout_seconds: float = HEARTBEAT_TIMEOUT_SECONDS) -> None:
        self._clock = clock
        self.timeout_seconds = timeout_seconds
        self._heard: dict[str, float] = {}
        self._moved = self._ticked = clock()

    def hear(self, name: str) -> None:
        """A process has said something."""
        self._heard[name] = self._clock()

    def move(self) -> None:
        """The job has made progress."""
        self._moved = self._clock()

    def tick(self) -> None:
        """Notice time in which the coordinator did not run; to be called more often than every two seconds."""
        now = self._clock()
        away, self._ticked = now - self._ticked, now
        if away > _LONGEST_TICK_SECONDS:
            self._heard = {name: min(now, heard + away) for name, heard in self._heard.items()}
            self._moved = min(now, self._moved + away)

    def silent_seconds(self, name: str) -> float | None:
        """Seconds since a process was heard from; None: it never was."""
        heard = self._heard.get(name)
        return None if heard is None else self._clock() - heard

    def lost(self, name: str) -> bool:
        """Whether a member has been silent for too long."""
        silent = self.silent_seconds(name)
        return silent is not None and silent > self.timeout_seconds

    @property
    def idle_seconds(self) -> float:
        """Seconds since the job last made progress."""
        return self._clock() - self._moved
