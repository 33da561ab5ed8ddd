"""What the nodes offer pools with a DeviceClass, from the stores of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.documents import Json
from heterps_operator.kubernetes.reading.devices import (
    NO_DEVICE_API,
    ClassDevices,
    PoolDevices,
    class_devices,
    offers_of,
)
from heterps_operator.kubernetes.reading.pools import in_pool

__all__ = ["DeviceCounter"]

_NOT_READ = (
    "the operator does not read devices; install its Helm chart with dynamicResourceAllocation.enabled=true "
    "(heterps operator --dynamic-resource-allocation)"
)


class DeviceCounter:
    """Counts the devices of pools. Not thread-safe.

    Args:
        stores: what the operator has seen of devices; None: it does not read them.
    """

    def __init__(self, stores: DeviceStores | None) -> None:
        self._stores = stores
        # By pool: what its devices were found in, and these. Selectors cost more than claims, which change more often.
        self._found: dict[str, tuple[object, ClassDevices]] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of changes in the stores."""
        return () if self._stores is None else self._stores.versions

    def count(self, pool: Json, nodes: Iterable[Json], users: Mapping[str, tuple[str, int]]) -> PoolDevices | None:
        """Return what the nodes offer a pool; None if it has no DeviceClass.

        Args:
            pool: the DevicePool.
            nodes: all nodes of the cluster.
            users: see `offers_of`.
        """
        spec, stores = pool["spec"], self._stores
        device_class = str(spec.get("deviceClassName") or "")
        if not device_class:
            return None
        if stores is None:
            return PoolDevices(problem=("DevicesNotRead", _NOT_READ))
        if not stores.served:
            return PoolDevices(problem=("NoDeviceApi", NO_DEVICE_API))
        found = stores.classes.get("", device_class)
        if found is None:
            text = f"there is no DeviceClass {device_class}; install the DRA driver of the devices, or correct "
            return PoolDevices(problem=("NoDeviceClass", f"{text}spec.deviceClassName"))
        name = str(pool["metadata"]["name"])
        devices = self._devices(name, found, frozenset(str(n["metadata"]["name"]) for n in nodes if in_pool(n, spec)))
        return PoolDevices(offers_of(name, devices, stores.claims.all(), users), devices.notes)

    def _devices(self, pool: str, device_class: Json, nodes: frozenset[str]) -> ClassDevices:
        assert self._stores is not None
        of = (device_class, self._stores.slices.version, nodes)
        known = self._found.get(pool)
        if known is None or known[0] != of:
            known = self._found[pool] = of, class_devices(device_class, self._stores.slices.all(), nodes)
        return known[1]
