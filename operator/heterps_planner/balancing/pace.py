"""Frequency of changes of a division: lower while changes do not pay.

A division follows the last measured speeds. If speeds change about as often as they are measured, it always fits the
past, and is worse than a constant division. So each change is judged by later measurements: would the previous division
have made these steps shorter?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heterps_planner.balancing.estimates import WorkerEstimate

__all__ = ["Pace"]

_LONGEST = 16  # intervals: a lasting change of speed must not wait longer


@dataclass(frozen=True, slots=True)
class Pace:
    """The last change of the division, its gain, and the time of the next permitted change.

    Attributes:
        wait: intervals between that change and the next.
        time: time of that change, seconds.
        before: samples of each worker before it, by worker; empty: no change yet.
        gain: how much longer steps would have been since then without it, summed over observations and stages.
    """

    wait: int = 1
    time: float = 0.0
    before: Mapping[str, int] = field(default_factory=dict)
    gain: float = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pace:
        """Restore the result of `dataclasses.asdict`, possibly via JSON.

        Raises:
            TypeError: the fields differ.
        """
        return cls(**value)

    def allows(self, now: float, interval: float) -> bool:
        """Whether the division may change now; `interval` is the time between two decisions, in seconds."""
        return not self.before or now - self.time >= self.wait * interval

    def observe(self, stages: Sequence[Mapping[str, tuple[int, float]]], speeds: Mapping[str, WorkerEstimate]) -> Pace:
        """Compare steps with their predicted times under the division before the last change.

        Args:
            stages: for each stage, worker name -> (samples, seconds).
            speeds: estimates of the workers, by name.
        """
        gain = self.gain
        for stage in stages:
            if not all(batch > 0 and name in self.before for name, (batch, _) in stage.items()):
                continue  # the workers differ, or one has no samples
            present = max(seconds for _, seconds in stage.values())
            without = max(
                seconds * _ratio(speeds.get(name), self.before[name], batch)
                for name, (batch, seconds) in stage.items()
            )  # fmt: skip
            gain += without / present - 1
        return replace(self, gain=gain)

    def change(self, present: Mapping[str, int], now: float) -> Pace:
        """Record a change.

        Args:
            present: samples of each worker until now, by name.
            now: current time, seconds.
        """
        if not self.before:
            return Pace(1, now, dict(present))
        wait = min(2 * self.wait, _LONGEST) if self.gain < 0 else max(self.wait // 2, 1)
        return Pace(wait, now, dict(present))


def _ratio(speed: WorkerEstimate | None, other: int, batch: int) -> float:
    """Return the ratio of a worker's predicted times for two batches."""
    if speed is None or not speed.num_observations:
        return other / batch
    return speed.predict(other) / speed.predict(batch)
