"""How often a division may change: less often as long as changes do not pay.

A division follows the speeds that were measured last. Where speeds change about as often as they are looked at, it is
always the division for what has just passed, and worse than any that stays. So each change is judged by what was
measured after it: would the division before it have made these steps shorter?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heterps_planner.balancing.estimates import WorkerEstimate

__all__ = ["Pace"]

_LONGEST = 16  # intervals: a lasting change of speed must not wait for long


@dataclass(frozen=True, slots=True)
class Pace:
    """When the division changed last, what that gave, and when it may change again.

    Attributes:
        wait: intervals between that change and the next.
        time: of that change, seconds.
        before: samples of each worker before it, by worker; empty: there was none.
        gain: by how much longer steps would have been since then without it, added up over observations and stages.
    """

    wait: int = 1
    time: float = 0.0
    before: Mapping[str, int] = field(default_factory=dict)
    gain: float = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pace:
        """Read what `dataclasses.asdict` wrote, perhaps through JSON.

        Raises:
            TypeError: the fields are others.
        """
        return cls(**value)

    def allows(self, now: float, interval: float) -> bool:
        """Whether the division may change now; `interval` is the time between two decisions, in seconds."""
        return not self.before or now - self.time >= self.wait * interval

    def observe(self, stages: Sequence[Mapping[str, tuple[int, float]]], speeds: Mapping[str, WorkerEstimate]) -> Pace:
        """Compare steps with what they would have been before the last change.

        Args:
            stages: of each stage, worker name -> (samples it worked on, seconds it took).
            speeds: what is known of the workers, by name.
        """
        gain = self.gain
        for stage in stages:
            if not all(batch > 0 and name in self.before for name, (batch, _) in stage.items()):
                continue  # others were there then, or a worker has nothing to do
            present = max(seconds for _, seconds in stage.values())
            without = max(
                seconds * _ratio(speeds.get(name), self.before[name], batch)
                for name, (batch, seconds) in stage.items()
            )  # fmt: skip
            gain += without / present - 1
        return replace(self, gain=gain)

    def change(self, present: Mapping[str, int], now: float) -> Pace:
        """Take note of a change.

        Args:
            present: samples of each worker until now, by name.
            now: seconds.
        """
        if not self.before:
            return Pace(1, now, dict(present))
        wait = min(2 * self.wait, _LONGEST) if self.gain < 0 else max(self.wait // 2, 1)
        return Pace(wait, now, dict(present))


def _ratio(speed: WorkerEstimate | None, other: int, batch: int) -> float:
    """How many times as long another batch takes a worker."""
    if speed is None or not speed.num_observations:
        return other / batch
    return speed.predict(other) / speed.predict(batch)
