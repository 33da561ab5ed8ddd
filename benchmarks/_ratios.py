"""Ratios of figures that were measured in the same round, and how tables show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["ratios", "spread"]


def ratios(figures: Sequence[float | None], beside: Sequence[float | None]) -> list[float]:
    """Return figure / figure beside it for each round that has both."""
    pairs = zip(figures, beside, strict=True)
    return [a / b for a, b in pairs if a is not None and b is not None]


def spread(figures: Sequence[float], form: str) -> str:
    """Return `median (min - max)`; of a single figure, itself; without figures, nothing."""
    if not figures:
        return ""
    median = format(statistics.median(figures), form)
    return median if len(figures) == 1 else f"{median} ({min(figures):{form}} - {max(figures):{form}})"
