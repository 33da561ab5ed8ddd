"""Prices of pools that change while jobs run: which price was in force when.

A price is in force from the moment at which the operator has read it. So two operators that follow each other, and the
bills of all jobs, agree on the moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["PriceHistory", "PriceStep", "followed_by", "periods"]

_MOST_STEPS = 500  # of one pool that are remembered


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A price, and when it came into force."""

    price: Decimal  # of one unit for one hour
    since: float = -math.inf  # Unix seconds


PriceHistory = tuple[PriceStep, ...]  # at least one step, the oldest first


def followed_by(history: PriceHistory, price: Decimal, now: float) -> PriceHistory:
    """Return the history with the price that is in force from now on."""
    if history and history[-1].price == price:
        return history
    since = now if not history else max(now, history[-1].since)  # a clock may be set back
    return (*history, PriceStep(price, since))[-_MOST_STEPS:]


def periods(
    history: Sequence[PriceStep], begin: float, end: float, before: Decimal | None = None
) -> Iterator[tuple[float, float, Decimal]]:
    """Cut a time into periods of one price.

    Args:
        history: at least one step.
        begin: Unix seconds.
        end: Unix seconds, after `begin`.
        before: price before the first step; None: that of the first step.

    Yields:
        Begin, end and price of each period, in order; adjacent, and none of them empty.
    """
    prices = [history[0].price if before is None else before, *(step.price for step in history)]
    ends = [*(step.since for step in history), math.inf]
    for price, until in zip(prices, ends, strict=True):
        until = min(until, end)
        if until > begin:
            yield begin, until, price
            begin = until
