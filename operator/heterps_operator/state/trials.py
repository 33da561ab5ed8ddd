"""What numbers of units were tried and did not do, so that they are not tried again at once.

A plan of fewer units is a prediction. Under a load that the profile does not know, the same prediction is wrong again
and again: too many units, too few, too many. So each number that missed the floor is remembered, with what it gave and
with what more units gave right after. It is barred for a time that doubles with every failure. Half of that time is
enough if the present throughput shows that it would do now. The same holds for units that were added in vain.

Everything here is a function of values; the trials lie in the job's status, so a restart of the operator forgets none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

__all__ = ["Cause", "FloorMoves", "Pods", "Review", "Trial", "remember", "spare"]

Pods = tuple[int, ...]  # workers of each stage

_FIRST_WAIT = 10.0  # pauses until what failed is tried again; doubles with each failure
_LONGEST_WAIT = 160.0
_FORGOTTEN = 4.0  # times its wait after it failed, a trial is as if it had never been
_LEAST_GAIN = 0.25  # of what was missing to the floor: units that bring less were added in vain
_MOST = 8  # trials that are kept


class Cause(StrEnum):
    """Why the plan is reviewed."""

    MISSED = "missed"  # the throughput is below the floor
    EXCESS = "excess"  # fewer units may do
    WORKERS = "workers"  # `elasticity.workers` asks for another number
    PRICES = "prices"  # prices have changed, and another plan may be cheaper
    STAGES = "stages"  # the throughput is below the floor, and no number of units of the present stages reaches it


@dataclass(frozen=True, slots=True)
class Review:
    """A question to the planner while the job trains.

    Attributes:
        cause: why it was asked.
        message: why, for people.
        rate: samples/s that the present workers can be relied on for; 0 for `Cause.WORKERS` and `PRICES`.
        basis: as in `Trial`.
        revision: of the plan that was asked for.
    """

    cause: Cause
    message: str
    rate: float = 0.0
    basis: str = ""
    revision: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Review:
        """Read what `dataclasses.asdict` wrote, perhaps through JSON.

        Raises:
            TypeError: the fields are others.
            ValueError: the cause is unknown.
        """
        return cls(**{**value, "cause": Cause(value["cause"])})


@dataclass(frozen=True, slots=True)
class Trial:
    """A number of workers that missed the floor, and the greater one that took its place.

    Attributes:
        fewer: workers of each stage that missed the floor.
        more: workers of each stage afterwards.
        fewer_rate: samples/s with the former.
        more_rate: samples/s with the latter, measured next; 0: not yet.
        time: when it failed, Unix seconds.
        wait: seconds from then on for which it is not tried again.
        in_vain: the greater number brought no gain and was given up.
        basis: digest of what else it depended on: settings, pools, stages, profiles.
    """

    fewer: Pods
    more: Pods
    fewer_rate: float
    more_rate: float
    time: float
    wait: float
    in_vain: bool
    basis: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trial:
        """Read what `dataclasses.asdict` wrote, perhaps through JSON.

        Raises:
            TypeError: the fields are others.
        """
        return cls(**{**value, "fewer": tuple(value["fewer"]), "more": tuple(value["more"])})

    @property
    def until(self) -> float:
        """When it is tried again, whatever is measured."""
        return self.time + self.wait

    def gains(self, floor: float, rate: float) -> bool:
        """Whether more units bring a good part of what was missing.

        Args:
            floor: samples/s that are wanted.
            rate: samples/s of the fewer units.
        """
        return self.more_rate - rate >= _LEAST_GAIN * (floor - rate)

    def bars_fewer(self, wanted: Pods, floor: float, present: Pods, rate: float, now: float) -> bool:
        """Whether a smaller number is not to be tried.

        Args:
            wanted: workers of each stage that are to be tried.
            floor: samples/s that are wanted.
            present: workers of each stage now.
            rate: samples/s that they can be relied on for.
            now: Unix seconds.
        """
        if self.fewer_rate >= floor or now >= self.until or not _within(wanted, self.fewer):
            return False
        # Under the load of then, `more_rate` against `fewer_rate`; under that of now, `rate` against what is expected.
        known = wanted == self.fewer and present == self.more and self.more_rate > 0
        would_do = known and self.fewer_rate * rate / self.more_rate >= floor
        return not (would_do and now >= self.time + self.wait / 2)

    def bars_more(self, present: Pods, floor: float, rate: float, now: float) -> bool:
        """Whether units that would be added to the present ones would be added in vain once more.

        Args:
            present: workers of each stage.
            floor: samples/s that are wanted.
            rate: samples/s with them.
            now: Unix seconds.
        """
        if not self.in_vain or present != self.fewer or now >= self.until:
            return False
        return not (self.gains(floor, rate) and now >= self.time + self.wait / 2)


@dataclass(frozen=True, slots=True)
class FloorMoves:
    """The last move to other stages because the floor was out of reach. After each, the next waits twice as long.

    Attributes:
        floor: samples/s that were wanted.
        time: of the move, Unix seconds.
        wait: seconds until another one is tried for the same floor; 0: there was none.
    """

    floor: float = 0.0
    time: float = 0.0
    wait: float = 0.0

    def until(self, floor: float, now: float) -> float | None:
        """When a move for this floor may be tried; None: now."""
        end = self.time + self.wait
        return end if floor == self.floor and now < end else None

    def again(self, floor: float, now: float, pause: float) -> FloorMoves:
        """What is remembered after one more move; `pause` is the unit of waiting, in seconds."""
        known = floor == self.floor and now < self.time + _FORGOTTEN * self.wait
        return FloorMoves(floor, now, min(2 * self.wait, _LONGEST_WAIT * pause) if known else _FIRST_WAIT * pause)


def remember(trials: Sequence[Trial], trial: Trial, pause: float) -> tuple[Trial, ...]:
    """Take a failure in; its wait follows from how often the same number has failed.

    Args:
        trials: that are known.
        trial: the new one; its `wait` is set here.
        pause: the unit of waiting, seconds.
    """
    known = [t for t in trials if t.basis == trial.basis and trial.time < t.time + _FORGOTTEN * t.wait]
    last = next((t for t in known if t.fewer == trial.fewer), None)
    wait = _FIRST_WAIT * pause if last is None else min(2 * last.wait, _LONGEST_WAIT * pause)
    others = [t for t in known if t.fewer != trial.fewer]
    return (*others, replace(trial, wait=wait))[-_MOST:]


def spare(
    trials: Sequence[Trial], wanted: Pods, *, floor: float, present: Pods, rate: float, now: float
) -> tuple[Pods, Trial | None]:
    """Go down as far as nothing is in the way.

    A number that is barred is not tried, nor are smaller ones; the middle between it and the present one is.

    Args:
        trials: that are known.
        wanted: workers of each stage that the planner holds for sufficient.
        floor: samples/s that are wanted.
        present: workers of each stage now.
        rate: samples/s that they can be relied on for.
        now: Unix seconds.

    Returns:
        Workers of each stage, and the trial that was in the way last.
    """
    in_the_way = None
    while wanted != present:
        bars = (t for t in trials if t.bars_fewer(wanted, floor, present, rate, now))
        found = next(bars, None)
        if found is None:
            break
        in_the_way = found
        # What failed itself may do now; what is smaller is only known to be worse.
        low = tuple(min(n, max(few, w)) for n, few, w in zip(present, found.fewer, wanted, strict=True))
        wanted = low if low != wanted else tuple(n - (n - least) // 2 for n, least in zip(present, low, strict=True))
    return wanted, in_the_way


def _within(some: Pods, others: Pods) -> bool:
    return len(some) == len(others) and all(n <= other for n, other in zip(some, others, strict=True))
