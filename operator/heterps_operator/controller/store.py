"""What the operator has last seen of the cluster: its memory of all watches.

Whoever decides reads from here, so a look at a job costs no request.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from heterps_operator.kubernetes.claims import Claimed, Claims, claim_of
from heterps_operator.kubernetes.names import LABEL_JOB
from heterps_operator.values import Json
from heterps_runtime.contract import API_GROUP

__all__ = ["Key", "ObjectStore", "PodStore", "key_of", "slim_job", "slim_node", "slim_pod"]

Key = tuple[str, str]  # namespace ("" for what has none) and name

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
_POD_SPEC = ("nodeName", "nodeSelector", "schedulerName", "schedulingGates")
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
_LONGEST_SHARED = 64  # characters of texts of which one copy is kept: names, times, reasons


def key_of(item: Json) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


def slim_job(job: Json) -> Json:
    """What people write of a job: its status is the operator's own, and no news."""
    metadata = {key: value for key, value in job["metadata"].items() if key not in ("managedFields", "resourceVersion")}
    kept = {"apiVersion": job.get("apiVersion"), "kind": job.get("kind"), "metadata": metadata, "spec": job["spec"]}
    found: Json = _shared(kept)
    return found


def slim_pod(pod: Json) -> Json:
    """The part of a pod that anybody here reads: thousands of them are kept."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: metadata[key] for key in _POD_METADATA if metadata.get(key) is not None}
    for key, prefixes in (("labels", _POD_LABELS), ("annotations", _POD_ANNOTATIONS)):
        kept[key] = {name: text for name, text in (metadata.get(key) or {}).items() if name.startswith(prefixes)}
    kept["ownerReferences"] = [
        {"kind": owner.get("kind"), "uid": owner.get("uid")} for owner in metadata.get("ownerReferences") or ()
    ]
    found: Json = _shared({
        "metadata": kept,
        "spec": {key: spec[key] for key in _POD_SPEC if spec.get(key)},
        "status": {key: status[key] for key in _POD_STATUS if status.get(key)},
    })  # fmt: skip
    return found


def slim_node(node: Json) -> Json:
    """The part of a node that says what it has to give; without the times of its heartbeats."""
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


def _shared(value: Any) -> Any:
    """The same value, of whose texts that recur from object to object there is one copy in memory."""
    if isinstance(value, dict):
        return {sys.intern(str(key)): _shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    if isinstance(value, str) and len(value) <= _LONGEST_SHARED:
        return sys.intern(value)
    return value


class ObjectStore:
    """Objects of one kind, by namespace and name. Thread-safe.

    Args:
        slim: what is kept of an object.

    Attributes:
        version: counts changes.
    """

    def __init__(self, slim: Callable[[Json], Json] = lambda item: item) -> None:
        self.version = 0
        self._slim = slim
        self._lock = threading.Lock()
        self._items: dict[Key, Json] = {}

    def put(self, item: Json) -> bool:
        """Note an object; returns whether anything that is kept of it has changed."""
        kept, key = self._slim(item), key_of(item)
        with self._lock:
            if self._items.get(key) == kept:
                return False
            self._items[key] = kept
            self.version += 1
            return True

    def remove(self, item: Json) -> bool:
        """Note that an object is gone; returns whether it was known. A later one of its name stays."""
        key, uid = key_of(item), item["metadata"].get("uid")
        with self._lock:
            known = self._items.get(key)
            if known is None or (uid and known["metadata"].get("uid") not in (None, uid)):
                return False
            del self._items[key]
            self.version += 1
            return True

    def get(self, namespace: str, name: str) -> Json | None:
        """An object, or None."""
        with self._lock:
            return self._items.get((namespace, name))

    def all(self) -> tuple[Json, ...]:
        """Every object."""
        with self._lock:
            return tuple(self._items.values())

    def snapshot(self) -> dict[Key, Json]:
        """Every object by its key, as it is now: one that has changed later is another value."""
        with self._lock:
            return dict(self._items)


class PodStore(ObjectStore):
    """Pods of all jobs, found by job, with what they request of their nodes."""

    def __init__(self) -> None:
        super().__init__(slim_pod)
        self._by_job: dict[Key, dict[str, Json]] = {}
        self._claims = Claims()

    def put(self, item: Json) -> bool:
        """Note a pod; returns whether it has changed."""
        changed = super().put(item)
        if changed:
            key, name = _job_of(item), str(item["metadata"]["name"])
            with self._lock:
                if (kept := self._items.get(key_of(item))) is not None:
                    self._by_job.setdefault(key, {})[name] = kept
                    self._claims.note(key_of(item), claim_of(item))
        return changed

    def remove(self, item: Json) -> bool:
        """Note that a pod is gone; returns whether it was known."""
        known = super().remove(item)
        if known:
            self._unlink(item)
        return known

    def of_job(self, namespace: str, job: str) -> tuple[Json, ...]:
        """All pods with the job's label."""
        with self._lock:
            return tuple((self._by_job.get((namespace, job)) or {}).values())

    @property
    def claims_version(self) -> int:
        """See `Claims.version`."""
        return self._claims.version

    @property
    def claims_version_beside(self) -> int:
        """See `Claims.version_beside`."""
        return self._claims.version_beside

    def claimed(self) -> Claimed:
        """What all pods request of their nodes."""
        with self._lock:
            return self._claims.by_node()

    def _unlink(self, item: Json) -> None:
        key = _job_of(item)
        with self._lock:
            self._claims.note(key_of(item), None)
            pods = self._by_job.get(key) or {}
            pods.pop(str(item["metadata"]["name"]), None)
            if not pods:
                self._by_job.pop(key, None)


def _job_of(pod: Json) -> Key:
    metadata = pod["metadata"]
    return str(metadata.get("namespace") or ""), str((metadata.get("labels") or {}).get(LABEL_JOB) or "")
