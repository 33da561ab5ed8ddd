"""Unix seconds that pass evenly, whatever happens to the machine's clock, for statuses, events and bills."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SteadyClock", "steady_time"]


class SteadyClock:
    """Unix seconds by the time of day at which this clock was made, and by the seconds since.

    The time of day may be set while a process runs, by hand or by NTP. A bill would charge the hours of a step, and
    what is due at a later time would come at once, or not for as long as the step back was.

    Args:
        time_of_day: Unix seconds.
        since_boot: seconds that also pass while the machine is suspended.
    """

    def __init__(
        self,
        time_of_day: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._since_boot = since_boot
        self._booted = time_of_day() - since_boot()

    def __call__(self) -> float:
        """Return the time."""
        return self._booted + self._since_boot()

    def set(self, now: float) -> None:
        """Go on from a time of another clock."""
        self._booted = now - self._since_boot()


steady_time = SteadyClock()  # one for all parts of a process, so that their times can be compared
