"""From repeated measurements to numbers: medians, spreads, fixed and per-sample parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Line", "Reading", "fit_line"]


@dataclass(frozen=True)
class Reading:
    """A measured time."""

    seconds: float  # median
    spread: float  # interquartile range / median

    @classmethod
    def of(cls, samples: Sequence[float]) -> Reading:
        """Reduce at least one sample of a quantity."""
        low, median, high = (float(q) for q in np.percentile(np.asarray(samples), (25, 50, 75)))
        return cls(median, (high - low) / median if median > 0 else 0.0)


@dataclass(frozen=True)
class Line:
    """Seconds for n samples: `fixed + per_sample * n`. Neither part is negative."""

    fixed: float
    per_sample: float

    def at(self, size: float) -> float:
        """Seconds for `size` samples."""
        return self.fixed + self.per_sample * size


def fit_line(seconds: Mapping[int, float]) -> Line:
    """Fit times measured at several sizes, exactly at the largest one.

    The largest size is that of the whole batch, so the line goes through it, and the smaller ones determine the fixed
    part. A negative fixed part (small batches fit into caches) becomes 0, and so does a negative slope.

    Args:
        seconds: size -> seconds, at least one size, all > 0.
    """
    largest = max(seconds)
    top = seconds[largest]
    # Least squares of t = top + slope (n - largest), relative to t so that small sizes count as much as large ones.
    weights = {n: 1.0 / t**2 for n, t in seconds.items() if t > 0}
    above = sum(w * (n - largest) * (seconds[n] - top) for n, w in weights.items())
    below = sum(w * (n - largest) ** 2 for n, w in weights.items())
    slope = above / below if below > 0 else top / largest
    slope = min(max(slope, 0.0), top / largest)
    return Line(top - slope * largest, slope)
