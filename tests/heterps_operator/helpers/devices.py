"""DeviceClasses, ResourceSlices and ResourceClaims, as an API server returns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heterps_operator.kubernetes.names import claim_template_name
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import owner
from tests.heterps_operator.helpers.nodes import make_node, make_pool

Json = dict[str, Any]

DRIVER = CLASS = "gpu.example.com"
CARD = {"card": "x"}  # label of the nodes of `card_pool`
PROCESS = ProcessSpec("worker-0-0", Role.WORKER, "card", 1, stage=0, index=0)


def card_pool(name: str = "card", **spec: Any) -> Json:
    """A DevicePool of the DeviceClass."""
    pool = make_pool(deviceType="GPU", deviceClassName=CLASS, nodeSelector=CARD, **spec)
    del pool["spec"]["resourceName"]
    return {**pool, "metadata": {**pool["metadata"], "name": name}}


def card_node(name: str, **options: Any) -> Json:
    """A node of `card_pool`."""
    return make_node(name, labels=CARD, **options)


def make_class(*expressions: str, name: str = CLASS) -> Json:
    selectors = [{"cel": {"expression": text}} for text in expressions or (f'device.driver == "{DRIVER}"',)]
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"selectors": selectors}}


def make_device(name: str, model: str = "x", **fields: Any) -> Json:
    return {"name": name, "attributes": {"model": {"string": model}, "uuid": {"string": name}}, **fields}


def make_slice(node: str, devices: Iterable[Json], *, generation: int = 1, number: int = 0, **spec: Any) -> Json:
    """The devices of a driver on a node; `spec` replaces fields, None removes one."""
    pool = {"name": node or "network", "generation": generation, "resourceSliceCount": 1}
    fields = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices), **spec}
    name = f"{node or 'network'}-{generation}-{number}"
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def make_claim(pod: str, node: str, *devices: str, namespace: str = "ml", **result: Any) -> Json:
    """The claim of a pod, by its uid, with devices of a node; without any it is not allocated yet."""
    metadata: Json = {"name": f"{pod or 'shared'}-claim", "namespace": namespace, "uid": f"uid-claim-{pod}"}
    if pod:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": True, "blockOwnerDeletion": True}
        ]
    results = [{"request": "unit", "driver": DRIVER, "pool": node, "device": name, **result} for name in devices]
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}} if devices else {}}


def claiming_pod(name: str, job: str = "a", pool: str = "card", claims: int = 1, node: str = "") -> Json:
    """A pod of a job that claims units of a pool; its uid is its name."""
    template = claim_template_name(job, pool, CLASS)
    process = ProcessSpec(PROCESS.name, PROCESS.role, pool, 1, stage=0, index=0)
    place = {"nodeName": node} if node else {}
    entries = [{"name": f"heterps-unit-{number}", "resourceClaimTemplateName": template} for number in range(claims)]
    return {
        "metadata": {
            "namespace": "ml", "name": name, "uid": name, "labels": {"heterps.io/job": job},
            "annotations": {"heterps.io/process": process_text(process)}, "ownerReferences": [owner(job)],
        },
        "spec": {"containers": [{"name": "heterps"}], "resourceClaims": entries, **place},
        "status": {"phase": "Running" if node else "Pending"},
    }  # fmt: skip
