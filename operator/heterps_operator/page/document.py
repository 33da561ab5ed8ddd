"""The skeleton that all pages share: head, key figures, sections, foot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata, resources

from heterps_operator.formatting import format_time
from heterps_operator.page.html import Content, Markup, element, join
from heterps_operator.page.palette import pattern_definitions

__all__ = ["build_document", "facts", "figures", "section"]

# The page loads nothing and runs nothing, whatever a name in it contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def build_document(title: str, subtitle: Content, sections: Iterable[Markup | None], written: float) -> str:
    """Build the text of the HTML file.

    Args:
        title: the heading of the page.
        subtitle: the line below it.
        sections: from `section`; None is left out.
        written: the time of writing, Unix seconds.
    """
    style = resources.files("heterps_operator.page").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · HeterPS"),
        element("style", Markup(style)),
    )
    version = metadata.version("heterps")
    body = element(
        "body",
        pattern_definitions(),
        element("header", element("h1", title), element("p", subtitle)),
        element("main", *sections),
        element("footer", element("p", f"Written by heterps {version} at {format_time(written)}.")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def section(heading: str, summary: Content, *parts: Content) -> Markup:
    """Build a section of the page.

    Args:
        heading: its title.
        summary: what to see in it, in a sentence or two; None: the content says it.
        parts: its content.
    """
    said = None if summary is None else element("p", summary, class_="summary")
    return element("section", element("h2", heading), said, *parts)


def figures(pairs: Sequence[tuple[str, str, str]]) -> Markup:
    """Build the key figures at the top: name, value, and a remark of a few words."""
    items = (
        element("div", element("dt", name), element("dd", value, element("small", remark) if remark else None))
        for name, value, remark in pairs
    )
    return element("dl", join(items), class_="figures")


def facts(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Build a list of names, each with a sentence."""
    parts = (part for name, text in pairs for part in (element("dt", name), element("dd", text)))
    return element("dl", *parts, class_="facts")
