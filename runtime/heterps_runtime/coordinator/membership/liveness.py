"""Times since the last message of each process and since the last progress of the job.

Progress is a commit or another report, and any growth of the amount of work that a process has done (`work.py`), such
as the bytes of a checkpoint that it writes to a slow storage.

The clock is monotonic, so changes of the system time and a laptop's sleep do not make members look lost. Time during
which the coordinator itself did not run (stopped, migrated, starved of CPU) does not count either, because the messages
of members were waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["HEARTBEAT_TIMEOUT_SECONDS", "Liveness"]

HEARTBEAT_TIMEOUT_SECONDS = 20.0
_LONGEST_TICK_SECONDS = 2.0  # ticks come every half second; in a longer pause the coordinator did not run


class Liveness:
    """Times of the last message of each process and of the last progress.

    Args:
        clock: monotonic seconds.
        timeout_seconds: silence after which a member is considered lost.
    """

    def __init__(self, clock: Callable[[], float], timeout_seconds: float = HEARTBEAT_TIMEOUT_SECONDS) -> None:
        self._clock = clock
        self.timeout_seconds = timeout_seconds
        self._heard: dict[str, float] = {}
        self._work: dict[str, float] = {}
        self._moved = self._ticked = clock()

    def hear(self, name: str) -> None:
        """Note a message of a process."""
        self._heard[name] = self._clock()

    def move(self) -> None:
        """Note progress of the job."""
        self._moved = self._clock()

    def note_work(self, name: str, amount: float) -> None:
        """Note how much work a process has done since its start; growth is progress of the job."""
        if amount > self._work.get(name, 0.0):
            self.move()
        self._work[name] = amount  # less than before, if the process was replaced

    def tick(self) -> None:
        """Detect pauses of the coordinator. Must be called more often than every two seconds."""
        now = self._clock()
        away, self._ticked = now - self._ticked, now
        if away > _LONGEST_TICK_SECONDS:
            self._heard = {name: min(now, heard + away) for name, heard in self._heard.items()}
            self._moved = min(now, self._moved + away)

    def silent_seconds(self, name: str) -> float | None:
        """Seconds since the last message of a process; None: there was none."""
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
