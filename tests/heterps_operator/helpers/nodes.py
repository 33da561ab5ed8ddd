"""DevicePools, nodes, and pods on nodes, as an API server returns them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from heterps_operator.kubernetes.reading.pools import pool_capacity, pool_status
from heterps_operator.kubernetes.reading.prices import PoolPrice, read_quote
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.state.values import ProcessSpec
from tests.heterps_operator.helpers.documents import COORDINATOR, NOW, owner

Json = dict[str, Any]


def make_pool(**spec: Any) -> dict[str, Any]:
    base = {"deviceType": "CPU", "resourceName": "cpu", "unitsPerPod": 1, "maxUnits": 32, "pricePerUnitHour": "0.04"}
    return {"metadata": {"name": "cpu", "generation": 3}, "spec": base | spec}


def make_node(
    name: str,
    cpu: str = "4",
    *,
    ready: str = "True",
    cordoned: bool = False,
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    cards: str | None = None,
) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": "7Gi"} | ({"nvidia.com/gpu": cards} if cards else {})
    spec: dict[str, Any] = {"unschedulable": True} if cordoned else {}
    if taints:
        spec["taints"] = taints
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }


def pod_on(node: str, name: str, cpu: str, process: ProcessSpec = COORDINATOR, **spec: Any) -> Json:
    """Return a pod whose only container requests this number of cores."""
    return {
        "metadata": {
            "namespace": "ml", "name": name, "labels": {"heterps.io/job": "a"},
            "annotations": {"heterps.io/process": process_text(process)}, "ownerReferences": [owner("a")],
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}], **spec},
        "status": {"phase": "Running"},
    }  # fmt: skip


def price_of(pool: dict[str, Any]) -> PoolPrice:
    """The price of a pool's spec."""
    quote = read_quote(pool["spec"], None, NOW)
    return PoolPrice(Decimal(str(pool["spec"]["pricePerUnitHour"])), NOW, quote)


def status_of(pool: dict[str, Any], nodes: list[dict[str, Any]], held: int = 0, now: float = NOW) -> dict[str, Any]:
    return pool_status(pool, pool_capacity(pool, nodes), held, price_of(pool), now=now)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in status["conditions"] if c["type"] == kind)
    return found
