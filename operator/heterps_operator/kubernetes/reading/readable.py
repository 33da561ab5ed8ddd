"""Shapes that the operator needs to read a job, pod, pool, node or device. Pure.

Every object from a watch or a list is checked here once; later code may rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterps_operator.api.shapes import (
    Shape,
    UnreadableError,
    amount,
    check_levels,
    fields,
    items,
    matching,
    moment,
    number,
    table,
    text,
    truth,
)
from heterps_operator.kubernetes.names import DEVICES_VERSION
from heterps_runtime.contract import API_VERSION

__all__ = ["API_VERSIONS", "CLAIM", "DEVICE_CLASS", "JOB", "NODE", "POD", "POOL", "SLICE", "check"]

JOB, POD, POOL, NODE = "HeterPSJob", "Pod", "DevicePool", "Node"
DEVICE_CLASS, SLICE, CLAIM = "DeviceClass", "ResourceSlice", "ResourceClaim"
API_VERSIONS = {JOB: API_VERSION, POOL: API_VERSION, POD: "v1", NODE: "v1"} | dict.fromkeys(
    (DEVICE_CLASS, SLICE, CLAIM), DEVICES_VERSION
)

_CORES = "cpu"
_MOST_UNITS = 1_000_000
_LARGEST = 2**63 - 1
_LONGEST_NAME = 253
_NAMED = text(least=1, most=_LONGEST_NAME)
_TEXT = text()
_TEXTS = table(_TEXT)


def _can_be_a_unit(resource: str) -> bool:
    return resource == _CORES or "/" in resource


_AMOUNTS = table(amount, only=_can_be_a_unit)
_OWNER = fields({"apiVersion": _TEXT, "kind": _TEXT, "name": _TEXT, "uid": _TEXT, "controller": truth})
_METADATA: dict[str, Shape] = {
    "name": _NAMED,
    "namespace": _NAMED,
    "uid": text(most=_LONGEST_NAME),
    "generation": number(0, _LARGEST),
    "labels": _TEXTS,
    "annotations": _TEXTS,
    "ownerReferences": items(_OWNER),
    "finalizers": items(_TEXT),
    "creationTimestamp": moment,
    "deletionTimestamp": moment,
    "deletionGracePeriodSeconds": number(0, _LARGEST),
}
_IN_NAMESPACE = fields(_METADATA, required=("name", "namespace"))
_OF_JOB = fields({**_METADATA, "uid": _NAMED}, required=("name", "namespace", "uid"))
_IN_CLUSTER = fields(_METADATA, required=("name",))

_CONDITION = fields({
    "type": _TEXT, "status": _TEXT, "reason": _TEXT, "message": _TEXT, "lastTransitionTime": moment,
}, required=("type", "status"))  # fmt: skip
_TERMINATED = fields({
    "exitCode": number(-(2**31), 2**31 - 1), "signal": number(0, 2**31 - 1), "reason": _TEXT, "message": _TEXT,
    "startedAt": moment, "finishedAt": moment,
}, required=("exitCode",))  # fmt: skip
_STATE = fields({
    "running": fields({"startedAt": moment}),
    "terminated": _TERMINATED,
    "waiting": fields({"reason": _TEXT, "message": _TEXT}),
})  # fmt: skip
_CONTAINER_STATUS = fields({
    "name": _TEXT, "image": _TEXT, "ready": truth, "restartCount": number(0, _LARGEST),
    "state": _STATE, "lastState": _STATE,
}, required=("name",))  # fmt: skip
_RESOURCES = fields({"requests": _AMOUNTS, "limits": _AMOUNTS})
_CONTAINER = fields({"name": _TEXT, "resources": _RESOURCES, "restartPolicy": _TEXT})
_TOLERATION = fields({"key": _TEXT, "operator": _TEXT, "value": _TEXT, "effect": _TEXT})
_POD_SPEC = fields({
    "nodeName": _TEXT, "nodeSelector": _TEXTS, "schedulerName": _TEXT, "tolerations": items(_TOLERATION),
    "schedulingGates": items(fields({"name": _TEXT})),
    "resourceClaims": items(fields({"name": _TEXT, "resourceClaimTemplateName": _TEXT})),
    "containers": items(_CONTAINER), "initContainers": items(_CONTAINER), "resources": _RESOURCES, "overhead": _AMOUNTS,
})  # fmt: skip
_POD_STATUS = fields({
    "phase": _TEXT, "podIP": _TEXT, "reason": _TEXT, "message": _TEXT, "startTime": moment,
    "conditions": items(_CONDITION), "containerStatuses": items(_CONTAINER_STATUS),
    "initContainerStatuses": items(_CONTAINER_STATUS),
})  # fmt: skip

_TAINT = fields({"key": _TEXT, "value": _TEXT, "effect": _TEXT}, required=("key", "effect"))
_NODE_SPEC = fields({"unschedulable": truth, "taints": items(_TAINT)})
_NODE_STATUS = fields({"allocatable": _AMOUNTS, "capacity": _AMOUNTS, "conditions": items(_CONDITION)})

_NAMESPACE = fields({"name": _NAMED, "maxUnits": number(1, _MOST_UNITS)}, required=("name",))
_PRICE = matching(r"[0-9]{1,8}(\.[0-9]{1,7})?", 'a price in quotes, such as "0.04"')
_PRICE_KEY = fields({"name": _NAMED, "key": _NAMED}, required=("name", "key"))
_PRICE_FROM = fields({"configMapKeyRef": _PRICE_KEY, "staleAfterSeconds": number(1, _LARGEST)}, ("configMapKeyRef",))
_RATE = matching(r"[0-9]{1,8}(\.[0-9]{1,7})?", 'a rate in quotes, such as "0.002"')
_SPOT = fields({"interruptionsPerUnitHour": _RATE}, required=("interruptionsPerUnitHour",))
_POOL_SPEC = fields({
    "deviceType": text(among=("CPU", "GPU", "XPU")), "resourceName": _NAMED, "deviceClassName": _NAMED,
    "unitsPerPod": number(1, 1024),
    "maxUnits": number(1, _MOST_UNITS), "pricePerUnitHour": _PRICE, "nodeSelector": _TEXTS,
    "tolerations": items(_TOLERATION), "autoscaled": truth, "namespaces": items(_NAMESPACE),
    "priceFrom": _PRICE_FROM, "spot": _SPOT,
}, required=("deviceType", "maxUnits", "pricePerUnitHour"))  # fmt: skip
_POOL_STATUS = fields({"conditions": items(_CONDITION)})  # a price in it is checked where it is read

_SELECTOR = fields({"cel": fields({"expression": _TEXT}, required=("expression",))})
_CLASS_SPEC = fields({"selectors": items(_SELECTOR)})
_ATTRIBUTE = fields({"int": number(-_LARGEST - 1, _LARGEST), "bool": truth, "string": _TEXT, "version": _TEXT})
_DEVICE = fields({
    "name": _NAMED, "attributes": table(_ATTRIBUTE), "capacity": table(fields({"value": amount}, required=("value",))),
    "taints": items(_TAINT), "allowMultipleAllocations": truth, "consumesCounters": items(fields({})),
}, required=("name",))  # fmt: skip
_SLICE_SPEC = fields({
    "driver": _NAMED, "nodeName": _NAMED, "devices": items(_DEVICE),
    "pool": fields({"name": _NAMED, "generation": number(0, _LARGEST)}, required=("name",)),
}, required=("driver", "pool"))  # fmt: skip
_RESULT = fields({
    "driver": _NAMED, "pool": _NAMED, "device": _NAMED, "adminAccess": truth,
}, required=("driver", "pool", "device"))  # fmt: skip
_ALLOCATION = fields({"devices": fields({"results": items(_RESULT)})})

# The rest of a job's spec is validated, and reported in its status, when the operator picks up the job.
_JOB_SPEC = fields({"managedBy": _TEXT, "pools": items(fields({"name": _NAMED}, required=("name",)))}, ("pools",))

_SHAPES: Mapping[str, Shape] = {
    JOB: fields({"metadata": _OF_JOB, "spec": _JOB_SPEC}, required=("metadata", "spec")),
    POD: fields({"metadata": _IN_NAMESPACE, "spec": _POD_SPEC, "status": _POD_STATUS}, required=("metadata",)),
    POOL: fields({"metadata": _IN_CLUSTER, "spec": _POOL_SPEC, "status": _POOL_STATUS}, required=("metadata", "spec")),
    NODE: fields({"metadata": _IN_CLUSTER, "spec": _NODE_SPEC, "status": _NODE_STATUS}, required=("metadata",)),
    DEVICE_CLASS: fields({"metadata": _IN_CLUSTER, "spec": _CLASS_SPEC}, required=("metadata",)),
    SLICE: fields({"metadata": _IN_CLUSTER, "spec": _SLICE_SPEC}, required=("metadata", "spec")),
    CLAIM: fields({"metadata": _IN_NAMESPACE, "status": fields({"allocation": _ALLOCATION})}, required=("metadata",)),
}


def check(kind: str, item: Any) -> None:
    """Check that the operator can read an object.

    Args:
        kind: of the object, one of `API_VERSIONS`.
        item: the unchecked object.

    Raises:
        UnreadableError: the object is malformed; the error names the first faulty field.
    """
    check_levels(item)
    _SHAPES[kind](item, "")
    if kind == POOL:
        spec = item["spec"]
        if spec["deviceType"] == "XPU" and not (spec.get("resourceName") or spec.get("deviceClassName")):
            raise UnreadableError("spec.resourceName", None, "set, or deviceClassName, as XPU pools have no default")
