"""HTML elements from Python values. All text is escaped; only `Markup` is inserted as it is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

__all__ = ["Content", "Markup", "data_table", "element", "join", "units_of"]

# Characters that neither HTML nor UTF-8 can hold: controls except tab and newline, and lone surrogates.
_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta"})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Content = str | float | None


def join(parts: Iterable[Content], separator: str = "") -> Markup:
    """Concatenate contents; None is left out, and text that is no `Markup` is escaped."""
    return Markup(separator.join(_escape(part) for part in parts if part is not None))


def element(name: str, /, *children: Content, **attributes: Content) -> Markup:
    """Build an element.

    Args:
        name: the tag's name.
        children: the content; see `join`.
        attributes: by name, where a trailing underscore is dropped (`class_`) and other underscores become hyphens.
            None: the attribute is left out.
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{_escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening) if name in _VOID else Markup(f"{opening}{join(children)}</{name}>")


def data_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Content]], numbers: int = 0) -> Markup:
    """Build a table whose rows begin with their name.

    Args:
        caption: what the table shows.
        head: the names of the columns.
        rows: the cells, as many as `head` has.
        numbers: so many of the last columns hold numbers, which are aligned to the right.
    """
    first = len(head) - numbers

    def css(column: int) -> str | None:
        return "number" if column >= first else None

    heads = (element("th", name, scope="col", class_=css(i)) for i, name in enumerate(head))
    lines = []
    for name, *cells in rows:
        data = (element("td", cell, class_=css(i)) for i, cell in enumerate(cells, start=1))
        lines.append(element("tr", element("th", name, scope="row"), *data))
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
        aria_label=caption,
    )
    # A wide table scrolls in its own box, which takes the focus so that the keyboard can scroll it.
    box = element("div", table, class_="table", tabindex="0", role="region", aria_label=caption)
    return element("figure", element("figcaption", caption), box)


def units_of(count: int, pool: str) -> str:
    """Format units of a pool so that no line ends between them: `4 × cpu`."""
    return f"{count}\u00a0×\u00a0{pool}"


def _escape(value: Content) -> str:
    if isinstance(value, Markup):
        return value
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return html.escape(_UNREADABLE.sub("\ufffd", text))
