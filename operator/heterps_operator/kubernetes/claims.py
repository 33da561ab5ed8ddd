"""What HeterPS's own pods request of the nodes that they are on.

A pool is counted in units, but its nodes carry more than its units: coordinators, servers that share a core, workers of
a second pool that chooses the same nodes. What those request is not there for the pool.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from heterps_operator.kubernetes.names import process_of
from heterps_operator.quantity import parse_quantity
from heterps_operator.values import Json

__all__ = ["Claim", "Claimed", "Claims", "claim_of"]

Claimed = Mapping[str, Mapping[tuple[str, str], Decimal]]
"""Amounts by node, and there by resource and the pool whose units they are ("": no pool's)."""

_ENDED = frozenset({"Succeeded", "Failed"})
_CORES = "cpu"  # the only resource without a domain that can be a pool's


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod requests of its node.

    Attributes:
        node: its name.
        pool: the NodePool whose units the pod occupies; empty if it occupies none.
        requests: amounts of what can be a unit of a pool, by resource.
    """

    node: str
    pool: str
    requests: Mapping[str, Decimal]


def claim_of(pod: Json) -> Claim | None:
    """What a pod requests; None if it is on no node, has ended, or was not made by HeterPS."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in _ENDED:
        return None
    try:
        process = process_of(pod)
        requests = _requests(spec)
    except ValueError:
        return None
    pool = process.pool if process.pool and process.units else ""
    return Claim(sys.intern(str(spec["nodeName"])), pool, _shared(tuple(sorted(requests.items()))))


@functools.lru_cache(maxsize=1024)  # thousands of pods request the same
def _shared(requests: tuple[tuple[str, Decimal], ...]) -> Mapping[str, Decimal]:
    return MappingProxyType(dict(requests))


def _requests(spec: Json) -> dict[str, Decimal]:
    """As the scheduler counts: all containers with the sidecars, or the largest of what runs before them."""
    before = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") != "Always"]
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    found = _sum([*(spec.get("containers") or ()), *sidecars])
    for container in before:
        for resource, amount in _sum([container, *sidecars]).items():
            found[resource] = max(found.get(resource, Decimal(0)), amount)
    for resource, amount in (spec.get("overhead") or {}).items():
        if resource in found:
            found[resource] += parse_quantity(str(amount))
    return found


def _sum(containers: Iterable[Mapping[str, Any]]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for container in containers:
        for resource, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            if resource == _CORES or "/" in resource:
                found[resource] = found.get(resource, Decimal(0)) + parse_quantity(str(amount))
    return found


class Claims:
    """The claims of all pods, kept up to date pod by pod. Not thread-safe.

    Attributes:
        version: counts changes.
        version_beside: counts those of claims that are no pool's: they take units away from pools.
    """

    def __init__(self) -> None:
        self.version = self.version_beside = 0
        self._by_pod: dict[tuple[str, str], Claim] = {}
        self._by_node: dict[str, dict[tuple[str, str], Decimal]] = {}

    def note(self, pod: tuple[str, str], claim: Claim | None) -> None:
        """Take note of what a pod, by namespace and name, requests now; None: nothing any more."""
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
        if any(one is not None and not one.pool for one in (before, claim)):
            self.version_beside += 1

    def by_node(self) -> Claimed:
        """A copy of all sums."""
        return {node: dict(amounts) for node, amounts in self._by_node.items()}

    def _add(self, claim: Claim, sign: int) -> None:
        amounts = self._by_node.setdefault(claim.node, {})
        for resource, amount in claim.requests.items():
            place = (resource, claim.pool)
            amounts[place] = amounts.get(place, Decimal(0)) + sign * amount
            if not amounts[place]:
                del amounts[place]
        if not amounts:
            del self._by_node[claim.node]
