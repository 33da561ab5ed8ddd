"""The price of a DevicePool: from its spec, or from a ConfigMap that others keep current. Pure.

A ConfigMap may hold anything, and may be gone. What cannot be used never stops a job: the last price stays in force, or
the spec's if there was none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.formatting import format_time

__all__ = ["ANNOTATION_UPDATED", "PRICE_CURRENT", "PoolPrice", "Quote", "price_source", "read_quote"]

ANNOTATION_UPDATED = "heterps.io/updated"
PRICE_CURRENT = "PriceCurrent"
# In the spec's price: the range of what a spot market does. Beyond it, the units are wrong: cents, or a whole node.
_LEAST, _MOST = Decimal(1) / 50, Decimal(10)
_PRICE = re.compile(r"[0-9]{1,8}(\.[0-9]{1,9})?")
_SHOWN = 40  # characters of what a ConfigMap has instead of a price
_CLOCKS_DIFFER_SECONDS = 300.0


@dataclass(frozen=True)
class Quote:
    """A price that was read, or why there is none."""

    price: Decimal | None
    reason: str  # of the condition PriceCurrent
    message: str
    current: bool = True  # status of that condition


@dataclass(frozen=True)
class PoolPrice:
    """The price of a pool that is in force, and what was read last."""

    price: Decimal
    since: float  # Unix seconds
    quote: Quote


def price_source(spec: Json) -> tuple[str, str] | None:
    """Return the name and the key of the ConfigMap that has the price of a pool; None: the spec has it."""
    reference = (spec.get("priceFrom") or {}).get("configMapKeyRef")
    return None if reference is None else (str(reference["name"]), str(reference["key"]))


def read_quote(spec: Json, config: Any, now: float, *, refusal: str = "") -> Quote:
    """Read the present price of a pool.

    Args:
        spec: of the DevicePool.
        config: the ConfigMap that it names; None: there is none.
        now: Unix seconds.
        refusal: why the ConfigMap could not be read; empty: it could.
    """
    source, base = price_source(spec), Decimal(str(spec["pricePerUnitHour"]))
    if source is None:
        return Quote(base, "InSpec", f"spec.pricePerUnitHour is ${base}")
    name, key = source
    where = f"key {key} of the ConfigMap {name}"
    if refusal:
        return _unusable("PriceUnreadable", f"{where} cannot be read: {refusal}")
    data = config.get("data") if isinstance(config, Mapping) else None
    text = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        missing = f"there is no ConfigMap {name}" if config is None else f"the ConfigMap {name} has no key {key}"
        return _unusable("PriceMissing", f"{missing} in the operator's namespace; create it, or correct spec.priceFrom")
    text = text.strip()
    if not _PRICE.fullmatch(text):
        return _unusable("PriceInvalid", f'{where} must be a price such as "0.04", is {text[:_SHOWN]!r}; correct it')
    price = Decimal(text)
    if not base * _LEAST <= price <= base * _MOST:
        least, most = (base * _LEAST).normalize(), (base * _MOST).normalize()
        text = f"{where} is ${price}, which is not within ${least:f} to ${most:f}, a fiftieth to ten times "
        return _unusable("PriceOutOfRange", f"{text}spec.pricePerUnitHour; correct the one that is wrong")
    limit = spec["priceFrom"].get("staleAfterSeconds")
    if limit is not None and (why := _stale(config, now, float(limit))):
        return _unusable("PriceStale", f"{where}: {why}; let what writes it set the annotation {ANNOTATION_UPDATED}")
    return Quote(price, "InConfigMap", f"{where} is ${price}")


def _stale(config: Json, now: float, limit: float) -> str:
    """Why a price is too old; empty: it is not."""
    metadata = config.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(ANNOTATION_UPDATED) if isinstance(annotations, Mapping) else None
    if not isinstance(text, str):
        return "it does not say when it was updated"
    updated = _seconds(text)
    if updated is None or updated > now + _CLOCKS_DIFFER_SECONDS:
        return f"{text[:_SHOWN]!r} is no time in the past"
    if now - updated > limit:
        return f"it was updated at {format_time(updated)}, more than {limit:g} s ago"
    return ""


def _seconds(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time; None: it is none."""
    try:
        when = datetime.fromisoformat(text)
        return None if when.tzinfo is None else when.timestamp()
    except (OverflowError, ValueError):
        return None


def _unusable(reason: str, message: str) -> Quote:
    return Quote(None, reason, message, current=False)
