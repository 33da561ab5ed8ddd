"""The bill, by pool."""

from __future__ import annotations

from heterps_operator.documents import Json
from heterps_operator.formatting import format_money
from heterps_operator.page.charts import bar, chart, percent
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, data_table, element
from heterps_operator.page.palette import Palette

__all__ = ["bill_section"]

_BAR_PIXELS = 26


def bill_section(bill: Json, predicted: float | None, palette: Palette) -> Markup | None:
    """Build the section; None if nothing was charged yet.

    Args:
        bill: from `Bill.to_json`.
        predicted: dollars that the plan predicts for training alone; None: no prediction.
        palette: fills of the pools.
    """
    lines = bill["pools"]
    if not lines:
        return None
    total = float(bill["cost"])
    rows = [
        (
            str(each["pool"]),
            f"{float(each['unitHours']):.4f}",
            f"${each['pricePerUnitHour']}",
            format_money(float(each["cost"])),
        )
        for each in lines
    ]
    rows.append(("total", "", "", format_money(total)))
    note = None
    if predicted is not None:
        text = f"The plan predicts {format_money(predicted)} for the training itself, without profiling, starting, "
        note = element("p", f"{text}waiting and evaluating.", class_="note")
    return section(
        "Bill",
        "Price × units × time, for as long as each process existed.",
        palette.legend(dict.fromkeys(str(each["pool"]) for each in lines)),
        _plot(bill, total, palette),
        data_table("Cost by pool and price", ("pool", "unit hours", "price per unit hour", "cost"), rows, numbers=3),
        note,
    )


def _plot(bill: Json, total: float, palette: Palette) -> Markup:
    parts, before = [], 0.0
    for each in bill["pools"]:
        cost = float(each["cost"])
        fill = palette.fill(str(each["pool"]))
        parts.append(bar(percent(before, total), 0, percent(cost, total), _BAR_PIXELS, fill))
        before += cost
    words = ", ".join(f"{each['pool']} {format_money(float(each['cost']))}" for each in bill["pools"])
    return chart("Shares of the bill", f"{words}; in all {format_money(total)}.", _BAR_PIXELS, parts, "strip")
