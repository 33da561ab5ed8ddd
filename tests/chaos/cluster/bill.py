"""What the bill of a job may say: units times the time for which its pods existed, seen from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Existence", "Interval", "wrong_bill"]

Json = dict[str, Any]

_ROUNDING_SECONDS = 1.0  # of the API server's times, which are whole seconds
_SHARE = 0.02


@dataclass
class Interval:
    """The existence of a pod.

    Attributes:
        units: of its pool.
        began: Unix seconds.
        least_end: it has not ended before.
        most_end: it has ended by then; None: not yet.
    """

    units: int
    began: float
    least_end: float
    most_end: float | None = None


class Existence:
    """Collects when the pods of a job have existed.

    A pod may be charged from its creation to its end: the end of its container, or the moment when the API server tells
    of that, which is later if the node was away; or else a time after it was to be deleted, or its node was last heard
    of, and before it is gone. While the campaign itself stands still, starved or without an answer of the API server,
    pods may come and go unseen: at most as many units as ever existed at once.

    Args:
        longest_gap: seconds between two lists in which no pod comes and goes.
    """

    def __init__(self, longest_gap: float = 5.0) -> None:
        self._longest_gap = longest_gap
        self._pods: dict[str, Interval] = {}
        self._listed: float | None = None
        self._most_units = 0
        self._blind_seconds = 0.0

    def listed(self, pods: Sequence[Json], now: float) -> None:
        """Take a list of all pods, at `now` in Unix seconds."""
        if self._listed is not None and now - self._listed > self._longest_gap:
            self._blind_seconds += now - self._listed
        self._listed = now
        seen = set()
        for pod in pods:
            process = json.loads(pod["metadata"]["annotations"]["heterps.io/process"])
            if not process["units"]:
                continue
            uid = str(pod["metadata"]["uid"])
            seen.add(uid)
            began = _seconds(pod["metadata"]["creationTimestamp"])
            found = self._pods.setdefault(uid, Interval(int(process["units"]), began, began))
            if found.most_end is not None:
                continue
            finished = _finished(pod)
            if finished is not None:
                found.least_end = found.least_end if _ends(pod) else finished
                found.most_end = max(now, found.least_end)
            elif not _ends(pod):
                found.least_end = now
        self._most_units = max(self._most_units, sum(self._pods[uid].units for uid in seen))
        for uid, found in self._pods.items():
            if uid not in seen and found.most_end is None:
                found.most_end = now

    def bounds(self, now: float) -> tuple[float, float]:
        """Return the least and the most unit-seconds that the bill may have at `now`."""
        least = sum(pod.units * (pod.least_end - pod.began - _ROUNDING_SECONDS) for pod in self._pods.values())
        ends = [(pod, now if pod.most_end is None else pod.most_end) for pod in self._pods.values()]
        most = sum(pod.units * (end - pod.began + _ROUNDING_SECONDS) for pod, end in ends)
        most += self._most_units * self._blind_seconds
        return max(0.0, least * (1 - _SHARE)), most * (1 + _SHARE)


def wrong_bill(unit_seconds: float, bounds: tuple[float, float]) -> list[str]:
    """Return what is wrong with a bill; empty: nothing."""
    least, most = bounds
    if least <= unit_seconds <= most:
        return []
    return [f"the bill has {unit_seconds:.1f} unit-seconds, its pods existed for {least:.1f} to {most:.1f}"]


def _ends(pod: Json) -> bool:
    """Whether a pod is to be deleted, or its node is not heard of."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    unknown = any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions)
    return unknown or bool(pod["metadata"].get("deletionTimestamp"))


def _finished(pod: Json) -> float | None:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return _seconds(ended["finishedAt"])
    return None


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
