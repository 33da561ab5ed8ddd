"""The stores of devices: DeviceClasses, ResourceSlices and ResourceClaims."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterps_operator.controller.stores.objects import ObjectStore
from heterps_operator.controller.stores.slimming import slim_claim, slim_class, slim_slice
from heterps_operator.kubernetes.reading.readable import CLAIM, DEVICE_CLASS, SLICE

__all__ = ["KINDS", "DeviceStores"]

KINDS = {DEVICE_CLASS: "deviceclasses", SLICE: "resourceslices", CLAIM: "resourceclaims"}  # with their plurals


@dataclass
class DeviceStores:
    """What the operator has last seen of devices.

    Attributes:
        classes: DeviceClasses.
        slices: ResourceSlices.
        claims: ResourceClaims of all namespaces.
        served: whether the cluster has the API.
    """

    classes: ObjectStore = field(default_factory=lambda: ObjectStore(slim_class))
    slices: ObjectStore = field(default_factory=lambda: ObjectStore(slim_slice))
    claims: ObjectStore = field(default_factory=lambda: ObjectStore(slim_claim))
    served: bool = False

    def of(self, kind: str) -> ObjectStore:
        """Return the store of a kind in `KINDS`."""
        return {DEVICE_CLASS: self.classes, SLICE: self.slices, CLAIM: self.claims}[kind]

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of changes so far."""
        return self.classes.version, self.slices.version, self.claims.version, int(self.served)
