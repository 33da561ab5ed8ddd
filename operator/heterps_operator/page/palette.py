"""One colour and one pattern for each pool, so that no plot depends on seeing colours.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which people with colour blindness can tell
apart. `style.css` has their values.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps_operator.page.html import Markup, element, join

__all__ = ["Palette", "marker", "pattern_definitions", "swatch"]

# The lines of each pattern, in a tile of 8 x 8 pixels.
_LINES = (
    "",
    "M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6",
    "M4,1 V3 M4,5 V7",
    "M-2,6 L2,10 M0,0 L8,8 M6,-2 L10,2",
    "M4,0 V8",
    "M0,4 H8",
    "M0,8 L8,0 M0,0 L8,8",
    "M4,0 V8 M0,4 H8",
)


class Palette:
    """Fills of the pools of a page.

    Args:
        pools: their names, in the order of the job; more than eight share fills.
    """

    def __init__(self, pools: Iterable[str]) -> None:
        self.pools = tuple(dict.fromkeys(pools))

    def fill(self, pool: str) -> str:
        """Return the `fill` of a pool's shapes."""
        return f"url(#pool-{self.pools.index(pool) % len(_LINES)})"

    def legend(self, pools: Iterable[str]) -> Markup:
        """Build the list that explains the fills of these pools."""
        items = (element("li", swatch(self.fill(pool)), pool) for pool in pools)
        return element("ul", *items, class_="legend")


def swatch(fill: str) -> Markup:
    """Build the small sample of a fill that stands before its name."""
    rect = element("rect", width="100%", height="100%", fill=fill, class_="shape")
    return element("svg", rect, class_="swatch", aria_hidden="true")


def marker(kind: str) -> Markup:
    """Build the sample of a mark in a plot: `chosen`, `predicted`, `measured` or `floor`, as `style.css` draws it."""
    shape = element("circle", cx="50%", cy="50%", r="5", class_=kind)
    if kind == "floor":
        shape = element("line", x1="0%", y1="50%", x2="100%", y2="50%", class_=kind)
    elif kind == "measured":
        shape = element("rect", x="15%", y="15%", width="70%", height="70%", class_=kind)
    return element("svg", shape, class_="swatch", aria_hidden="true")


def pattern_definitions() -> Markup:
    """Build the definitions of all fills, for the beginning of the page's body."""
    patterns = [_pattern(f"pool-{i}", f"var(--pool-{i})", lines) for i, lines in enumerate(_LINES)]
    patterns += [
        _pattern("send", "var(--send)", _LINES[3]),
        _pattern("wait", "var(--wait)", _LINES[2], "pattern pattern-quiet"),
    ]
    return element("svg", element("defs", join(patterns)), class_="definitions", aria_hidden="true")


def _pattern(name: str, colour: str, lines: str, css: str = "pattern") -> Markup:
    ground = element("rect", width="8", height="8", style=f"fill: {colour}")
    drawn = element("path", d=lines, class_=css) if lines else None
    return element("pattern", ground, drawn, id=name, width="8", height="8", patternUnits="userSpaceOnUse")
