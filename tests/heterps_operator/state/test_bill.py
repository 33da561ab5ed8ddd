"""The bill is exactly the integral of price times units over the lifetime of processes."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.state.bill import Bill
from heterps_operator.state.prices import PriceStep, followed_by, periods
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.contract import Role

PRICES = {"cpu": (PriceStep(Decimal("0.04")),), "gpu": (PriceStep(Decimal("2.42")),)}


def view(pool: str | None, units: int, started: float, ended: float | None = None) -> ProcessView:
    return ProcessView(ProcessSpec("p", Role.WORKER, pool, units), started, ended)


def test_an_hour_of_three_units_costs_three_times_the_price() -> None:
    bill = Bill().accrue([view("gpu", 3, 0.0)], PRICES, 3600.0)
    assert bill.cost == Decimal("7.26")
    assert bill.lines[0].unit_hours == 3


def test_waiting_is_charged_and_the_coordinator_is_not() -> None:
    assert Bill().accrue([view(None, 0, 0.0)], PRICES, 3600.0).lines == ()


def test_a_process_is_charged_until_its_end_only() -> None:
    bill = Bill().accrue([view("cpu", 1, 0.0, ended=1800.0)], PRICES, 3600.0)
    assert bill.cost == Decimal("0.02")
    assert bill.accrue([view("cpu", 1, 0.0, ended=1800.0)], PRICES, 7200.0).cost == bill.cost


def test_a_clock_that_is_set_back_charges_nothing_twice() -> None:
    process = view("cpu", 1, 0.0)
    bill = Bill().accrue([process], PRICES, 3600.0).accrue([process], PRICES, 1800.0).accrue([process], PRICES, 3600.0)
    assert bill.cost == Decimal("0.04")


def test_a_price_that_changes_begins_a_new_line() -> None:
    process = view("cpu", 1, 0.0)
    bill = (
        Bill()
        .accrue([process], PRICES, 3600.0)
        .accrue([process], {"cpu": (PriceStep(Decimal("0.08"), 3600.0),)}, 7200.0)
    )
    assert [str(line.price_per_unit_hour) for line in bill.lines] == ["0.04", "0.08"]
    assert bill.cost == Decimal("0.12")


def test_a_price_that_changed_between_two_looks_is_charged_from_that_moment() -> None:
    steps = (PriceStep(Decimal("2"), 0.0), PriceStep(Decimal("5"), 600.0), PriceStep(Decimal("1"), 3000.0))
    bill = Bill().accrue([view("gpu", 2, 0.0)], {"gpu": steps}, 3600.0)
    assert {line.price_per_unit_hour: line.unit_microseconds / 1e6 for line in bill.lines} == {
        Decimal("1"): 1200, Decimal("2"): 1200, Decimal("5"): 4800,
    }  # fmt: skip
    assert bill.prices == {"gpu": Decimal("1")}


def test_a_change_that_the_operator_of_before_has_seen_is_not_forgotten() -> None:
    """The next operator knows the new price and its moment only; the bill knows what was charged before."""
    process = view("cpu", 1, 0.0)
    kept = Bill().accrue([process], PRICES, 1000.0).to_json()
    bill = Bill.from_json(json.loads(json.dumps(kept)))
    bill = bill.accrue([process], {"cpu": (PriceStep(Decimal("0.08"), 1500.0),)}, 2000.0)
    assert [(str(line.price_per_unit_hour), line.unit_microseconds) for line in bill.lines] == [
        ("0.04", 1_500_000_000), ("0.08", 500_000_000),
    ]  # fmt: skip


def test_a_clock_that_is_set_back_keeps_prices_in_order() -> None:
    history = followed_by((PriceStep(Decimal("1"), 100.0),), Decimal("2"), 50.0)
    assert [step.since for step in history] == [100.0, 100.0]
    assert list(periods(history, 0.0, 200.0)) == [(0.0, 100.0, Decimal("1")), (100.0, 200.0, Decimal("2"))]


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 5)), max_size=12),
    st.lists(st.floats(0, 1e5), max_size=12),
    st.integers(1, 9),
)
def test_prices_that_change_cost_the_same_however_often_one_looks(
    changes: list[tuple[float, int]], moments: list[float], units: int
) -> None:
    history: tuple[PriceStep, ...] = (PriceStep(Decimal(1), 0.0),)
    for moment, price in sorted(changes):
        history = followed_by(history, Decimal(price), moment)
    processes, often = [view("gpu", units, 10.0, ended=77_777.7)], Bill()
    for moment in sorted(moments):
        # What happens later is not known yet, and steps before the last look are forgotten.
        known = tuple(step for step in history if step.since <= moment)
        often = Bill.from_json(json.loads(json.dumps(often.accrue(processes, {"gpu": known}, moment).to_json())))
        history = (known[-1], *(step for step in history if step.since > moment))
    whole: tuple[PriceStep, ...] = (PriceStep(Decimal(1), 0.0),)
    for moment, price in sorted(changes):
        whole = followed_by(whole, Decimal(price), moment)
    assert often.accrue(processes, {"gpu": history}, 1e5).lines == Bill().accrue(processes, {"gpu": whole}, 1e5).lines


@given(st.lists(st.floats(0, 1e5), max_size=20), st.integers(1, 64))
def test_looking_often_costs_what_looking_once_costs(moments: list[float], units: int) -> None:
    processes = [view("gpu", units, 10.0), view("cpu", 1, 3.3, ended=77_777.7)]
    often = Bill()
    for moment in sorted(moments):
        # Saved and restored every time, as by restarts of the controller.
        often = Bill.from_json(json.loads(json.dumps(often.accrue(processes, PRICES, moment).to_json())))
    assert often.accrue(processes, PRICES, 1e5).lines == Bill().accrue(processes, PRICES, 1e5).lines


def test_a_document_that_is_no_bill_is_refused() -> None:
    with pytest.raises(ValueError, match="bill: missing or malformed"):
        Bill.from_json({"pools": [{"pool": "cpu"}], "billedUntil": None})


@pytest.mark.parametrize(
    "changes",
    [
        {"pricePerUnitHour": "Infinity"}, {"pricePerUnitHour": "NaN"}, {"pricePerUnitHour": "-1"},
        {"pricePerUnitHour": "1e999999"}, {"unitMicroseconds": -1}, {"unitMicroseconds": 10**30},
    ],
)  # fmt: skip
def test_a_bill_whose_sum_cannot_be_written_is_refused(changes: dict[str, Any]) -> None:
    line = {"pool": "cpu", "pricePerUnitHour": "0.04", "unitMicroseconds": 5}
    good = {"pools": [line], "billedUntil": 10.0, "prices": {"cpu": "0.04"}}
    assert Bill.from_json(good).to_json()["cost"] == "0.000000000"
    with pytest.raises(ValueError, match="bill: a"):
        Bill.from_json({**good, "pools": [{**line, **changes}]})
    with pytest.raises(ValueError, match="bill: a time"):
        Bill.from_json({**good, "billedUntil": math.inf})
    with pytest.raises(ValueError, match="bill: a price"):
        Bill.from_json({**good, "prices": {"cpu": "Infinity"}})
