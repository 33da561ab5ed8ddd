"""The prices of all pools: read where their specs say, remembered with the moments from which they are in force.

A ConfigMap is read once for all pools that name it. Reading fails without consequences: the last price stays in force.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import config_map_path
from heterps_operator.kubernetes.reading.prices import PoolPrice, Quote, price_source, read_quote
from heterps_operator.state.prices import PriceHistory, PriceStep, followed_by

__all__ = ["PriceBook", "PriceReader"]

_PERIOD_SECONDS = 10.0  # between two readings of a ConfigMap


class PriceBook:
    """Prices in force, and those before. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histories: dict[str, PriceHistory] = {}
        self._quotes: dict[str, Quote] = {}

    def begin(self, pool: str, price: Decimal, since: float) -> None:
        """Take over the price that an earlier operator has found, if none is known here."""
        with self._lock:
            self._histories.setdefault(pool, (PriceStep(price, since),))

    def note(self, pool: str, quote: Quote, base: Decimal, now: float) -> None:
        """Take a quote; without a price, the last one stays in force.

        Args:
            pool: name of the pool.
            quote: what was read.
            base: price of the spec, which is in force if there was never another.
            now: Unix seconds.
        """
        with self._lock:
            known = self._histories.get(pool, ())
            if quote.price is not None or not known:
                known = followed_by(known, base if quote.price is None else quote.price, now)
            self._histories[pool], self._quotes[pool] = known, quote

    def get(self, pool: str) -> PoolPrice | None:
        """Return the price of a pool; None: it was not read yet."""
        with self._lock:
            quote, history = self._quotes.get(pool), self._histories.get(pool)
            return None if quote is None or not history else PoolPrice(history[-1].price, history[-1].since, quote)

    def histories(self, pools: Iterable[str]) -> dict[str, PriceHistory]:
        """Return the prices of these pools, without those that are unknown."""
        with self._lock:
            return {pool: self._histories[pool] for pool in pools if pool in self._quotes}

    def keep_only(self, pools: Iterable[str]) -> None:
        """Forget all other pools."""
        names = set(pools)
        with self._lock:
            for known in (self._histories, self._quotes):
                for gone in known.keys() - names:
                    del known[gone]


class PriceReader:
    """Reads the prices of pools into the book.

    Args:
        api: API server of the cluster.
        namespace: of the operator, where the ConfigMaps are.
        book: receives the prices.
        clock: Unix seconds.
        monotonic: seconds, for the time between two readings.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        book: PriceBook,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._book = book
        self._clock = clock
        self._monotonic = monotonic
        self._configs: dict[str, tuple[float, Any, str]] = {}  # by name: when read, the ConfigMap, why it was refused

    def read(self, pool: Json) -> None:
        """Read the price of a pool."""
        name, spec = str(pool["metadata"]["name"]), pool["spec"]
        if self._book.get(name) is None and (found := _of_status(pool.get("status"))) is not None:
            self._book.begin(name, *found)
        source = price_source(spec)
        config, refusal = (None, "") if source is None else self._config(source[0])
        quote = read_quote(spec, config, self._clock(), refusal=refusal)
        self._book.note(name, quote, Decimal(str(spec["pricePerUnitHour"])), self._clock())

    def _config(self, name: str) -> tuple[Any, str]:
        """Return a ConfigMap, read a moment ago at most; and why it cannot be read."""
        now = self._monotonic()
        known = self._configs.get(name)
        if known is not None and now - known[0] < _PERIOD_SECONDS:
            return known[1], known[2]
        found, refusal = None, ""
        try:
            found = self._api.get(config_map_path(self._namespace, name))
        except ApiError as error:
            if error.temporary and known is not None:
                found, refusal = known[1:]
            elif error.code == HTTPStatus.FORBIDDEN:
                refusal = f"the operator has no right to; list {name} in prices.configMaps of the chart's values"
            else:
                refusal = f"{error}; it is tried again"
        self._configs[name] = now, found, refusal
        return found, refusal


def _of_status(status: Any) -> tuple[Decimal, float] | None:
    """Return price and time that an earlier operator wrote; None: there is none that can be read."""
    try:
        price = Decimal(status["pricePerUnitHour"])
        since = datetime.fromisoformat(status["priceSince"]).timestamp()
    except (KeyError, TypeError, ValueError, InvalidOperation, OverflowError):
        return None
    return (price, since) if price.is_finite() and price > 0 else None
