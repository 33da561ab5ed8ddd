"""The measured throughput of a plan since it came into force, with its noise.

A coordinator tells its throughput as a mean over the last ten seconds. Such values, ten seconds or more apart, are
nearly independent of each other, so their scatter says how far their mean can be trusted. A change of the units is
judged on the mean and its standard error, never on one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

__all__ = ["LEAST_SAMPLES", "PATIENCE", "Mean", "Sample", "ThroughputSeries", "mean", "pause_seconds", "stage_means"]

LEAST_SAMPLES = 3  # fewer say nothing about the noise
PATIENCE = 3.0  # pauses for which there must be too many units before some are given up
_WINDOW_SECONDS = 10.0  # that the coordinator's figure is a mean over
_WARM_SECONDS = 20.0  # the first window has the first steps of new workers in it, and steps before they were there
_SAMPLES_PER_PAUSE = 6
_LEAST_PAUSE_SECONDS = 30.0  # three windows
# One-sided 95 % quantiles of Student's t, by the number of samples.
_STUDENT = {3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02}
_STUDENT_MANY = 1.9


def pause_seconds(cooldown_seconds: float) -> float:
    """The unit of all waiting: `elasticity.cooldownSeconds`, but not less than it takes to measure a throughput."""
    return max(cooldown_seconds, _LEAST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    time: float  # Unix seconds by the coordinator's clock
    rate: float  # samples/s of the job
    stages: tuple[float, ...]  # samples/s that each stage could have alone


class Mean(NamedTuple):
    """A mean of samples."""

    value: float
    error: float  # half width of its one-sided 95 % confidence interval


@dataclass(frozen=True, slots=True)
class ThroughputSeries:
    """What was measured of one plan.

    Attributes:
        revision: of the plan.
        before: workers of each stage before this plan's were tried; empty: they were not tried instead of others.
        before_rate: samples/s that those could be relied on for.
        settled: since when all workers have been at work; None: they are not.
        samples: the oldest first, `PATIENCE` pauses of them.
    """

    revision: int = 0
    before: tuple[int, ...] = ()
    before_rate: float = 0.0
    settled: float | None = None
    samples: tuple[Sample, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ThroughputSeries:
        """Read what `dataclasses.asdict` wrote, perhaps through JSON.

        Raises:
            TypeError: the fields are others.
        """
        samples = tuple(Sample(**{**sample, "stages": tuple(sample["stages"])}) for sample in value["samples"])
        return cls(**{**value, "before": tuple(value["before"]), "samples": samples})

    def observe(self, sample: Sample, pause: float) -> ThroughputSeries:
        """Take in a measurement, unless the last one is too recent.

        Args:
            sample: taken while all workers are at work.
            pause: see `pause_seconds`.
        """
        last = self.samples[-1].time if self.samples else self.settled
        if self.settled is None or last is None or sample.time < last:  # or the clock of a new coordinator is behind
            return replace(self, settled=sample.time, samples=())
        ready = self.samples[-1].time + _spacing(pause) if self.samples else self.settled + _WARM_SECONDS
        if sample.time < ready:
            return self
        samples = (*self.samples, sample)
        kept = tuple(s for s in samples if s.time > sample.time - PATIENCE * pause)
        # A busy operator looks so rarely that the pauses may hold fewer than can be judged.
        return replace(self, samples=max(kept, samples[-LEAST_SAMPLES:], key=len))

    def unsettle(self) -> ThroughputSeries:
        """Forget what was measured: a worker is missing, and what comes after it is something else."""
        return replace(self, settled=None, samples=())

    def recent(self, pause: float) -> tuple[Sample, ...]:
        """The samples of the last pause, at least three if there are as many."""
        kept = tuple(s for s in self.samples if s.time > self.samples[-1].time - pause)
        return max(kept, self.samples[-LEAST_SAMPLES:], key=len)

    def complete(self, pause: float, pauses: float) -> bool:
        """Whether so many pauses have been measured."""
        if self.settled is None or len(self.samples) < LEAST_SAMPLES:
            return False
        return self.samples[-1].time - self.settled >= pauses * pause

    def misses(self, floor: float, pause: float) -> bool:
        """Whether the throughput is below a floor, now and by more than noise explains, lately or all the time."""
        if len(self.samples) < LEAST_SAMPLES or self.samples[-1].rate >= floor:
            return False
        means = (mean(self.recent(pause)), mean(self.samples))
        return any(m.value + m.error < floor for m in means)

    def least(self) -> float:
        """The throughput that can be relied on: the mean less its error, or half a minute if that was worse."""
        overall = mean(self.samples)
        return min(overall.value - overall.error, *self._parts())

    def most(self) -> float:
        """The throughput that is surely not exceeded: the mean plus its error, or half a minute if that was better."""
        overall = mean(self.samples)
        return max(overall.value + overall.error, *self._parts())

    def _parts(self) -> Iterator[float]:
        """The mean throughput of each half a minute."""
        parts = (self.samples[i : i + LEAST_SAMPLES] for i in range(len(self.samples) - LEAST_SAMPLES + 1))
        return map(_average, parts)


def mean(samples: Sequence[Sample]) -> Mean:
    """The mean throughput of at least two samples, with its error."""
    count = len(samples)
    value = _average(samples)
    variance = math.fsum((s.rate - value) ** 2 for s in samples) / (count - 1)
    return Mean(value, _STUDENT.get(count, _STUDENT_MANY) * math.sqrt(variance / count))


def _average(samples: Sequence[Sample]) -> float:
    return math.fsum(s.rate for s in samples) / len(samples)


def stage_means(samples: Sequence[Sample]) -> list[float]:
    """The mean of each stage's own throughput."""
    return [math.fsum(rates) / len(samples) for rates in zip(*(s.stages for s in samples), strict=True)]


def _spacing(pause: float) -> float:
    return max(_WINDOW_SECONDS, pause / _SAMPLES_PER_PAUSE)
