"""The bill: the integral of price times units over the time that processes exist.

What a cloud charges for is existence, not computing: a worker that waits costs as much as one that works, and so do
profiling, starting and checkpointing. Time is kept in whole microseconds and prices as decimals, so the sum of the
lines is the total to the last digit however often it was saved, read back and continued.

`Bill.accrue` may be called at any moments: it charges the time since the last call (`billed_until`) that each process
existed in, so calling it twice charges nothing twice, and a restart of the controller goes on where the file ends. If a
price changes in between, each part is charged with the price that was in force then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from heterps_operator.state.prices import PriceHistory, periods
from heterps_operator.state.values import ProcessView

__all__ = ["Bill", "BillLine"]

_MICROSECONDS_PER_HOUR = Decimal(3_600_000_000)
_HIGHEST_PRICE = 10**12  # of a unit and hour
_LONGEST = 10**18  # microseconds of units: a million of them for 30,000 years; and seconds since 1970

TimeT = TypeVar("TimeT", int, float)


@dataclass(frozen=True)
class BillLine:
    """What one pool has cost."""

    pool: str
    price_per_unit_hour: Decimal
    unit_microseconds: int = 0  # sum over processes of units x time of existence

    @property
    def unit_hours(self) -> Decimal:
        """Units times hours."""
        return Decimal(self.unit_microseconds) / _MICROSECONDS_PER_HOUR

    @property
    def cost(self) -> Decimal:
        """The price of these unit-hours, in the currency of the prices."""
        return self.price_per_unit_hour * self.unit_microseconds / _MICROSECONDS_PER_HOUR


@dataclass(frozen=True)
class Bill:
    """One line per pool and price, and the moment up to which they are charged."""

    lines: tuple[BillLine, ...] = ()
    billed_until: float | None = None  # Unix seconds; None: nothing was charged yet
    prices: Mapping[str, Decimal] = field(default_factory=dict)  # by pool: in force at that moment

    @property
    def cost(self) -> Decimal:
        """Sum of the lines."""
        return sum((line.cost for line in self.lines), Decimal(0))

    def accrue(self, processes: Iterable[ProcessView], prices: Mapping[str, PriceHistory], now: float) -> Bill:
        """Charge the time up to `now`.

        Args:
            processes: those that run, and those that ended since the last call.
            prices: by pool. Before the first step of a history, the last price that was charged counts.
            now: Unix seconds; a clock that was set back charges nothing until it has caught up.

        Returns:
            The bill up to `now`.
        """
        since = self.billed_until
        charged = {(line.pool, line.price_per_unit_hour): line.unit_microseconds for line in self.lines}
        for process in processes:
            pool = process.spec.pool
            if pool is None or process.spec.units == 0:
                continue
            begin = process.started if since is None else max(process.started, since)
            end = now if process.ended is None else min(process.ended, now)
            if end <= begin:
                continue
            for first, last, price in periods(prices[pool], begin, end, self.prices.get(pool)):
                # Rounding the two ends, not their difference, lets adjacent intervals add up exactly.
                microseconds = (round(last * 1e6) - round(first * 1e6)) * process.spec.units
                charged[pool, price] = charged.get((pool, price), 0) + microseconds
        until = now if since is None else max(now, since)
        present = {pool: _price_at(history, until, self.prices.get(pool)) for pool, history in prices.items()}
        lines = tuple(BillLine(pool, price, time) for (pool, price), time in sorted(charged.items()))
        return Bill(lines, until, present)

    def to_json(self) -> dict[str, Any]:
        """The bill for reports and the state file; decimals as strings."""
        return {
            "cost": format_decimal(self.cost),
            "billedUntil": self.billed_until,
            "prices": {pool: str(price) for pool, price in sorted(self.prices.items())},
            "pools": [
                {
                    "pool": line.pool,
                    "pricePerUnitHour": str(line.price_per_unit_hour),
                    "unitHours": format_decimal(line.unit_hours),
                    "unitMicroseconds": line.unit_microseconds,
                    "cost": format_decimal(line.cost),
                }
                for line in self.lines
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Bill:
        """Read what `to_json` wrote.

        Raises:
            ValueError: the document is not a bill.
        """
        try:
            lines = tuple(
                BillLine(str(p["pool"]), _price(p["pricePerUnitHour"]), _time(int(p["unitMicroseconds"])))
                for p in value["pools"]
            )
            until = value["billedUntil"]
            prices = {str(pool): _price(price) for pool, price in (value.get("prices") or {}).items()}
            return cls(lines, None if until is None else _time(float(until)), prices)
        except (AttributeError, KeyError, TypeError, ArithmeticError) as error:
            raise ValueError(f"bill: missing or malformed {error}") from error


def _price(value: Any) -> Decimal:
    """A price that can be charged for any time: sums of others have no digits, or are no numbers."""
    price = Decimal(value)
    if not price.is_finite() or not 0 <= price <= _HIGHEST_PRICE:
        raise ValueError(f"bill: a price must be in 0 .. {_HIGHEST_PRICE}, is {price}")
    return price


def _time(value: TimeT) -> TimeT:
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"bill: a time must be in 0 .. {_LONGEST}, is {value}")
    return value


def _price_at(history: PriceHistory, moment: float, before: Decimal | None) -> Decimal:
    """The price in force at a moment; `before`: that before the first step, if it is known."""
    present = history[0].price if before is None else before
    for step in history:
        if step.since <= moment:
            present = step.price
    return present


def format_decimal(value: Decimal) -> str:
    """A decimal with nine places, without an exponent."""
    return f"{value:.9f}"
