"""Prices of a market and a running job: what it is charged, and that it follows them, across operators."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from heterps_operator.kubernetes.reading.prices import Quote
from tests.heterps_operator.helpers.job_world import STATE
from tests.heterps_operator.helpers.life import Life

HOUR = 3_600_000_000


@pytest.fixture
def life(tmp_path: Path) -> Life:
    found = Life(tmp_path)
    found.edit(lambda job: job["spec"]["elasticity"].update(pricePolicy="Stay"))
    return found


def price(life: Life, pool: str, dollars: str) -> None:
    """Let the operator read a price now."""
    quote = Quote(Decimal(dollars), "InConfigMap", "")
    life.cluster.prices.note(pool, quote, Decimal("2.42"), life.now)


def turn(life: Life, seconds: float) -> None:
    life.now += seconds
    life.operator.turn()


def charged(life: Life, pool: str) -> dict[str, int]:
    """Seconds of one unit by price, from the stored bill."""
    bill = json.loads(life.server.objects[STATE]["data"]["bill.json"])
    return {
        line["pricePerUnitHour"]: line["unitMicroseconds"] // 10**6 for line in bill["pools"] if line["pool"] == pool
    }


def test_a_change_between_two_turns_is_charged_from_its_moment(life: Life) -> None:
    price(life, "accelerator", "2.00")
    life.train()
    turn(life, 20)
    before = charged(life, "accelerator")["2.00"]
    life.now += 5
    price(life, "accelerator", "0.50")
    life.now += 7
    price(life, "accelerator", "3.00")
    turn(life, 18)
    after = charged(life, "accelerator")
    assert (after["2.00"] - before, after["0.50"], after["3.00"]) == (5, 7, 18)
    shown = {pool["name"]: pool for pool in life.status["cost"]["pools"]}["accelerator"]
    assert [line["pricePerUnitHour"] for line in shown["prices"]] == ["0.50", "2.00", "3.00"]


def test_the_next_operator_charges_what_was_valid_before_it_came(life: Life) -> None:
    """It reads the present price and its moment from the pool's status; the bill has the price of before."""
    price(life, "accelerator", "2.00")
    life.train()
    turn(life, 20)
    before = charged(life, "accelerator")["2.00"]
    changed = life.now + 5
    life.replace_operator()
    life.now += 30
    life.cluster.prices.begin("accelerator", Decimal("0.50"), changed)
    price(life, "accelerator", "0.50")
    turn(life, 0)
    after = charged(life, "accelerator")
    assert (after["2.00"] - before, after["0.50"]) == (5, 25)


def test_a_job_that_follows_prices_stops_in_order_and_goes_on_with_the_other_plan(life: Life) -> None:
    life.edit(lambda job: job["spec"]["elasticity"].update(pricePolicy="Move", cooldownSeconds=10))
    life.follows_prices = True
    price(life, "accelerator", "0.10")
    price(life, "cpu", "0.04")
    coordinator = life.train()
    coordinator.total = 10**9
    turn(life, 1)
    price(life, "accelerator", "2.42")
    pods = life.pods()
    for _ in range(60):
        turn(life, 10)
        life.go_on()
        if life.status["plan"]["revision"] == 2:
            break
    else:
        raise AssertionError(life.status)
    assert life.status["plan"]["summary"] == "cpu x4 [embedding..head]"
    assert coordinator.phase == "Stopped", "in order: with a checkpoint"
    life.train()
    assert life.status["restarts"] == 0
    assert life.status["plan"]["reason"] == "Replanned"
    assert set(life.pods()) == {"coordinator", "ps-0", *(f"worker-0-{number}" for number in range(4))}
    assert pods.keys() != life.pods().keys()
