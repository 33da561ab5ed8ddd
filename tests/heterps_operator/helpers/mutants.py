"""Objects from an API server, and mutants with one changed field."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from heterps_operator.kubernetes.reading.readable import CLAIM, DEVICE_CLASS, JOB, NODE, POD, POOL, SLICE
from tests.heterps_operator.helpers.devices import make_claim, make_class, make_device, make_slice
from tests.heterps_operator.helpers.documents import (
    CPU_WORKER,
    NOW,
    condition,
    make_job,
    observed,
    running,
    stamp,
    terminated,
    waiting,
)
from tests.heterps_operator.helpers.nodes import make_node, make_pool

Json = dict[str, Any]
Path = tuple[str | int, ...]


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


WRONG: tuple[Any, ...] = (
    MISSING, None, "", "x", "x" * 10_000, "-1", "1e99", "\x00\ud800", 0, -1, 10**30, 1.5, True, [], [None], ["x"], [{}],
    {}, {"x": None}, {"x" * 10_000: {}}, _nested(50), _nested(200),
)  # fmt: skip


def pod() -> Json:
    """Return a pod of a job, with every field that is read."""
    made = observed(CPU_WORKER, phase="Running", podIP="10.0.0.7", startTime=stamp(NOW), reason="x", message="x")
    made["metadata"]["deletionTimestamp"] = stamp(NOW)
    made["metadata"]["ownerReferences"].append({"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x"})
    made["spec"]["initContainers"] = [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]
    made["spec"] |= {"overhead": {"cpu": "1m"}, "resources": {"requests": {"cpu": "5"}}}
    made["spec"]["schedulingGates"] = [{"name": "x"}]
    made["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "x"}]
    made["status"]["conditions"] = [condition("Ready", "False"), condition("PodScheduled", "True")]
    made["status"]["initContainerStatuses"] = terminated(1, message="x")
    made["status"]["containerStatuses"] = [*running(), *waiting("ContainerCreating", "x", "sidecar")]
    return made


def node() -> Json:
    """A node."""
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    return make_node("n", "4", labels={"pool": "cpu"}, taints=taints, cards="2")


def pool() -> Json:
    """Return a device pool that selects `node`."""
    tolerations = [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]
    made = make_pool(nodeSelector={"pool": "cpu"}, tolerations=tolerations, autoscaled=False)
    made["metadata"] |= {"uid": "pool", "annotations": {"example.com/note": "false"}}
    made["status"] = {"conditions": [{**condition("Ready", "True"), "observedGeneration": 1}], "nodes": 1}
    return made


def job() -> Json:
    """Return a job that another operator manages: only the fields that every turn reads first are checked."""
    made = make_job(managedBy="example.com/other")
    made["metadata"] |= {"generation": 1, "finalizers": ["x"]}
    return made


def device_class() -> Json:
    """Return a DeviceClass whose selector asks for every kind of attribute."""
    own = 'device.attributes["gpu.example.com"]'
    memory = 'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("1Gi"))'
    newer = f'{own}.driverVersion.isGreaterThan(semver("1.0.0"))'
    return make_class(f'{own}.model == "x" && {own}.cores > 1 && {own}.ecc && {newer} && {memory}')


def resource_slice() -> Json:
    """Return the slice of a node with devices of every kind, of which one fulfils the selectors of `device_class`."""
    taint = {"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": stamp(NOW)}
    cards = [
        make_device("gpu-0", capacity={"memory": {"value": "80Gi"}}),
        make_device("gpu-1", taints=[taint], consumesCounters=[{"counterSet": "x"}], allowMultipleAllocations=True),
    ]
    for card in cards:
        more = {"cores": {"int": 9}, "ecc": {"bool": True}, "driverVersion": {"version": "1.2.3"}}
        card["attributes"] |= more
    return make_slice("n", cards)


def claim() -> Json:
    """Return the claim of a pod with a device of `resource_slice`."""
    return make_claim("pod-uid", "n", "gpu-0", adminAccess=False)


GOOD = {
    POD: pod, NODE: node, POOL: pool, JOB: job, DEVICE_CLASS: device_class, SLICE: resource_slice, CLAIM: claim,
}  # fmt: skip


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Return every path in a document, the document itself first."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*path, key))


def changed(document: Any, path: Path, value: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    if not path:
        return copy.deepcopy(value)
    made = copy.deepcopy(document)
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = copy.deepcopy(value)
    return made


def mutants(kind: str, number: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield mutants of a valid object of a kind: the change, and the object.

    Args:
        kind: kind of the object.
        number: number of mutants, always the same ones; None: every value at every path.
    """
    good = GOOD[kind]()
    places = [(path, value) for path in paths(good) for value in WRONG if path or value is not MISSING]
    for path, value in places if number is None else random.Random(9).sample(places, number):
        yield f"{'.'.join(map(str, path))}: {repr(value)[:30]}", changed(good, path, value)
