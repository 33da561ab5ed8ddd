"""What changed at each new plan, and why."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from heterps_operator.formatting import format_money, format_rate, format_time
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, element
from heterps_operator.state.history import PlanRecord

__all__ = ["history_section"]

_WORDS = {
    "PlanComputed": "first plan",
    "Replanned": "another plan",
    "UnitsChanged": "another number of units",
    "Redivided": "other stages",
}


def history_section(records: Sequence[PlanRecord]) -> Markup | None:
    """Build the section; None if no plan was recorded.

    Args:
        records: the job's plans, the oldest first.
    """
    if not records:
        return None
    changes = len(records) - 1
    if records[0].revision > 1 and changes == 0:
        summary = "Only the present plan is known; earlier ones were not recorded."
    elif records[0].revision > 1:
        summary = f"The last {len(records)} plans of the job; earlier ones are no longer known."
    elif changes == 0:
        summary = "The job has had one plan, and it has not changed."
    else:
        summary = f"The plan changed {'once' if changes == 1 else f'{changes} times'} while the job ran."
    pairs = itertools.pairwise((None, *records))
    items = (_record(before, record) for before, record in pairs if record is not None)
    return section("What changed, and why", summary, element("ol", *items, class_="changes"))


def _record(before: PlanRecord | None, record: PlanRecord) -> Markup:
    figures = [
        f"predicted {format_rate(record.predicted)}" if record.predicted else "",
        f"measured {format_rate(record.measured)}" if record.measured else "",
        f"{format_money(record.cost_per_hour)} per hour" if record.cost_per_hour is not None else "",
    ]
    change = None
    if before is not None and before.summary != record.summary:
        change = element("p", "from ", element("code", before.summary), " to ", element("code", record.summary))
    elif record.summary:
        change = element("p", element("code", record.summary))
    return element(
        "li",
        element("h3", f"Plan {record.revision}: {_WORDS.get(record.reason, record.reason)}"),
        element("p", element("small", format_time(record.time))),
        element("p", record.message) if record.message else None,
        change,
        element("p", element("small", ", ".join(text for text in figures if text))),
    )
