"""Numbers in user-facing text: one format per quantity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

__all__ = ["format_bytes", "format_duration", "format_money", "format_rate", "format_time", "list_some", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_LISTED = 16


def format_rate(samples_per_second: float) -> str:
    """Format a throughput: `50,210 samples/s`."""
    return f"{samples_per_second:,.0f} samples/s"


def format_money(dollars: float) -> str:
    """Format an amount with enough digits to show it: `$293.20`, `$0.0034`."""
    if dollars == 0 or abs(dollars) >= 1:
        return f"${dollars:,.2f}"
    digits = min(9, 2 - math.floor(math.log10(abs(dollars))))
    return f"${dollars:.{max(2, digits)}f}"


def format_bytes(number: int) -> str:
    """Format a size: `820 B`, `34.2 kB`, `1.5 MB`."""
    if number < 1000:
        return f"{number} B"
    return f"{number / 1e3:.1f} kB" if number < 1_000_000 else f"{number / 1e6:,.1f} MB"


def format_duration(seconds: float) -> str:
    """Format a time span: `8.2 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_time(seconds: float) -> str:
    """Format Unix seconds as Kubernetes does, in UTC: `2026-11-22T10:45:00Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_some(texts: Iterable[str], separator: str = ", ") -> str:
    """Join texts, at most 16 of them, and say how many more there are: a job may have thousands of processes."""
    listed = list(texts)
    more = len(listed) - _MOST_LISTED
    text = separator.join(listed[:_MOST_LISTED])
    return f"{text} and {more:,} more" if more > 0 else text


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a curve in one line of text; more values than `width` are averaged in groups.

    Args:
        values: finite numbers, oldest first.
        width: number of characters, >= 1.
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
