"""The price of a pool from a ConfigMap: what is used, what is refused, and what the pool says."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.kubernetes.reading.pools import pool_capacity, pool_status
from heterps_operator.kubernetes.reading.prices import ANNOTATION_UPDATED, PoolPrice, price_source, read_quote
from tests.heterps_operator.helpers.documents import NOW
from tests.heterps_operator.helpers.nodes import condition, make_node, make_pool

FROM = {"configMapKeyRef": {"name": "heterps-prices", "key": "gpu"}}


def spec(**price_from: Any) -> dict[str, Any]:
    return {"pricePerUnitHour": "1.00", "priceFrom": {**FROM, **price_from}}


def config(value: Any, updated: Any = None) -> dict[str, Any]:
    return {"metadata": {"annotations": {ANNOTATION_UPDATED: updated}}, "data": {"gpu": value}}


def test_a_pool_without_a_reference_has_the_price_of_its_spec() -> None:
    quote = read_quote({"pricePerUnitHour": "0.04"}, None, NOW)
    assert (quote.price, quote.reason, quote.current) == (Decimal("0.04"), "InSpec", True)
    assert price_source({"pricePerUnitHour": "0.04"}) is None


@pytest.mark.parametrize("text", ["0.61", " 0.61\n", "0.610000000"])
def test_the_price_of_a_config_map_is_used(text: str) -> None:
    quote = read_quote(spec(), config(text), NOW)
    assert (quote.price, quote.reason, quote.current) == (Decimal("0.61"), "InConfigMap", True)
    assert price_source(spec()) == ("heterps-prices", "gpu")


@pytest.mark.parametrize(
    ("found", "reason", "says"),
    [
        (None, "PriceMissing", "there is no ConfigMap heterps-prices in the operator's namespace; create it, or"),
        ({}, "PriceMissing", "the ConfigMap heterps-prices has no key gpu"),
        ({"data": None}, "PriceMissing", "has no key gpu"),
        ({"data": {"gpu": 0.61}}, "PriceMissing", "has no key gpu"),
        (["0.61"], "PriceMissing", "has no key gpu"),
        (config(""), "PriceInvalid", "must be a price such as \"0.04\", is ''; correct it"),
        (config("cheap"), "PriceInvalid", "is 'cheap'"),
        (config("-0.61"), "PriceInvalid", "is '-0.61'"),
        (config("NaN"), "PriceInvalid", "is 'NaN'"),
        (config("1e-1"), "PriceInvalid", "is '1e-1'"),
        (config("٣"), "PriceInvalid", "is '٣'"),
        (config("1" * 5000), "PriceInvalid", f"is {'1' * 40!r}"),
        (config("0"), "PriceOutOfRange", "is $0, which is not within $0.02 to $10"),
        (config("61"), "PriceOutOfRange", "is $61, which is not within $0.02 to $10, a fiftieth to ten times"),
        (config("0.0061"), "PriceOutOfRange", "is $0.0061"),
    ],
)
def test_what_is_no_price_is_refused(found: Any, reason: str, says: str) -> None:
    quote = read_quote(spec(), found, NOW)
    assert (quote.price, quote.reason, quote.current) == (None, reason, False)
    assert says in quote.message


def test_a_config_map_that_may_not_be_read_is_told() -> None:
    quote = read_quote(spec(), None, NOW, refusal="the operator has no right to")
    assert (quote.price, quote.reason) == (None, "PriceUnreadable")
    assert quote.message == "key gpu of the ConfigMap heterps-prices cannot be read: the operator has no right to"


@pytest.mark.parametrize(
    ("updated", "says"),
    [
        ("2023-11-14T21:13:20Z", ""),  # 3600 s before NOW
        ("2023-11-14T22:13:20+01:00", ""),
        ("2023-11-14T21:13:19Z", "it was updated at 2023-11-14T21:13:19Z, more than 3600 s ago"),
        ("2023-11-14T22:20:00Z", "is no time in the past"),
        ("2023-11-14T22:13:20", "is no time in the past"),
        ("yesterday", "'yesterday' is no time in the past"),
        (None, "it does not say when it was updated"),
        (7, "it does not say when it was updated"),
    ],
)
def test_a_price_may_become_stale(updated: Any, says: str) -> None:
    quote = read_quote(spec(staleAfterSeconds=3600), config("0.61", updated), 1_700_000_000.0)
    assert quote.reason == ("PriceStale" if says else "InConfigMap")
    assert says in quote.message
    assert read_quote(spec(), config("0.61", updated), NOW).price == Decimal("0.61"), "only if it is asked for"


def test_the_pool_shows_the_price_in_force_and_why_it_is_not_a_current_one() -> None:
    pool = make_pool(priceFrom=FROM)
    capacity = pool_capacity(pool, [make_node("a")])
    price = PoolPrice(Decimal("0.02"), NOW - 60, read_quote(pool["spec"], config("x"), NOW))
    status = pool_status(pool, capacity, 0, price, now=NOW)
    assert (status["pricePerUnitHour"], status["priceSince"]) == ("0.02", "2023-11-14T22:12:20Z")
    told = condition(status, "PriceCurrent")
    assert (told["status"], told["reason"]) == ("False", "PriceInvalid")
    assert told["message"].endswith("correct it; $0.02 stays in force")
    assert condition(status, "Ready")["status"] == "True"
