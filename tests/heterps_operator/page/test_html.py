"""HTML elements: what they escape, and what they leave out."""

from __future__ import annotations

import pytest

from heterps_operator.page.charts import percent, short_number, ticks
from heterps_operator.page.html import Markup, data_table, element, join


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b & \"c\" 'd'") == "<p>a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;</p>"
    assert element("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
    assert element("p", element("b", "x"), None, 1.5) == "<p><b>x</b>1.5</p>"
    assert join(["<", Markup("<br>")], ", ") == "&lt;, <br>"


def test_characters_that_a_file_cannot_hold_are_replaced() -> None:
    assert element("p", "a\x00b\x1b\ud800c\n\t") == "<p>a\ufffdb\ufffd\ufffdc\n\t</p>"


def test_attributes_have_the_names_of_html() -> None:
    assert element("rect", class_="a", stroke_width="2", x=None) == '<rect class="a" stroke-width="2"></rect>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_table_names_its_rows_and_columns() -> None:
    text = data_table("prices", ("pool", "price"), [("cpu", "$1")], numbers=1)
    assert '<th scope="row">cpu</th><td class="number">$1</td>' in text
    assert '<th scope="col">pool</th><th scope="col" class="number">price</th>' in text


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(1.0, [0, 0.25, 0.5, 0.75, 1.0]), (75, [0, 20, 40, 60]), (43_000, [0, 20_000, 40_000]), (1e-6, None)],
)
def test_ticks_are_round_and_few(highest: float, expected: list[float] | None) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert 2 <= len(found) <= 5
    assert found[-1] <= highest * (1 + 1e-9)
    if expected is not None:
        assert found == pytest.approx(expected)


def test_positions_stay_inside_the_plot() -> None:
    assert [percent(value, 4) for value in (-1, 1, 9)] == ["0.000%", "25.000%", "100.000%"]
    assert percent(1, 0) == "0.000%"


def test_axes_have_short_numbers() -> None:
    assert [short_number(value) for value in (0, 500, 25_000, 1.5e6, 2e9)] == ["0", "500", "25k", "1.5M", "2G"]
