"""Small parts of the document: tables, formatted numbers, pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = [
    "BY_THE_MODEL",
    "PROCESSOR_TIME",
    "SIMULATED",
    "count",
    "made_by",
    "percent",
    "picture",
    "scope_of",
    "seconds",
    "spread_text",
    "table",
]

# What a table's figures were measured with.
PROCESSOR_TIME = "processor time of one thread"
BY_THE_MODEL = "none, costs follow from the cost model"
SIMULATED = "simulated"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    results: Sequence[Mapping[str, object]],
    *,
    scope: str,
    clock: str,
) -> str:
    """Return a table with its caption; the first column is left-aligned, the others right-aligned.

    Args:
        head: titles of the columns.
        rows: cells.
        results: what the cells summarise; says which seeds.
        scope: which problems.
        clock: what the figures were measured with.
    """
    lines = [
        f"*Scope: {scope}. Seeds: {_seeds(results)}. Clock: {clock}.*",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "|".join("---" if i == 0 else "--:" for i in range(len(head))) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def picture(alt: str, name: str) -> str:
    """A picture of images/experiments."""
    return f"![{alt}](images/experiments/{name}.png)\n"


def made_by(name: str, machine: Mapping[str, object]) -> str:
    """Return the command that creates an experiment's results, where they are, and on what they were measured.

    Args:
        name: of the experiment.
        machine: of `Results.machine`; empty: unknown.
    """
    where = "unknown"
    if machine:
        where = "{processor}, {cores} cores, ".format(**machine)
        where += f"{machine['card']}, " if "card" in machine else ""
        where += "Python {python}, NumPy {numpy}, {date}".format(**machine)
    return f"`python -m experiments {name}`; rows: [{name}.csv](results/{name}.csv). Machine: {where}.\n"


def scope_of(rows: Sequence[Mapping[str, object]], titles: Mapping[str, str]) -> str:
    """Return the models, numbers of pools and limits that occur in rows."""
    models = [titles.get(name, name) for name in dict.fromkeys(str(row["model"]) for row in rows)]
    counts = sorted({int(str(row["pools"])) for row in rows})
    limits = [str(name) for name in dict.fromkeys(str(row["limits"]) for row in rows if "limits" in row)]
    parts = [", ".join(models), f"T = {', '.join(map(str, counts))}"]
    return "; ".join([*parts, f"{' and '.join(limits)} limits"] if limits else parts)


def _seeds(rows: Sequence[Mapping[str, object]]) -> str:
    seeds = sorted({int(str(row[key])) for row in rows for key in ("seed", "cluster") if row.get(key) is not None})
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]) if seeds else "no random numbers"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


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
