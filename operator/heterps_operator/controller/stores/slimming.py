"""The parts of objects that the operator keeps in memory: there are thousands of pods."""

from __future__ import annotations

import sys
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import job_owner
from heterps_operator.kubernetes.reading.claims import requests_of
from heterps_runtime.contract import API_GROUP

__all__ = ["slim_claim", "slim_class", "slim_job", "slim_node", "slim_pod", "slim_slice"]

_POD_METADATA = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_POD_LABELS = (f"{API_GROUP}/", "kueue.x-k8s.io/")
_POD_ANNOTATIONS = (f"{API_GROUP}/",)
_POD_SPEC = ("nodeName", "nodeSelector", "resourceClaims", "schedulerName", "schedulingGates")
_POD_STATUS = (
    "phase",
    "podIP",
    "reason",
    "message",
    "startTime",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
)
# Kubernetes gives every pod these, and no decision depends on them.
_USUAL_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_STRANGER_SPEC, _STRANGER_STATUS = ("nodeName",), ("phase",)
_OWNER = ("apiVersion", "kind", "name", "uid", "controller")
_RESULT = ("driver", "pool", "device", "adminAccess")
_LONGEST_SHARED = 64  # characters of strings that are kept once: names, times, reasons


def slim_job(job: Json) -> Json:
    """Return the fields of a job that its users set. The status is the operator's own."""
    metadata = {key: value for key, value in job["metadata"].items() if key not in ("managedFields", "resourceVersion")}
    kept = {"apiVersion": job.get("apiVersion"), "kind": job.get("kind"), "metadata": metadata, "spec": job["spec"]}
    found: Json = _shared(kept)
    return found


def slim_pod(pod: Json) -> Json:
    """Return the fields of a pod that the operator reads, and its `requests`, as the scheduler counts them.

    Of a pod that no job owns, only its node, its phase and its requests are kept.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: metadata[key] for key in _POD_METADATA if metadata.get(key) is not None}
    kept["ownerReferences"] = [
        {key: owner[key] for key in _OWNER if key in owner}
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller") is True
    ]
    owned = job_owner(pod) is not None
    for key, prefixes in (("labels", _POD_LABELS), ("annotations", _POD_ANNOTATIONS)):
        found = metadata.get(key) or {} if owned else {}
        kept[key] = {name: text for name, text in found.items() if name.startswith(prefixes)}
    kept_spec = {key: spec[key] for key in (_POD_SPEC if owned else _STRANGER_SPEC) if spec.get(key)}
    if tolerations := [t for t in (spec.get("tolerations") or ()) if owned and t.get("key") not in _USUAL_TOLERATIONS]:
        kept_spec["tolerations"] = tolerations
    found_pod: Json = _shared({
        "metadata": kept,
        "spec": kept_spec,
        "status": {key: status[key] for key in (_POD_STATUS if owned else _STRANGER_STATUS) if status.get(key)},
    })  # fmt: skip
    return {**found_pod, "requests": requests_of(spec)}


def slim_node(node: Json) -> Json:
    """Return the fields of a node that describe its capacity, without the times of its heartbeats."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    ready = [c for c in status.get("conditions") or () if c["type"] == "Ready"]
    found: Json = _shared({
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {
            "allocatable": status.get("allocatable") or {},
            "capacity": status.get("capacity") or {},
            "conditions": [{"type": c["type"], "status": c["status"]} for c in ready],
        },
    })  # fmt: skip
    return found


def slim_class(device_class: Json) -> Json:
    """Return the name and the selectors of a DeviceClass."""
    spec = device_class.get("spec") or {}
    return {"metadata": _identity(device_class), "spec": {"selectors": spec.get("selectors") or []}}


def slim_slice(part: Json) -> Json:
    """Return the devices of a ResourceSlice, and where they are."""
    found: Json = _shared({"metadata": _identity(part), "spec": part["spec"]})
    return found


def slim_claim(claim: Json) -> Json:
    """Return the pod that a ResourceClaim was made for, and the devices that it has."""
    owners = [o for o in claim["metadata"].get("ownerReferences") or () if o.get("controller") is True]
    metadata = {**_identity(claim), "ownerReferences": [{key: o[key] for key in _OWNER if key in o} for o in owners]}
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = [
        {key: result[key] for key in _RESULT if key in result}
        for result in (allocation.get("devices") or {}).get("results") or ()
    ]
    found: Json = _shared({"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}})
    return found


def _identity(item: Json) -> dict[str, Any]:
    metadata = item["metadata"]
    return {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key) is not None}


def _shared(value: Any) -> Any:
    """Return the same value; strings that recur in many objects are kept in memory once."""
    if isinstance(value, dict):
        return {sys.intern(str(key)): _shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    if isinstance(value, str) and len(value) <= _LONGEST_SHARED:
        return sys.intern(value)
    return value
