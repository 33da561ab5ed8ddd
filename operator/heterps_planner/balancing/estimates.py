"""Running estimate of a worker's speed from observed steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["WorkerEstimate"]

# Weight of the past per observation: about 20 observations count, which averages 8 % of noise down to 2 %.
_MEMORY = 0.95
# Prior standard deviation of the overhead's share of a step: how far the slope may differ from time / batch. It keeps
# noise between nearly equal batches from passing for a slope.
_OVERHEAD_SHARE = 0.3
_INITIAL_NOISE, _LEAST_NOISE = 0.1, 0.03  # relative standard deviation of a step's time
# Two-sided cumulative sum test [Page, Continuous inspection schemes, 1954] on residuals in standard deviations: a
# residual counts beyond the slack and up to the clip, so that one outlier raises no alarm, and two in a row do.
_SLACK, _CLIP, _ALARM = 1.0, 5.0, 8.0


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """Running estimate of o and s in seconds = o + s * batch, with change detection.

    Moments with exponential forgetting give the affine fit. Its slope is shrunk towards that of a line through the
    origin, the more the less the observed batches differ: with a single batch size, time is proportional to the batch.
    Divisions by such an estimate have their fixed point where all times are equal, so an unknown overhead does no harm.
    """

    num_observations: int = 0  # since the last change of speed
    weight: float = 0.0
    sum_b: float = 0.0
    sum_t: float = 0.0
    sum_bb: float = 0.0
    sum_bt: float = 0.0
    variance: float = _INITIAL_NOISE**2  # of the relative residuals
    outliers: tuple[tuple[int, float], ...] = ()  # (batch, seconds) since the last expected time
    slower: float = 0.0  # evidence of a slowdown, in standard deviations
    faster: float = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WorkerEstimate:
        """Restore the result of `dataclasses.asdict`, possibly via JSON.

        Raises:
            TypeError: the fields differ.
        """
        outliers = tuple((int(batch), float(seconds)) for batch, seconds in value.get("outliers", ()))
        return cls(**{**value, "outliers": outliers})

    @property
    def noise(self) -> float:
        """Relative standard deviation of a step's time."""
        return max(math.sqrt(self.variance), _LEAST_NOISE)

    @property
    def uncertainty(self) -> float:
        """Relative standard error of the time at a usual batch; infinite if nothing is known."""
        if not self.weight:
            return math.inf
        # Weights w^k, k < n, that add up to W count for W^2 / sum w^2k = W (1 + w) / (2 - W (1 - w)) equal ones.
        return self.noise / math.sqrt(self.weight * (1 + _MEMORY) / (2 - self.weight * (1 - _MEMORY)))

    def observe(self, batch: int, seconds: float) -> WorkerEstimate:
        """Process one step.

        Args:
            batch: samples, > 0.
            seconds: duration, > 0.
        """
        if not self.num_observations:
            return self._absorb(batch, seconds, self.variance, 0.0, 0.0)
        residual = math.log(seconds / self.predict(batch))
        surprise = residual / math.hypot(self.noise, self.uncertainty)
        clipped = max(-_CLIP, min(_CLIP, surprise))
        slower = max(0.0, self.slower + clipped - _SLACK)
        faster = max(0.0, self.faster - clipped - _SLACK)
        if max(slower, faster) >= _ALARM:
            anew = WorkerEstimate(variance=self.variance)
            for seen in (*self.outliers, (batch, seconds)):
                anew = anew._absorb(*seen, self.variance, 0.0, 0.0)
            return anew
        if abs(surprise) >= _CLIP:  # one outlier says nothing about the speed
            return replace(self, slower=slower, faster=faster, outliers=(*self.outliers, (batch, seconds)))
        # the initial value is a guess, worth five observations
        keep = min(_MEMORY, 1 - 1 / (self.num_observations + 5))
        return self._absorb(batch, seconds, keep * self.variance + (1 - keep) * residual**2, slower, faster)

    def _absorb(self, batch: int, seconds: float, variance: float, slower: float, faster: float) -> WorkerEstimate:
        """Add an observation to the moments."""
        return WorkerEstimate(
            self.num_observations + 1,
            _MEMORY * self.weight + 1,
            _MEMORY * self.sum_b + batch,
            _MEMORY * self.sum_t + seconds,
            _MEMORY * self.sum_bb + batch * batch,
            _MEMORY * self.sum_bt + batch * seconds,
            variance,
            (),
            slower,
            faster,
        )

    def fit(self) -> tuple[float, float]:
        """Return (overhead seconds, seconds per sample); requires an observation."""
        mean_b, mean_t = self.sum_b / self.weight, self.sum_t / self.weight
        spread = max(self.sum_bb / self.weight - mean_b**2, 0.0) / mean_b**2
        through_origin = mean_t / mean_b
        # Posterior mean of a slope with prior N(t/b, (share * t/b)^2) and residuals of the observed noise.
        trust = self.noise**2 / (self.weight * _OVERHEAD_SHARE**2)
        measured = (self.sum_bt / self.weight - mean_b * mean_t) / mean_b**2
        slope = (measured + trust * through_origin) / (spread + trust)
        # Neither the overhead nor (nearly all of) the time per sample can be negative.
        slope = max(0.05 * through_origin, min(through_origin, slope))
        return max(mean_t - slope * mean_b, 0.0), slope

    def predict(self, batch: int) -> float:
        """Return the expected seconds for a batch; requires an observation."""
        overhead, slope = self.fit()
        return overhead + slope * batch
