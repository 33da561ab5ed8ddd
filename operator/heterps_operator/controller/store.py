"""What the operator has last seen of the cluster: its memory of all watches.

Decisions read from here, so a look at a job costs no request.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS, job_owner
from heterps_operator.kubernetes.reading.claims import Charge, Claimed, Claims, charge_of, claim_of, requests_of
from heterps_operator.kubernetes.reading.processes import process_of
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
_STRANGER_SPEC, _STRANGER_STATUS = ("nodeName",), ("phase",)
_OWNER = ("apiVersion", "kind", "name", "uid", "controller")
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
    """The part of a pod that anybody here reads: thousands of them are kept.

    `requests` are what it asks of its node. Of a pod that no job owns only that and its place are kept.
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
    found_pod: Json = _shared({
        "metadata": kept,
        "spec": {key: spec[key] for key in (_POD_SPEC if owned else _STRANGER_SPEC) if spec.get(key)},
        "status": {key: status[key] for key in (_POD_STATUS if owned else _STRANGER_STATUS) if status.get(key)},
    })  # fmt: skip
    return {**found_pod, "requests": requests_of(spec)}


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
        key = key_of(item)
        with self._lock:
            before = self._items.get(key)
            kept = self._slim(self._merged(item, before))
            if before == kept:
                return False
            self._items[key] = kept
            self.version += 1
            self._changed(key, before, kept)
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
            self._changed(key, known, None)
            return True

    def _merged(self, item: Json, before: Json | None) -> Json:
        """An object as it counts, of which something is known already; the lock is held."""
        return item

    def _changed(self, key: Key, before: Json | None, after: Json | None) -> None:
        """Note more about an object that has come, changed or gone; the lock is held."""

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
    """Pods with the label of HeterPS, found by the job that owns them, with what they request of their nodes.

    Whose a pod is and what it runs is what it said first: what is written on it later does not make it another one.
    """

    def __init__(self) -> None:
        super().__init__(slim_pod)
        self._by_job: dict[Key, dict[Key, Json]] = {}  # by namespace and uid of the job
        self._known: set[Key] = set()  # jobs, by namespace and uid
        self._resources: dict[str, str] = {}
        self._claims = Claims()

    def of_job(self, job: Json) -> tuple[Json, ...]:
        """All pods that this very job owns, not those of an earlier one of its name."""
        metadata = job["metadata"]
        return self.of_owner(str(metadata.get("namespace") or ""), str(metadata["uid"]))

    def of_owner(self, namespace: str, uid: str) -> tuple[Json, ...]:
        """All pods that the job with this uid owns."""
        with self._lock:
            return tuple((self._by_job.get((namespace, uid)) or {}).values())

    def know_job(self, namespace: str, uid: str, *, known: bool = True) -> None:
        """Count the pods of a job as its own from now on; or, if it is not `known`, as those of one that is gone."""
        with self._lock:
            if ((namespace, uid) in self._known) == known:
                return
            (self._known.add if known else self._known.discard)((namespace, uid))
            for key, pod in (self._by_job.get((namespace, uid)) or {}).items():
                self._claim(key, pod)

    def set_resources(self, resources: Mapping[str, str]) -> bool:
        """Set what one unit requests, by pool; returns whether that is news."""
        with self._lock:
            if resources == self._resources:
                return False
            self._resources = dict(resources)
            for key, pod in self._items.items():
                self._claim(key, pod)
            return True

    def charge(self, pod: Json) -> Charge | None:
        """The units that a pod occupies of a pool; None if it occupies none, or its job is not known."""
        owner = job_owner(pod)
        if owner is None or (key_of(pod)[0], owner[1]) not in self._known:
            return None
        return charge_of(pod, self._resources)

    def occupied(self, namespace: str, uid: str) -> dict[str, int]:
        """Units that the pods of a known job occupy, by pool."""
        units: dict[str, int] = {}
        with self._lock:
            for pod in (self._by_job.get((namespace, uid)) or {}).values():
                charge = self.charge(pod)
                if charge is not None and charge.units:
                    units[charge.pool] = units.get(charge.pool, 0) + charge.units
        return units

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

    # --- under the lock ---

    def _merged(self, item: Json, before: Json | None) -> Json:
        if before is None or before["metadata"].get("uid") != item["metadata"].get("uid") or job_owner(before) is None:
            return item
        metadata = {**item["metadata"], "ownerReferences": before["metadata"]["ownerReferences"]}
        with contextlib.suppress(ValueError):
            process_of(before)
            text = before["metadata"]["annotations"][ANNOTATION_PROCESS]
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION_PROCESS: text}
        return {**item, "metadata": metadata}

    def _changed(self, key: Key, before: Json | None, after: Json | None) -> None:
        if before is not None and (owner := job_owner(before)) is not None:
            pods = self._by_job.get((key[0], owner[1])) or {}
            pods.pop(key, None)
            if not pods:
                self._by_job.pop((key[0], owner[1]), None)
        if after is None:
            self._claims.note(key, None)
            return
        if (owner := job_owner(after)) is not None:
            self._by_job.setdefault((key[0], owner[1]), {})[key] = after
        self._claim(key, after)

    def _claim(self, key: Key, pod: Json) -> None:
        owner = job_owner(pod)
        orphaned = owner is not None and (key[0], owner[1]) not in self._known
        self._claims.note(key, claim_of(pod, self.charge(pod), orphaned=orphaned))
