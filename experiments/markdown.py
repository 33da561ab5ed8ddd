"""Small parts of the document: tables, formatted numbers, pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["made_by", "percent", "picture", "seconds", "spread_text", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, the first column left-aligned, the others right-aligned."""
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "|".join("---" if i == 0 else "--:" for i in range(len(head))) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def picture(alt: str, name: str) -> str:
    """A picture of images/experiments."""
    return f"![{alt}](images/experiments/{name}.png)\n"


def made_by(name: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Return the command that creates an experiment's results, and the seeds in them."""
    seeds = sorted({int(str(row[key])) for row in rows for key in ("seed", "cluster") if row.get(key) is not None})
    span = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}" if seeds else "no seed"
    return f"`python -m experiments {name}`, {span}; rows: [{name}.csv](results/{name}.csv).\n"


def percent(value: float) -> str:
    """Format a percentage with meaningful digits; `-` for none."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 0.005:
        return "0"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def spread_text(low_mean_high: tuple[float, float, float]) -> str:
    """Format mean and spread, such as `1.20 (0.30-2.00)`; only the mean without a spread."""
    mean, low, high = low_mean_high
    if not math.isfinite(mean):
        return "-"
    if percent(low) == percent(high):
        return percent(mean)
    return f"{percent(mean)} ({percent(low)}-{percent(high)})"


def seconds(value: float) -> str:
    """Format a time in seconds with two or three digits."""
    if not math.isfinite(value):
        return "-"
    if value < 0.001:
        return f"{value * 1000:.2f} ms"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.3g} s" if value < 1000 else f"{value:,.0f} s"
