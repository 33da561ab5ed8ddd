"""The CSV files of a run, as input of the document and the plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.framework import Row
from experiments.plots import LOOKS, Bar
from experiments.tables import number, read_csv, spread

__all__ = ["MODEL_TITLES", "Results", "bar_of", "in_order", "methods_in", "read_machines"]

MODEL_TITLES = {
    "matchnet": "MATCHNET",
    "ctrdnn": "CTRDNN",
    "2emb": "2EMB",
    "nce": "NCE",
    "ctrdnn-8": "CTRDNN, 8 layers",
    "ctrdnn-12": "CTRDNN, 12 layers",
    "ctrdnn-20": "CTRDNN, 20 layers",
}


class Results:
    """Content of a results folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.images = out / "images" / "experiments"
        self._cache: dict[str, list[Row]] = {}

    def rows(self, name: str, keep: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """Return the rows of an experiment; empty if it has not run."""
        if name not in self._cache:
            path = self.out / "results" / f"{name}.csv"
            self._cache[name] = read_csv(path) if path.is_file() else []
        return [row for row in self._cache[name] if keep(row)]

    def machine(self, name: str) -> dict[str, Any]:
        """Return the machine on which an experiment's results were written; empty if unknown."""
        machines = read_machines(self.out)
        value: dict[str, Any] = machines.get(name, {})
        return value


def read_machines(out: Path) -> dict[str, Any]:
    """Return the machine of each experiment of a results folder."""
    path = out / "results" / "machine.json"
    value: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return value


def methods_in(rows: Sequence[Row]) -> list[str]:
    """Return the occurring methods, in the order of the legend, unknown ones last."""
    present = {str(row["method"]) for row in rows}
    return [name for name in LOOKS if name in present] + sorted(present - set(LOOKS))


def in_order(values: Sequence[str]) -> list[str]:
    """Return the occurring models, in the order of the paper."""
    present = set(values)
    return [name for name in MODEL_TITLES if name in present] + sorted(present - set(MODEL_TITLES))


def bar_of(rows: Sequence[Row], value: Callable[[Row], float]) -> Bar:
    """Return mean and spread of the feasible rows; a cross if all are infeasible."""
    if not rows:
        return Bar(float("nan"))
    values = [value(row) for row in rows if row.get("status", "ok") == "ok"]
    if len(values) < len(rows) / 2 or not values:
        return Bar(float("nan"), missing=str(rows[0].get("status")))
    mean, low, high = spread(values)
    return Bar(mean, low, high)


def gap_percent(row: Row) -> float:
    """Return the percentage above the certified optimum."""
    return number(row, "gap_percent")
