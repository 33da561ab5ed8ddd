"""A limit on the rate of requests, so that an operator with many jobs leaves room for others at the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["RateLimiter"]


class RateLimiter:
    """A token bucket, as in client-go's `flowcontrol`. Thread-safe; callers go on in the order in which they came.

    Args:
        per_second: requests per second in the long run.
        burst: requests at once after a pause.
        clock: monotonic seconds.
        sleep: waits.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = per_second
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = float(burst)  # below 0: callers are waiting for as many
        self._counted = clock()

    def wait(self) -> None:
        """Wait until one more request may be sent."""
        with self._lock:
            now = self._clock()
            self._tokens = min(float(self._burst), self._tokens + (now - self._counted) * self._rate)
            self._counted = now
            self._tokens -= 1.0
            pause = -self._tokens / self._rate
        if pause > 0.0:
            self._sleep(pause)
