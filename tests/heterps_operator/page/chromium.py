"""Pages in a real browser: their layout, and what the browser complains about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from heterps_operator.page.html import Markup, element

__all__ = ["CHROMIUM", "Layout", "Window", "lay_out", "print_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)
_SECONDS = 120

# Measures the windows of the host page. Coordinates are CSS pixels of each window.
_SCRIPT = """
addEventListener("load", () => {
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const results = [...document.querySelectorAll("iframe")].map(({contentWindow: view, contentDocument: page}) => ({
    width: view.innerWidth,
    scrollWidth: page.documentElement.scrollWidth,
    background: view.getComputedStyle(page.body).backgroundColor,
    color: view.getComputedStyle(page.body).color,
    texts: [...page.querySelectorAll("svg.chart")].map((svg) =>
      [...svg.querySelectorAll("text")].map((e) => ({text: e.textContent, box: box(e)}))),
  }));
  const pre = document.createElement("pre");
  pre.id = "result";
  pre.textContent = JSON.stringify(results);
  document.body.replaceChildren(pre);
});
"""


@dataclass(frozen=True)
class Window:
    """A window of a reader.

    Attributes:
        width: pixels.
        dark: the reader prefers dark pages.
        printed: apply the style of print, as far as a window can.
    """

    width: int
    dark: bool = False
    printed: bool = False


@dataclass(frozen=True)
class Layout:
    """How a browser has laid a page out.

    Attributes:
        width: of the viewport, pixels.
        scroll_width: of the page, pixels; more than `width`: it scrolls sideways.
        background: red, green and blue, 0 to 255.
        color: the same of text.
        texts: the texts of each chart, with (left, top, right, bottom).
    """

    width: float
    scroll_width: float
    background: tuple[int, ...]
    color: tuple[int, ...]
    texts: list[list[tuple[str, tuple[float, ...]]]]


def lay_out(text: str, windows: Sequence[Window], folder: Path) -> list[Layout]:
    """Lay a page out in windows, which are frames of one host page: a browser's own window has a least width.

    Args:
        text: the page.
        windows: the windows.
        folder: for the host page and the browser's profile.
    """
    frames = [
        element(
            "iframe",
            srcdoc=text.replace("@media print", "@media all") if window.printed else text,
            style=f"width: {window.width}px; border: 0; color-scheme: {'dark' if window.dark else 'light'}",
        )
        for window in windows
    ]
    host = element("html", element("body", *frames, element("script", Markup(_SCRIPT))))
    (folder / "host.html").write_text(f"<!DOCTYPE html>{host}", encoding="utf-8")
    output = _run(folder, "host.html", "--dump-dom").stdout
    found = re.search(r'<pre id="result">(.*?)</pre>', output, re.DOTALL)
    assert found is not None, "the browser has not measured the page"
    return [_layout(result) for result in json.loads(unescape(found[1]))]


def _layout(result: dict[str, Any]) -> Layout:
    return Layout(
        result["width"],
        result["scrollWidth"],
        _colour(result["background"]),
        _colour(result["color"]),
        [[(each["text"], tuple(each["box"])) for each in texts] for texts in result["texts"]],
    )


def print_page(text: str, folder: Path) -> tuple[bytes, list[str]]:
    """Print a page; return the PDF, and what the browser wrote to its console."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    target = folder / "page.pdf"
    options = ("--enable-logging=stderr", "--no-pdf-header-footer", f"--print-to-pdf={target}")
    output = _run(folder, "page.html", *options).stderr
    return target.read_bytes(), [line for line in output.splitlines() if "CONSOLE" in line]


def _run(folder: Path, page: str, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",  # which root cannot have; the page is our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        (folder / page).as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)


def _colour(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
