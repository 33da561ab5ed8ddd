"""How the job stands: its conditions, and why it failed if it did."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_operator.documents import Json
from heterps_operator.formatting import format_time
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, data_table, element

__all__ = ["failure_section", "state_section"]


def failure_section(failure: Json | None) -> Markup | None:
    """Build the section that says why a job failed; None if it did not.

    Args:
        failure: from `Failure.to_json`.
    """
    if failure is None:
        return None
    lines = "\n".join(str(line) for line in failure["lastLines"])
    last = element("p", f"The last lines of {failure['member']}:") if lines else None
    return section(
        "Why it failed",
        None,
        element("p", f"{failure['reason']}: {failure['message']}", class_="alert"),
        last,
        element("pre", lines) if lines else None,
    )


def state_section(conditions: Sequence[Json]) -> Markup | None:
    """Build the section of the job's conditions; None if none is known.

    Args:
        conditions: from `Condition.to_json`.
    """
    rows = [
        (
            str(each["type"]),
            str(each["status"]),
            format_time(each["lastTransitionTime"]),
            f"{each['reason']}: {each['message']}" if each["message"] else str(each["reason"]),
        )
        for each in conditions
        if each["status"] != "Unknown"
    ]
    if not rows:
        return None
    table = data_table("Conditions of the job", ("condition", "status", "since", "reason"), rows)
    return section("State", "What the controller says about the job, as in its status.", table)
