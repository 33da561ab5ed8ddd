"""Parts of SVG charts.

Charts have no `viewBox`: positions across are percentages of the plot's width, positions down are pixels. So a chart
takes the width of its column, and its text keeps its size on a telephone and on paper. The plot itself fills the SVG;
labels of the axes stand outside, in the margins that `style.css` leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from heterps_operator.page.html import Content, Markup, element

__all__ = ["bar", "chart", "label", "line", "percent", "short_number", "shortened", "ticks", "vertical_grid"]

_AXIS_PIXELS = 34  # below the plot, for the labels of the horizontal axis


def percent(value: float, whole: float) -> str:
    """Return a position across the plot; values outside are moved to its edge."""
    share = 100 * value / whole if whole > 0 else 0.0
    return f"{min(max(share, 0.0), 100.0):.3f}%"


def ticks(highest: float, most: int = 4) -> list[float]:
    """Return round numbers from 0 up to `highest`, at most `most` of them besides 0.

    Args:
        highest: end of the axis, > 0.
        most: number of intervals, >= 1.
    """
    rough = highest / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.floor(highest / step * (1 + 1e-9)) + 1)]


def chart(title: str, description: str, height: float, parts: Iterable[Content], css: str = "") -> Markup:
    """Build a chart.

    Args:
        title: its name, for screen readers.
        description: what it shows in words, for screen readers.
        height: of the plot, pixels.
        parts: the shapes.
        css: more classes, separated by spaces.
    """
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        class_=f"chart {css}".strip(),
        height=f"{height + _AXIS_PIXELS:g}",
        role="img",
    )


def bar(left: str, top: float, width: str, height: float, fill: str, css: str = "shape") -> Markup:
    """Build a rectangle; `left` and `width` are percentages, the others pixels."""
    return element("rect", x=left, y=f"{top:.2f}", width=width, height=f"{height:.2f}", fill=fill, class_=css)


def line(x1: str, y1: float, x2: str, y2: float, css: str) -> Markup:
    """Build a line; `x1` and `x2` are percentages, `y1` and `y2` pixels."""
    return element("line", x1=x1, y1=f"{y1:.2f}", x2=x2, y2=f"{y2:.2f}", class_=css)


def label(text: str, x: str, y: float, anchor: str = "start", shift: float = 0.0, css: str | None = None) -> Markup:
    """Build a text; `x` is a percentage, `y` its baseline and `shift` its distance from `x` in pixels."""
    moved = f"{shift:g}" if shift else None
    return element("text", text, x=x, y=f"{y:g}", dx=moved, text_anchor=anchor, class_=css)


def vertical_grid(highest: float, height: float, values: Iterable[tuple[float, str]], axis: str) -> list[Markup]:
    """Build the grid and the labels of a horizontal axis.

    Args:
        highest: end of the axis.
        height: of the plot, pixels.
        values: positions on the axis, and their labels.
        axis: the name of the axis, with its unit.
    """
    parts = []
    for value, text in values:
        x = percent(value, highest)
        parts += [line(x, 0, x, height, "grid"), label(text, x, height + 15, "middle", css="tick")]
    return [*parts, label(axis, "100%", height + 31, "end", css="axis")]


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; the page's tables have the whole of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def short_number(value: float) -> str:
    """Format a number for an axis: `500`, `25k`, `1.5M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
