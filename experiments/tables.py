"""Rows as CSV files, and small statistics over rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from experiments.framework import Row, Value

__all__ = ["group", "mean", "number", "read_csv", "spread", "write_csv"]

K = TypeVar("K")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows; the columns are all occurring keys, in the order of their first occurrence."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _text(value) for name, value in row.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """Read the result of `write_csv`: numbers are numbers again, an empty field is None."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def number(row: Row, name: str) -> float:
    """Return a field as a number; NaN if missing."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def group(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Group rows by key, in the order of first occurrence."""
    result: dict[K, list[Row]] = {}
    for row in rows:
        result.setdefault(key(row), []).append(row)
    return result


def mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values; NaN if there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, minimum and maximum of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan, math.nan
    return sum(finite) / len(finite), min(finite), max(finite)


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _value(text: str | None) -> Value:
    if text is None or text == "":
        return None
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
