"""Values of the cluster's PriorityClasses, for the order of jobs that wait. Thread-safe."""

from __future__ import annotations

import time
from collections.abc import Callable

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import PRIORITY_CLASSES

__all__ = ["Priorities"]

_VALID_SECONDS = 60.0  # a class is immutable, but may be replaced
_MOST_CLASSES = 1_000


class Priorities:
    """Reads PriorityClasses when jobs name them.

    Args:
        api: API server of the cluster.
        monotonic: seconds that setting the machine's time does not change.
    """

    def __init__(self, api: KubernetesApi, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._monotonic = monotonic
        self._known: dict[str, tuple[int, float]] = {}  # values, with the time of the next question

    def value(self, name: str | None) -> int:
        """Return the value of a class; 0 without one, or for one that does not exist or may not be read."""
        if not name:
            return 0
        now = self._monotonic()
        value, again = self._known.get(name, (0, 0.0))
        if name in self._known and now < again:
            return value
        try:
            found = (self._api.get(f"{PRIORITY_CLASSES}/{name}") or {}).get("value")
            value = found if isinstance(found, int) else 0
        except ApiError:  # the last known value is better than none, and the question is repeated
            pass
        if len(self._known) >= _MOST_CLASSES:
            self._known.clear()
        self._known[name] = value, now + _VALID_SECONDS
        return value
