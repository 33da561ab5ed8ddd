"""A cheaper plan at the present prices, until the running job has moved to it or the prices have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heterps_operator.documents import Json

__all__ = ["Offer"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that would train the rest of the job for less.

    Attributes:
        plan: the plan file.
        prices: by pool, as decimals: the prices that it was made with.
        saves: dollars per sample less than the running plan.
        lasts: dollars per sample of the running plan.
        move_cost: dollars that the move itself costs.
    """

    plan: Json
    prices: Mapping[str, str] = field(default_factory=dict)
    saves: float = 0.0
    lasts: float = 0.0
    move_cost: float = 0.0
