"""Pages in a real browser, on a telephone, on a screen and on paper."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.heterps_operator.page.chromium import CHROMIUM, Layout, Window, lay_out, print_page
from tests.heterps_operator.page.samples import hostile_pages, pages

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")

WINDOWS = (
    Window(360),
    Window(360, dark=True),
    Window(1400),
    Window(1400, dark=True),
    Window(690, printed=True),
    Window(690, dark=True, printed=True),
)


@pytest.fixture(scope="module", params=["plan.html", "report.html", "hostile"])
def text(request: pytest.FixtureRequest) -> str:
    return hostile_pages()[1] if request.param == "hostile" else pages()[request.param]


def overlapping(layout: Layout) -> list[tuple[str, str]]:
    """The pairs of texts of one chart that cover each other by more than a pixel."""
    return [
        (one, other)
        for texts in layout.texts
        for (one, a), (other, b) in itertools.combinations(texts, 2)
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
    ]


def outside(layout: Layout) -> list[str]:
    """The texts of charts that leave the viewport."""
    return [text for texts in layout.texts for text, box in texts if box[0] < 0 or box[2] > layout.width]


def test_a_page_fits_its_window_and_its_charts_are_readable(text: str, tmp_path: Path) -> None:
    for window, layout in zip(WINDOWS, lay_out(text, WINDOWS, tmp_path), strict=True):
        assert layout.width == window.width
        assert layout.scroll_width <= window.width, window
        assert sum(map(len, layout.texts)) > 20
        assert overlapping(layout) == [], window
        assert outside(layout) == [], window
        # A dark page on a screen, and black on white on paper.
        assert (sum(layout.background) < sum(layout.color)) == (window.dark and not window.printed), window
        if window.printed:
            assert (layout.background, layout.color) == ((255, 255, 255), (0, 0, 0))


def test_a_page_prints_without_complaints(text: str, tmp_path: Path) -> None:
    document, complaints = print_page(text, tmp_path)
    assert complaints == []
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 12
