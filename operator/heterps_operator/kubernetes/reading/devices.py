"""Devices of ResourceSlices as units of pools: dynamic resource allocation (resource.k8s.io). Pure.

Each unit is a whole device that the scheduler gives to one claim. Devices for which that is not sure do not count, so
that a pool rather has too few units than too many; the pool's status says which and why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import DEVICES_VERSION
from heterps_operator.kubernetes.reading.claims import ORPHANED
from heterps_operator.kubernetes.reading.selectors import SelectorError, Selectors

__all__ = ["NO_DEVICE_API", "ClassDevices", "DeviceId", "Offer", "PoolDevices", "class_devices", "offers_of"]

NO_DEVICE_API = (
    f"the cluster does not serve {DEVICES_VERSION}, which deviceClassName needs; use Kubernetes 1.34 or later, or name "
    "the resource of a device plugin (resourceName)"
)

DeviceId = tuple[str, str, str]
"""Driver, the driver's own pool, and name of a device."""

_KEEPS_CLAIMS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_NODES_NAMED = 3


@dataclass(frozen=True)
class Offer:
    """What a node offers a pool.

    Attributes:
        whole: units with nothing else on the node.
        left: units beside what others than the pool's jobs use.
        orphaned: units of pods whose jobs were gone before the operator started; not in `left`.
        installed: whether the node has units when it is healthy.
    """

    whole: int
    left: int
    orphaned: int = 0
    installed: bool = True


@dataclass(frozen=True)
class ClassDevices:
    """The devices of a DeviceClass.

    Attributes:
        by_node: those that count, by name of their node.
        notes: what does not count, and why.
    """

    by_node: Mapping[str, frozenset[DeviceId]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolDevices:
    """What the nodes offer a pool of a DeviceClass.

    Attributes:
        offers: by name of the node; others have no device.
        notes: what does not count, and why.
        problem: why there are no devices at all, as reason (CamelCase) and message; None if they could be counted.
    """

    offers: Mapping[str, Offer] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: tuple[str, str] | None = None


def class_devices(device_class: Json, slices: Iterable[Json], nodes: Collection[str]) -> ClassDevices:
    """Find the devices of a class on some nodes.

    Args:
        device_class: the DeviceClass.
        slices: all ResourceSlices of the cluster.
        nodes: names of the nodes.
    """
    name, selectors = str(device_class["metadata"]["name"]), Selectors(device_class["spec"].get("selectors") or ())
    by_node: dict[str, set[DeviceId]] = defaultdict(set)
    left_out: Counter[str] = Counter()
    failed: dict[str, str] = {}  # by node: the error
    for part in _current(slices):
        spec = part["spec"]
        node = str(spec.get("nodeName") or "")
        if node in failed or (node and node not in nodes):
            continue
        driver, pool = str(spec["driver"]), str(spec["pool"]["name"])
        for device in spec.get("devices") or ():
            try:
                if not selectors.select(driver, device):
                    continue
            except SelectorError as error:
                if node:
                    failed[node] = f"{device['name']} of {driver}: {error}"
                    break
                continue
            if reason := _left_out(node, device):
                left_out[reason] += 1
            else:
                by_node[node].add((driver, pool, str(device["name"])))
    notes = [f"{_count(number)} not counted: {reason}" for reason, number in sorted(left_out.items())]
    notes += _failures(name, failed)
    # The scheduler gives up a claim when a selector fails, whatever other devices the node has.
    return ClassDevices({node: frozenset(ids) for node, ids in by_node.items() if node not in failed}, tuple(notes))


def offers_of(
    pool: str, devices: ClassDevices, claims: Iterable[Json], users: Mapping[str, tuple[str, int]]
) -> dict[str, Offer]:
    """Return what each node offers a pool, beside the devices that others have.

    Args:
        pool: name of the DevicePool.
        devices: devices of its class.
        claims: all ResourceClaims of the cluster.
        users: pods with HeterPS's label that ask for devices, by uid: the pool whose units they occupy, or `ORPHANED`,
            and their number.
    """
    holders = {device: _pod_of(claim) for claim in claims for device in _allocated(claim)}
    own: Counter[str] = Counter()
    offers: dict[str, Offer] = {}
    for node, ids in devices.by_node.items():
        others = orphaned = 0
        for device in sorted(ids & holders.keys()):
            pod = holders[device]
            of, units = users.get(pod, ("", 0))
            if of == pool and own[pod] < units:
                own[pod] += 1  # the ledger counts it
                continue
            others += 1
            orphaned += of == ORPHANED
        offers[node] = Offer(len(ids), len(ids) - others, orphaned)
    return offers


def _pod_of(claim: Json) -> str:
    """Return the uid of the pod that a claim was made for; empty if it was made by hand, and any pod may share it."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((str(o.get("uid") or "") for o in owners if o.get("controller") is True and o.get("kind") == "Pod"), "")


def _allocated(claim: Json) -> Iterable[DeviceId]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if not result.get("adminAccess"):  # it watches a device that others use
            yield str(result["driver"]), str(result["pool"]), str(result["device"])


def _current(slices: Iterable[Json]) -> list[Json]:
    """Return the slices of the newest generation of each driver's pool, as seen from a node."""
    by_pool: dict[tuple[str, str, str], list[Json]] = {}
    for part in slices:
        spec = part["spec"]
        key = (str(spec.get("nodeName") or ""), str(spec["driver"]), str(spec["pool"]["name"]))
        known = by_pool.get(key)
        age = 0 if known is None else _generation(part) - _generation(known[0])
        if known is None or age > 0:
            by_pool[key] = [part]
        elif age == 0:
            known.append(part)
    return [part for parts in by_pool.values() for part in parts]


def _generation(part: Json) -> int:
    return int(part["spec"]["pool"].get("generation") or 0)


def _left_out(node: str, device: Json) -> str:
    """Return why a device of the class does not count; empty if it does."""
    if not node:
        return "their ResourceSlices name no node (spec.nodeName)"
    if device.get("consumesCounters"):
        return "parts of a device that can be divided"
    if device.get("allowMultipleAllocations"):
        return "several claims may share them"
    taints = [t for t in device.get("taints") or () if t.get("effect") in _KEEPS_CLAIMS_AWAY]
    if taints:
        return f"their driver has given them the taint {taints[0]['key']}:{taints[0]['effect']}"
    return ""


def _failures(name: str, failed: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node, reason in sorted(failed.items()):
        by_reason.setdefault(reason, []).append(node)
    return [
        f"a selector of DeviceClass {name} fails at device {reason}; nothing on {_names(nodes)} counts"
        for reason, nodes in by_reason.items()
    ][:_NODES_NAMED]


def _names(nodes: list[str]) -> str:
    more = len(nodes) - _NODES_NAMED
    return ", ".join(nodes[:_NODES_NAMED]) + (f" and {more} more nodes" if more > 0 else "")


def _count(number: int) -> str:
    return f"{number} device is" if number == 1 else f"{number} devices are"
