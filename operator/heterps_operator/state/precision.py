"""The precision that the planner has chosen for a job (`training.precision: Auto`), and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heterps_operator.documents import Json, known_fields
from heterps_operator.formatting import format_money, format_rate

__all__ = ["ChosenPrecision", "PrecisionCandidate"]


@dataclass(frozen=True)
class PrecisionCandidate:
    """The cheapest plan in one of the allowed precisions when the job was planned."""

    name: str
    throughput: float | None = None  # samples per second, predicted; None, as the next two: there was no plan
    cost_per_hour: float | None = None  # dollars
    cost: float | None = None  # dollars for all samples
    message: str = ""  # why there was no plan

    def describe(self) -> str:
        """The candidate in a few words: `bf16 costs $0.42 (52,000 samples/s at $2.54/h)`."""
        if self.throughput is None or self.cost_per_hour is None or self.cost is None:
            return f"{self.name} has no plan ({self.message})"
        figures = f"{format_rate(self.throughput)} at {format_money(self.cost_per_hour)}/h"
        return f"{self.name} costs {format_money(self.cost)} ({figures})"


@dataclass(frozen=True)
class ChosenPrecision:
    """The precision of a job, with those that it was compared with."""

    name: str
    candidates: tuple[PrecisionCandidate, ...] = ()  # the most exact first

    def describe(self) -> str:
        """The choice in one line, with the figures of each precision."""
        return f"{self.name} is the choice: {'; '.join(one.describe() for one in self.candidates)}"

    @classmethod
    def of_plan(cls, plan: Json) -> ChosenPrecision | None:
        """Read the choice from a plan file; None: the precision was not the planner's to choose.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        if "precision" not in plan:
            return None
        return cls(
            str(plan["precision"]),
            tuple(
                PrecisionCandidate(
                    str(one["name"]),
                    _number(one.get("throughput")),
                    _number(one.get("costPerHour")),
                    _number(one.get("cost")),
                    str(one.get("message", "")),
                )
                for one in plan["precisions"]
            ),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ChosenPrecision:
        """Read what `dataclasses.asdict` wrote of this or another version."""
        known = known_fields(cls, value)
        found = known.get("candidates") or ()
        return cls(
            **{
                **known,
                "candidates": tuple(PrecisionCandidate(**known_fields(PrecisionCandidate, one)) for one in found),
            }
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
