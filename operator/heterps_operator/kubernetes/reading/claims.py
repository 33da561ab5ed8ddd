"""Resources that pods with HeterPS's label request on their nodes.

A pool is counted in units, but its nodes run more than those: coordinators, servers that share a core, workers of a
second pool that selects the same nodes. The pool cannot use what those request. Only a pod's requests count, never its
own claims: labels and annotations are free, room on a node is not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import claim_template_name, job_owner
from heterps_operator.kubernetes.reading.processes import process_of

__all__ = [
    "ORPHANED",
    "Charge",
    "Claim",
    "Claimed",
    "Claims",
    "charge_of",
    "claim_of",
    "device_resource",
    "has_ended",
    "requests_of",
]

Claimed = Mapping[str, Mapping[tuple[str, str], Decimal]]
"""Amounts by node, then by resource and by the pool whose units they are ("": no pool; or `ORPHANED`)."""

ORPHANED = "?"  # not a valid pool name: pods of a job that was gone before the operator started
_ENDED = frozenset({"Succeeded", "Failed"})
_CLASS = "deviceclass.resource.kubernetes.io/"  # Kubernetes' prefix for a DeviceClass as a resource
_CORES = "cpu"  # the only resource without a domain that can be a pool's unit


@dataclass(frozen=True, slots=True)
class Charge:
    """Units of a pool that a pod of a job occupies."""

    pool: str
    resource: str  # resource of the pool
    units: int
    claimed: int  # units in its annotation


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests of one pod on its node.

    Attributes:
        node: name of the node.
        pool: the DevicePool whose units the pod occupies; empty if none; or `ORPHANED`.
        amounts: amounts of resources that can be units, by resource and pool as in `Claimed`.
    """

    node: str
    pool: str
    amounts: Mapping[tuple[str, str], Decimal]


def device_resource(device_class: str) -> str:
    """Return the name of a DeviceClass as a resource."""
    return f"{_CLASS}{device_class}"


def has_ended(pod: Json) -> bool:
    """Whether a pod no longer occupies anything; a terminating one still does."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def charge_of(pod: Json, resources: Mapping[str, str]) -> Charge | None:
    """Return the units that a pod of a job occupies: whole units requested of the pool in its annotation, or claims.

    Args:
        pod: pod from `PodStore`, with its `requests`.
        resources: resource of one unit, by pool.

    Returns:
        None if it has ended, names no existing pool, or has no valid annotation.
    """
    try:
        process = process_of(pod)
    except ValueError:
        return None
    if has_ended(pod) or process.pool is None or process.pool not in resources or not process.units:
        return None
    resource = resources[process.pool]
    if resource.startswith(_CLASS):
        units = _device_claims(pod, process.pool, resource.removeprefix(_CLASS))
    else:
        units = int(pod["requests"].get(resource, 0))
    return Charge(process.pool, resource, units, process.units)


def _device_claims(pod: Json, pool: str, device_class: str) -> int:
    """Count the claims of one device each that a pod of a job makes from the job's template for a pool."""
    owner = job_owner(pod)
    template = "" if owner is None else claim_template_name(owner[0], pool, device_class)
    entries = pod["spec"].get("resourceClaims") or ()
    return sum(entry.get("resourceClaimTemplateName") == template for entry in entries)


def claim_of(pod: Json, charge: Charge | None, *, orphaned: bool = False) -> Claim | None:
    """Return the requests of a pod on its node; None if it has no node, or has ended.

    Args:
        pod: pod from `PodStore`, with its `requests`.
        charge: the units that the ledger counts.
        orphaned: whether its job is unknown.
    """
    node = (pod.get("spec") or {}).get("nodeName")
    if not node or has_ended(pod):
        return None
    pool = ORPHANED if orphaned else charge.pool if charge is not None and charge.units else ""
    amounts: dict[tuple[str, str], Decimal] = {}
    for resource, amount in pod["requests"].items():
        rest = amount
        if orphaned:
            amounts[resource, ORPHANED], rest = amount, Decimal(0)
        elif charge is not None and resource == charge.resource and charge.units:
            amounts[resource, pool], rest = Decimal(charge.units), amount - charge.units
        if rest:
            amounts[resource, ""] = rest
    return Claim(sys.intern(str(node)), pool, _shared_amounts(tuple(sorted(amounts.items()))))


def requests_of(spec: Json) -> Mapping[str, Decimal]:
    """Return a pod's requests of resources that can be units, as the scheduler counts (`PodRequests` in Kubernetes).

    The maximum of all containers with the sidecars, and of each init container with the sidecars before it; pod-level
    requests replace that; the runtime's overhead is added.
    """
    found = _sum(spec.get("containers") or ())
    sidecars: dict[str, Decimal] = {}
    most: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        own = _sum([container])
        if container.get("restartPolicy") == "Always":
            _add(found, own)
            _add(sidecars, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)  # sidecars started earlier
        _raise(most, own)
    _raise(found, most)
    whole = _sum([spec])
    if _CORES in whole:  # pod-level requests cannot name devices
        found[_CORES] = whole[_CORES]
    _add(found, _countable(spec.get("overhead") or {}))
    return _shared(tuple(sorted(found.items())))


@functools.lru_cache(maxsize=1024)  # thousands of pods have the same requests
def _shared(requests: tuple[tuple[str, Decimal], ...]) -> Mapping[str, Decimal]:
    return MappingProxyType(dict(requests))


@functools.lru_cache(maxsize=1024)
def _shared_amounts(amounts: tuple[tuple[tuple[str, str], Decimal], ...]) -> Mapping[tuple[str, str], Decimal]:
    return MappingProxyType(dict(amounts))


def _sum(containers: Iterable[Mapping[str, Any]]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for container in containers:
        _add(found, _countable((container.get("resources") or {}).get("requests") or {}))
    return found


def _countable(amounts: Mapping[str, Any]) -> dict[str, Decimal]:
    return {
        resource: parse_quantity(str(amount))
        for resource, amount in amounts.items()
        if resource == _CORES or "/" in resource
    }


def _raise(most: dict[str, Decimal], others: Mapping[str, Decimal]) -> None:
    for resource, amount in others.items():
        most[resource] = max(most.get(resource, Decimal(0)), amount)


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, Decimal(0)) + amount


class Claims:
    """The claims of all pods, updated pod by pod. Not thread-safe.

    Attributes:
        version: number of changes.
        version_beside: number of changes of claims outside pools, which take units away from pools.
    """

    def __init__(self) -> None:
        self.version = self.version_beside = 0
        self._by_pod: dict[tuple[str, str], Claim] = {}
        self._by_node: dict[str, dict[tuple[str, str], Decimal]] = {}

    def note(self, pod: tuple[str, str], claim: Claim | None) -> None:
        """Record the current requests of a pod by namespace and name; None: no more requests."""
        before = self._by_pod.get(pod)
        if claim == before:
            return
        if before is not None:
            self._add(before, -1)
            del self._by_pod[pod]
        if claim is not None:
            self._add(claim, 1)
            self._by_pod[pod] = claim
        self.version += 1
        if any(one is not None and one.pool in ("", ORPHANED) for one in (before, claim)):
            self.version_beside += 1

    def by_node(self) -> Claimed:
        """Return a copy of all sums."""
        return {node: dict(amounts) for node, amounts in self._by_node.items()}

    def _add(self, claim: Claim, sign: int) -> None:
        amounts = self._by_node.setdefault(claim.node, {})
        for place, amount in claim.amounts.items():
            amounts[place] = amounts.get(place, Decimal(0)) + sign * amount
            if not amounts[place]:
                del amounts[place]
        if not amounts:
            del self._by_node[claim.node]
