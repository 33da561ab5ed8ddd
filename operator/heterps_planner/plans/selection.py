"""What the planner has chosen for a whole job, and the figures that decided (`scenarios.variants`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Candidate", "Selection"]


@dataclass(frozen=True)
class Candidate:
    """The cheapest plan of one name that a job may choose, a precision or a dense exchange (`scenarios.variants`)."""

    name: str
    throughput: float | None = None  # samples per second, predicted; None, as the next two: there is no plan
    cost_per_hour: float | None = None  # dollars
    cost: float | None = None  # dollars for all samples
    message: str = ""  # why there is no plan

    def to_json(self) -> dict[str, Any]:
        """The part of a plan file."""
        if self.cost is None:
            return {"name": self.name, "message": self.message}
        figures = {"throughput": self.throughput, "costPerHour": self.cost_per_hour, "cost": self.cost}
        return {"name": self.name, **figures}

    @classmethod
    def from_json(cls, part: Mapping[str, Any]) -> Candidate:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        return cls(
            str(part["name"]),
            _number(part.get("throughput")),
            _number(part.get("costPerHour")),
            _number(part.get("cost")),
            str(part.get("message", "")),
        )


@dataclass(frozen=True)
class Selection:
    """The name that was chosen for a job, with those that it was compared with."""

    name: str
    candidates: tuple[Candidate, ...] = ()  # in the order in which they are preferred at the same cost

    def to_json(self, key: str, several: str) -> dict[str, Any]:
        """The parts of a plan file, under these keys."""
        return {key: self.name, several: [one.to_json() for one in self.candidates]}

    @classmethod
    def of_plan(cls, document: Mapping[str, Any], key: str, several: str) -> Selection | None:
        """Read what `to_json` wrote; None: the planner had no choice.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        if key not in document:
            return None
        return cls(str(document[key]), tuple(Candidate.from_json(one) for one in document[several]))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
