"""The bill is exactly the integral of price times units over the lifetime of processes."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.state.bill import Bill
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.contract import Role

PRICES = {"cpu": Decimal("0.04"), "gpu": Decimal("2.42")}


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
    bill = Bill().accrue([process], PRICES, 3600.0).accrue([process], {"cpu": Decimal("0.08")}, 7200.0)
    assert [str(line.price_per_unit_hour) for line in bill.lines] == ["0.04", "0.08"]
    assert bill.cost == Decimal("0.12")


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
