"""Methods by models, the whole grid in two tables: cost above the certified optimum, and time to a plan.

`python -m experiments --tables` prints them; the document starts with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.clusters import POOL_COUNTS
from experiments.framework import Row
from experiments.markdown import percent, seconds
from experiments.methods import budget_of
from experiments.plots import look
from experiments.results import MODEL_TITLES, Results, gap_percent, in_order, methods_in
from experiments.tables import number, spread

__all__ = ["Table", "aligned", "gap_table", "time_table"]

Table = tuple[list[str], list[list[str]]]  # head, body


def gap_table(results: Results) -> Table:
    """Return percent above the certified optimum: mean (worst), and the number of runs with a plan if not all."""

    def cell(rows: Sequence[Row]) -> str:
        found = [gap_percent(row) for row in rows if row["status"] == "ok"]
        if not found:
            return "none"
        mean, _, worst = spread(found)
        share = "" if len(found) == len(rows) else f" {len(found)}/{len(rows)}"
        return (percent(mean) if percent(mean) == percent(worst) else f"{percent(mean)} ({percent(worst)})") + share

    return _table(results, cell)


def time_table(results: Results) -> Table:
    """Return processor seconds to a plan, or to giving up: mean (worst)."""

    def cell(rows: Sequence[Row]) -> str:
        mean, _, worst = spread([number(row, "seconds") for row in rows])
        return f"{seconds(mean)} ({seconds(worst)})"

    return _table(results, cell)


def aligned(table: Table) -> str:
    """Format a table for a terminal: the first column left-aligned, the others right-aligned."""
    lines = [table[0], *table[1]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _table(results: Results, cell: Callable[[Sequence[Row]], str]) -> Table:
    rows = results.rows("methods", lambda row: row["kind"] == "devices")
    models = in_order([str(row["model"]) for row in rows])
    body = []
    for method in methods_in(rows):
        mine = [row for row in rows if row["method"] == method]
        parts = [[row for row in mine if row["model"] == model] for model in models]
        body.append([_label(method), *(cell(part) if part else "-" for part in parts), cell(mine)])
    return ["", *(MODEL_TITLES.get(model, model) for model in models), "all"], body


def _label(method: str) -> str:
    """A method's name, with its scope if it did not run on the whole grid."""
    counts = budget_of(method).pool_counts
    scope = "" if counts == POOL_COUNTS else f" (T = {', '.join(map(str, counts))}, {budget_of(method).limits[0]})"
    return look(method).label + scope
