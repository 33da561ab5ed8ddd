"""Prediction against measurement: of each plan, and of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_operator.formatting import format_rate
from heterps_operator.page.charts import chart, label, line, percent, short_number, shortened, ticks, vertical_grid
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, data_table, element
from heterps_operator.page.palette import marker

__all__ = ["Compared", "accuracy_section"]

_ROW_PIXELS = 40
_ROWS = 16  # in the plot; the table has all
_ROOM = 1.06
_LABEL_CHARACTERS = 38


@dataclass(frozen=True)
class Compared:
    """A throughput, as it was predicted and as it was measured.

    Attributes:
        name: whose throughput it is.
        predicted: samples per second; None: no prediction.
        measured: samples per second; None: not measured.
    """

    name: str
    predicted: float | None
    measured: float | None


def accuracy_section(plans: Sequence[Compared], stages: Sequence[Compared], floor: float) -> Markup | None:
    """Build the section; None if nothing was measured.

    Args:
        plans: the throughput of the job under each plan, the oldest first.
        stages: what each stage of the present plan reaches alone.
        floor: the required samples per second; 0: none.
    """
    rows = [*plans[-_ROWS:], *stages]
    if all(row.measured is None for row in rows):
        return None
    items = [
        element("li", marker("predicted"), "predicted"),
        element("li", marker("measured"), "measured"),
    ]
    if floor > 0:
        items.append(element("li", marker("floor"), f"required: {format_rate(floor)}"))
    summary = (
        "A plan is as fast as its slowest stage; a stage's own throughput is what it would reach if it never waited."
    )
    return section(
        "Prediction against measurement",
        summary,
        element("ul", *items, class_="legend"),
        _plot(rows, floor),
        _table([*plans, *stages]),
    )


def _plot(rows: Sequence[Compared], floor: float) -> Markup:
    end = _ROOM * max(floor, *(value for row in rows for value in (row.predicted, row.measured) if value))
    height = _ROW_PIXELS * len(rows)
    parts = vertical_grid(end, height, [(value, short_number(value)) for value in ticks(end)], "samples per second")
    if floor > 0:
        parts.append(line(percent(floor, end), 0, percent(floor, end), height, "floor"))
    for number, row in enumerate(rows):
        y = _ROW_PIXELS * number + 27
        parts.append(label(shortened(row.name, _LABEL_CHARACTERS), "0%", y - 13, css="strong"))
        if row.predicted and row.measured:
            parts.append(line(percent(row.predicted, end), y, percent(row.measured, end), y, "link"))
        if row.predicted:
            x = percent(row.predicted, end)
            parts.append(element("circle", cx=x, cy=f"{y}", r="5.5", class_="predicted"))
        if row.measured:
            # A square: a circle and a square are told apart without colours.
            square = element("rect", x="-5", y="-5", width="10", height="10", class_="measured")
            parts.append(element("svg", square, x=percent(row.measured, end), y=f"{y}", class_="mark"))
    words = "; ".join(f"{row.name}: {_rate(row.predicted)} predicted, {_rate(row.measured)} measured" for row in rows)
    return chart("Predicted and measured throughput", words, height, parts)


def _table(rows: Sequence[Compared]) -> Markup:
    cells = ((row.name, _rate(row.predicted), _rate(row.measured), _difference(row)) for row in rows)
    return data_table("Samples per second", ("throughput of", "predicted", "measured", "difference"), cells, numbers=3)


def _rate(value: float | None) -> str:
    return f"{value:,.0f}" if value else "unknown"


def _difference(row: Compared) -> str:
    if not row.predicted or not row.measured:
        return ""
    return f"{100 * (row.measured / row.predicted - 1):+.1f} %"
