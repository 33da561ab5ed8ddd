"""Limits, prices and status of the DevicePools, from their nodes, the pods on them, and where their prices are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from heterps_operator.controller.capacity.devices import DeviceCounter
from heterps_operator.controller.capacity.prices import PriceReader
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import object_path
from heterps_operator.kubernetes.reading.complaints import price_complaint
from heterps_operator.kubernetes.reading.pools import (
    Capacity,
    declared_capacity,
    namespace_limits,
    pool_capacity,
    pool_limit,
    pool_status,
)
from heterps_operator.kubernetes.reading.readable import POOL
from heterps_runtime.contract import API_VERSION

__all__ = ["PoolKeeper"]

_LOG = logging.getLogger("heterps.operator")
_PERIOD_SECONDS = 5.0  # between two updates of the status without a change of capacity: held units change silently
_GATHER_SECONDS = 0.5  # changes come in bursts


class PoolKeeper:
    """Keeps the ledger's limits and the status of all pools up to date.

    Args:
        cluster: the shared context.
        problems: receives pools that cannot be read.
        on_change: called when a limit has changed.

    Attributes:
        changed: set it when nodes, pools, the pods beside them or devices have changed.
    """

    def __init__(self, cluster: OperatorContext, problems: ProblemRecorder, on_change: Callable[[], None]) -> None:
        self.changed = threading.Event()
        self._refreshing = threading.Lock()  # the older of two counts must not replace the newer one
        self._cluster = cluster
        self._problems = problems
        self._on_change = on_change
        self._limits: tuple[dict[str, int], dict[str, dict[str, int | None]]] = ({}, {})  # of pools, and of namespaces
        self._capacities: dict[str, Capacity] = {}
        self._devices = DeviceCounter(cluster.devices)
        self._prices = PriceReader(cluster.api, cluster.namespace, cluster.prices, cluster.clock, cluster.monotonic)
        self._counted: tuple[int, ...] = ()  # versions of the stores that the capacities were counted from

    def run(self, stop: threading.Event) -> None:
        """Refresh limits and status until `stop` is set; set `changed` then, too."""
        while not stop.is_set():
            self.changed.wait(_PERIOD_SECONDS)
            self.changed.clear()
            if stop.wait(_GATHER_SECONDS):
                return
            self.refresh()
            self.read_prices()
            for pool in self._cluster.pools.all():
                try:
                    self._publish(pool)
                except ApiError as error:
                    name = str(pool["metadata"]["name"])
                    _LOG.warning("pool %s: %s", name, error, extra={"k8s_ref": {"kind": "DevicePool", "name": name}})
                except Exception as error:  # one pool must not hold up the others
                    self._problems.tell_unreadable(POOL, pool, error)

    def refresh(self) -> None:
        """Pass the pools' limits to the ledger, and tell if any has changed. Thread-safe."""
        with self._refreshing:
            changed = self._set_limits()
        if changed:
            self._on_change()

    def read_prices(self) -> None:
        """Read the prices that are due, and wake no one: a job looks at prices in each of its turns."""
        pools = self._cluster.pools.all()
        for pool in pools:
            try:
                self._prices.read(pool)
            except Exception as error:  # one pool must not hold up the others
                self._problems.tell_unreadable(POOL, pool, error)
        self._cluster.prices.keep_only(str(pool["metadata"]["name"]) for pool in pools)

    def _set_limits(self) -> bool:
        cluster = self._cluster
        pools = {str(pool["metadata"]["name"]): pool for pool in cluster.pools.all()}
        counted = (
            cluster.nodes.version, cluster.pools.version, cluster.pods.claims_version, *self._devices.versions
        )  # fmt: skip
        if cluster.pool_file is not None:
            orphaned = cluster.pods.orphaned()
            self._capacities = {name: declared_capacity(pool, orphaned.get(name, 0)) for name, pool in pools.items()}
            return self._pass_on(pools)
        capacities = self._capacities
        if counted != self._counted or pools.keys() != capacities.keys():  # thousands of nodes take a while
            nodes, claimed, users = cluster.nodes.all(), cluster.pods.claimed(), cluster.pods.device_users()
            capacities = {}
            for name, pool in pools.items():
                try:
                    devices = self._devices.count(pool, nodes, users)
                    capacities[name] = pool_capacity(pool, nodes, claimed, devices)
                except Exception as error:  # one pool must not hold up the others
                    self._problems.tell_unreadable(POOL, pool, error)
            self._capacities, self._counted = capacities, counted
        return self._pass_on(pools)

    def _pass_on(self, pools: Mapping[str, Json]) -> bool:
        """Pass limits to the ledger; return whether any has changed."""
        limits = {name: pool_limit(pools[name], capacity) for name, capacity in self._capacities.items()}
        namespaces = {name: allowed for name in limits if (allowed := namespace_limits(pools[name])) is not None}
        changed, self._limits = (limits, namespaces) != self._limits, (limits, namespaces)
        self._cluster.ledger.set_limits(limits, namespaces)
        return changed

    def _publish(self, pool: Json) -> None:
        """Write the status of a pool if it has changed."""
        name = str(pool["metadata"]["name"])
        capacity = self._capacities.get(name)
        if capacity is None:  # a new pool
            return
        price = self._cluster.prices.get(name)
        if price is None:
            return
        if complaint := price_complaint(price):
            self._problems.tell(POOL, pool, complaint)
        held = self._cluster.ledger.held(name)
        if self._cluster.pool_file is not None:  # there is no object for a status, and nothing is known of nodes
            units = {"capacityUnits": capacity.units, "allocatedUnits": held, "pricePerUnitHour": str(price.price)}
            self._cluster.metrics.update_pool(pool, units)
            return
        status = pool_status(pool, capacity, held, price, now=self._cluster.clock())
        self._cluster.metrics.update_pool(pool, status)
        if status == pool.get("status"):
            return
        body = {"apiVersion": API_VERSION, "kind": "DevicePool", "metadata": {"name": name}, "status": status}
        self._cluster.pools.put_answer(self._cluster.api.apply(f"{object_path(body)}/status", body), pool)
