"""What the planner has chosen for a job (`training.precision: Auto`, `training.denseExchange: Auto`), and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterps_operator.documents import known_fields
from heterps_operator.formatting import format_money, format_rate
from heterps_planner.plans.selection import Candidate, Selection

__all__ = ["describe_selection", "restore_selection"]


def describe_selection(selection: Selection) -> str:
    """The choice in one line, with the figures of each candidate.

    `bf16 is the choice: fp32 costs $0.62 (36,000 samples/s at $2.54/h); bf16 costs $0.42 (52,000 samples/s at $2.54/h)`
    """
    return f"{selection.name} is the choice: {'; '.join(map(_describe, selection.candidates))}"


def _describe(candidate: Candidate) -> str:
    if candidate.throughput is None or candidate.cost_per_hour is None or candidate.cost is None:
        return f"{candidate.name} has no plan ({candidate.message})"
    figures = f"{format_rate(candidate.throughput)} at {format_money(candidate.cost_per_hour)}/h"
    return f"{candidate.name} costs {format_money(candidate.cost)} ({figures})"


def restore_selection(value: Mapping[str, Any]) -> Selection:
    """Read what `dataclasses.asdict` wrote of this or another version."""
    known = known_fields(Selection, value)
    found = known.get("candidates") or ()
    return Selection(**{**known, "candidates": tuple(Candidate(**known_fields(Candidate, one)) for one in found)})
