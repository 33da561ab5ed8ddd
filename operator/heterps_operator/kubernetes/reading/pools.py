"""Capacity and limits of DevicePools. Pure.

A pool's capacity comes from the nodes that its pods can run on, minus requests of other HeterPS pods there, and minus
devices that claims of any pod have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.documents import Json
from heterps_operator.formatting import format_time
from heterps_operator.kubernetes.reading.claims import ORPHANED, Claimed, device_resource
from heterps_operator.kubernetes.reading.devices import Offer, PoolDevices
from heterps_operator.kubernetes.reading.prices import PRICE_CURRENT, PoolPrice
from heterps_operator.kubernetes.reading.taints import untolerated

__all__ = [
    "Capacity",
    "declared_capacity",
    "in_pool",
    "namespace_limits",
    "pool_capacity",
    "pool_limit",
    "pool_status",
    "pools_apart",
    "unit_resource",
]

_DEFAULT_RESOURCES = {"CPU": "cpu", "GPU": "nvidia.com/gpu"}
_NODES_NAMED = 3  # nodes named in one message


# --- nodes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Capacity:
    """Capacity of a pool's nodes."""

    units: int = 0  # on nodes that take pods now; whole pods per node
    taken: int = 0  # units lost to other pods: coordinators, workers of another pool, claims of anyone
    orphaned: int = 0  # units of pods whose jobs were gone before the operator started; not in `units`
    ready: tuple[str, ...] = ()  # names of those nodes
    not_ready: tuple[str, ...] = ()
    cordoned: tuple[str, ...] = ()
    tainted: tuple[str, ...] = ()  # `NODE (KEY=VALUE:EFFECT)`: a taint that the pool does not tolerate
    without_resource: tuple[str, ...] = ()  # match nodeSelector, but have no unit
    notes: tuple[str, ...] = ()  # devices that do not count, and why
    problem: tuple[str, str] | None = None  # why devices cannot be counted: reason and message

    @property
    def matching(self) -> int:
        """Number of nodes that match nodeSelector and have the resource, in any state."""
        return len(self.ready) + len(self.not_ready) + len(self.cordoned) + len(self.tainted)


def pool_capacity(
    pool: Json, nodes: Iterable[Json], claimed: Claimed | None = None, devices: PoolDevices | None = None
) -> Capacity:
    """Count the units of a pool.

    A node holds whole pods only: 3.92 cores are three units, or two with `unitsPerPod: 2`.

    Args:
        pool: a DevicePool.
        nodes: all nodes of the cluster.
        claimed: requests of HeterPS pods on them.
        devices: what they offer a pool of a DeviceClass; others need none.
    """
    spec, pool_name = pool["spec"], str(pool["metadata"]["name"])
    resource, per_pod = unit_resource(spec), int(spec.get("unitsPerPod") or 1)
    groups: dict[str, list[str]] = {}
    units = taken = orphaned = 0
    for node in sorted(nodes, key=lambda n: str(n["metadata"]["name"])):
        if not in_pool(node, spec):
            continue
        name = str(node["metadata"]["name"])
        if devices is None:
            offer = _offer(node, resource, pool_name, (claimed or {}).get(name, {}))
        else:
            offer = devices.offers.get(name, Offer(0, 0, installed=False))
        orphaned += offer.orphaned
        ready, cordoned = _is_ready(node.get("status") or {}), bool((node.get("spec") or {}).get("unschedulable"))
        taint = untolerated(node, spec.get("tolerations") or ())
        if offer.whole == 0 and (ready or not offer.installed):
            if spec.get("nodeSelector"):  # without nodeSelector, a node without the resource is simply not in the pool
                groups.setdefault("without_resource", []).append(name)
        elif not ready:
            groups.setdefault("not_ready", []).append(name)
        elif cordoned:
            groups.setdefault("cordoned", []).append(name)
        elif taint is not None:
            groups.setdefault("tainted", []).append(f"{name} ({taint})")
        else:
            groups.setdefault("ready", []).append(name)
            units += offer.left // per_pod * per_pod
            taken += offer.whole // per_pod * per_pod - offer.left // per_pod * per_pod
    notes, problem = (devices.notes, devices.problem) if devices is not None else ((), None)
    found = {group: tuple(names) for group, names in groups.items()}
    return Capacity(units, taken, orphaned, **found, notes=notes, problem=problem)


def in_pool(node: Json, spec: Json) -> bool:
    """Whether a node has the labels that a pool selects.

    Args:
        node: the node.
        spec: spec of the DevicePool.
    """
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())


def pools_apart(pools: Mapping[str, Json]) -> dict[str, frozenset[str]]:
    """Return for each pool those that share no node with it: both select by one label, with different values.

    Args:
        pools: DevicePools by name.
    """
    selectors = {name: dict(pool["spec"].get("nodeSelector") or {}) for name, pool in pools.items()}
    return {
        name: frozenset(
            other
            for other, theirs in selectors.items()
            if any(theirs.get(label, value) != value for label, value in selector.items())
        )
        for name, selector in selectors.items()
    }


def declared_capacity(pool: Json, orphaned: int) -> Capacity:
    """Return the capacity of a pool whose nodes the operator may not read: `maxUnits`, and no node.

    Args:
        pool: a DevicePool.
        orphaned: units of pods whose jobs were gone before the operator started.
    """
    return Capacity(int(pool["spec"]["maxUnits"]), orphaned=orphaned)


def pool_status(
    pool: Json, capacity: Capacity, allocated_units: int, price: PoolPrice, *, now: float
) -> dict[str, Any]:
    """Build the `status` of a DevicePool.

    Args:
        pool: pool from the API server; unchanged conditions keep their times.
        capacity: its `pool_capacity`.
        allocated_units: units that jobs hold.
        price: in force.
        now: current time, Unix seconds.
    """
    spec = pool["spec"]
    generation = int(pool["metadata"].get("generation") or 0)
    found = _found(capacity, spec)
    quote = price.quote
    priced = _condition(PRICE_CURRENT, quote.current, quote.reason, _in_force(price))
    conditions = (found, _ready(capacity, spec, allocated_units, found), priced)
    known = {c["type"]: c for c in (pool.get("status") or {}).get("conditions") or ()}
    return {
        "observedGeneration": generation,
        "nodes": len(capacity.ready),
        "capacityUnits": capacity.units,
        "allocatedUnits": allocated_units,
        "pricePerUnitHour": str(price.price),
        "priceSince": format_time(price.since),
        "conditions": [_dated(condition, known.get(condition["type"]), generation, now) for condition in conditions],
    }


def pool_limit(pool: Json, capacity: Capacity) -> int:
    """Return the units of a pool that all jobs together may hold.

    Args:
        pool: a DevicePool.
        capacity: its `pool_capacity`.
    """
    most = max(0, int(pool["spec"]["maxUnits"]) - capacity.orphaned)
    # Nodes of an autoscaled pool come when pods wait for them, so what is there now is no limit.
    return most if pool["spec"].get("autoscaled") else min(most, capacity.units)


def namespace_limits(pool: Json) -> dict[str, int | None] | None:
    """Return the units of a pool that the jobs of each namespace may hold together.

    Args:
        pool: a DevicePool.

    Returns:
        By namespace; None: only the limit of the pool. A namespace that is absent may not use the pool. None instead of
        all: every namespace may, without a limit of its own.
    """
    entries = pool["spec"].get("namespaces")
    return None if entries is None else {str(entry["name"]): entry.get("maxUnits") for entry in entries}


def _found(capacity: Capacity, spec: Json) -> dict[str, str]:
    if capacity.problem is not None:
        return _condition("NodesFound", False, *capacity.problem)
    if capacity.matching:
        return _condition("NodesFound", True, "NodesMatch", f"{_count(capacity.matching, 'node')} of the pool")
    selector = ", ".join(f"{key}={value}" for key, value in sorted((spec.get("nodeSelector") or {}).items()))
    device_class = spec.get("deviceClassName")
    offered = f"device of DeviceClass {device_class}" if device_class else unit_resource(spec)
    if capacity.without_resource:
        program, name = ("DRA driver", "deviceClassName") if device_class else ("device plugin", "resourceName")
        nodes = _names(capacity.without_resource)
        text = f"the nodes with {selector} ({nodes}) offer no {offered}; install its {program}"
        text = f"{text}, or correct spec.{name} or spec.nodeSelector"
        return _condition("NodesFound", False, "NoResource", "; ".join([text, *capacity.notes]))
    which = f"with the labels {selector}" if selector else f"that offers {'a ' if device_class else ''}{offered}"
    text = f"no node {which}; label nodes, add some, or correct spec.nodeSelector"
    return _condition("NodesFound", False, "NoNodes", "; ".join([text, *capacity.notes]))


def _ready(capacity: Capacity, spec: Json, allocated: int, found: dict[str, str]) -> dict[str, str]:
    limit = int(spec["maxUnits"])
    away = "; ".join(
        f"{what}: {_names(names)}"
        for what, names in (
            ("not ready", capacity.not_ready),
            ("cordoned", capacity.cordoned),
            ("with a taint that the pool does not tolerate", capacity.tainted),
        )
        if names
    )
    if found["status"] == "False":
        return _condition("Ready", False, found["reason"], found["message"])
    if not capacity.ready:
        reason = "NodesNotReady" if capacity.not_ready or capacity.cordoned else "TaintsNotTolerated"
        return _condition("Ready", False, reason, f"no node of the pool takes pods; {away}")
    text = f"{_count(len(capacity.ready), 'node')} with {_count(capacity.units, 'unit')}"
    if capacity.taken:
        users = "claims of other pods" if spec.get("deviceClassName") else "other HeterPS pods, such as coordinators"
        text += f" besides {capacity.taken} in use by {users}"
    if away:
        text += f"; {away}"
    if capacity.orphaned:
        text += f"; {_count(capacity.orphaned, 'unit')} belong to pods whose jobs are gone, until they end"
    text = "; ".join([text, *capacity.notes])
    if allocated > min(limit, capacity.units):
        have = f"jobs hold {allocated} units, the limit is {limit} and the nodes have {capacity.units}"
        return _condition("Ready", False, "Shrunk", f"{have}; nothing new starts until jobs release units; {text}")
    if not capacity.units and capacity.taken:
        return _condition("Ready", False, "UnitsInUse", f"other pods use all units of the pool; {text}")
    if not capacity.units:
        per_pod = int(spec.get("unitsPerPod") or 1)
        text = f"no node has the {per_pod} units of one pod; lower spec.unitsPerPod, or add larger nodes; {text}"
        return _condition("Ready", False, "NodesTooSmall", text)
    return _condition("Ready", True, "NodesReady", text)


def _in_force(price: PoolPrice) -> str:
    return price.quote.message if price.quote.current else f"{price.quote.message}; ${price.price} stays in force"


def _condition(kind: str, status: bool, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": str(status), "reason": reason, "message": message}


def _dated(condition: dict[str, str], before: Json | None, generation: int, now: float) -> dict[str, Any]:
    since = format_time(now)
    if before is not None and before["status"] == condition["status"]:
        since = str(before.get("lastTransitionTime") or since)
    return {**condition, "lastTransitionTime": since, "observedGeneration": generation}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NODES_NAMED
    return ", ".join(names[:_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def unit_resource(spec: Json) -> str:
    """Return the resource of one unit of a pool; of a DeviceClass, the name that Kubernetes gives it as a resource.

    Args:
        spec: spec of the DevicePool.
    """
    if device_class := spec.get("deviceClassName"):
        return device_resource(str(device_class))
    return str(spec.get("resourceName") or _DEFAULT_RESOURCES[spec["deviceType"]])


def _offer(node: Json, resource: str, pool: str, amounts: Mapping[tuple[str, str], Decimal]) -> Offer:
    """Return what a node offers of a resource in `status.allocatable`, beside the requests of other pods."""
    status = node.get("status") or {}
    allocatable = (status.get("allocatable") or {}).get(resource)
    whole = _whole_units(allocatable)
    others = sum(amount for (what, of), amount in amounts.items() if what == resource and of != pool)
    left = max(0, _whole_units(allocatable, others)) if others else whole
    orphaned = min(whole, int(amounts.get((resource, ORPHANED), 0)))
    return Offer(whole, left, orphaned, whole > 0 or _whole_units((status.get("capacity") or {}).get(resource)) > 0)


def _whole_units(quantity: object, others: Decimal | int = 0) -> int:
    return 0 if quantity is None else int(parse_quantity(str(quantity)) - others)


def _is_ready(status: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
