"""The store of pods, with what they occupy."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping

from heterps_operator.controller.stores.objects import Key, ObjectStore, key_of
from heterps_operator.controller.stores.slimming import slim_pod
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS, job_owner
from heterps_operator.kubernetes.reading.claims import ORPHANED, Charge, Claimed, Claims, charge_of, claim_of, has_ended
from heterps_operator.kubernetes.reading.processes import process_of

__all__ = ["PodStore"]


class PodStore(ObjectStore):
    """Pods with the label of HeterPS by job, and their requests by node. Thread-safe.

    The owner and the process of a pod are those of its first version: later changes of them are ignored.
    """

    def __init__(self) -> None:
        super().__init__(slim_pod)
        self._by_job: dict[Key, dict[Key, Json]] = {}  # by namespace and uid of the job
        self._on_node: dict[str, Counter[Key]] = {}  # number of pods by node, and by namespace and name of the job
        self._known: set[Key] = set()  # jobs, by namespace and uid
        self._resources: dict[str, str] = {}
        self._claims = Claims()
        self._charges: dict[Key, tuple[Key, Charge]] = {}  # by pod: its job, by namespace and uid, and its units
        self._occupied: dict[Key, Counter[str]] = {}  # sums of these by job and pool: jobs have thousands of pods

    def of_job(self, job: Json) -> tuple[Json, ...]:
        """Return all pods that this job owns, by its uid: not those of an earlier job of the same name."""
        metadata = job["metadata"]
        return self.of_owner(str(metadata.get("namespace") or ""), str(metadata["uid"]))

    def of_owner(self, namespace: str, uid: str) -> tuple[Json, ...]:
        """Return all pods that the job with this uid owns."""
        with self._lock:
            return tuple((self._by_job.get((namespace, uid)) or {}).values())

    def jobs_on(self, node: str) -> frozenset[Key]:
        """Return namespace and name of the jobs that have pods on a node."""
        with self._lock:
            return frozenset(self._on_node.get(node, ()))

    def know_job(self, namespace: str, uid: str, *, known: bool = True) -> None:
        """Count the pods of a job as its own; or, unless `known`, as orphans."""
        with self._lock:
            if ((namespace, uid) in self._known) == known:
                return
            (self._known.add if known else self._known.discard)((namespace, uid))
            for key, pod in (self._by_job.get((namespace, uid)) or {}).items():
                self._claim(key, pod)

    def set_resources(self, resources: Mapping[str, str]) -> bool:
        """Set the resource of each pool's units; return whether anything has changed."""
        with self._lock:
            if resources == self._resources:
                return False
            self._resources = dict(resources)
            for key, pod in self._items.items():
                self._claim(key, pod)
            return True

    def charge(self, pod: Json) -> Charge | None:
        """Return the units that a pod occupies of its pool; None if it occupies none, or its job is not known."""
        owner = job_owner(pod)
        if owner is None or (key_of(pod)[0], owner[1]) not in self._known:
            return None
        return charge_of(pod, self._resources)

    def occupied(self, namespace: str, uid: str) -> dict[str, int]:
        """Return the units that the pods of a known job occupy, by pool."""
        with self._lock:
            return dict(self._occupied.get((namespace, uid), {}))

    def orphaned(self) -> dict[str, int]:
        """Return the units that pods of unknown jobs occupy, by the pool in their annotation."""
        units: dict[str, int] = {}
        with self._lock:
            unknown = [pods.values() for owner, pods in self._by_job.items() if owner not in self._known]
            for pod in (pod for pods in unknown for pod in pods):
                charge = charge_of(pod, self._resources)
                if charge is not None:
                    units[charge.pool] = units.get(charge.pool, 0) + charge.units
        return units

    def device_users(self) -> dict[str, tuple[str, int]]:
        """Return the pool of the units of each pod with claims of devices, or `ORPHANED`, and their number, by uid."""
        users: dict[str, tuple[str, int]] = {}
        with self._lock:
            for key, pod in self._items.items():
                if not pod["spec"].get("resourceClaims") or has_ended(pod):
                    continue
                owner, uid = job_owner(pod), str(pod["metadata"].get("uid") or "")
                if owner is not None and (key[0], owner[1]) not in self._known:
                    users[uid] = ORPHANED, 0
                elif key in self._charges:
                    charge = self._charges[key][1]
                    users[uid] = charge.pool, charge.units
        return users

    @property
    def claims_version(self) -> int:
        """See `Claims.version`."""
        return self._claims.version

    @property
    def claims_version_beside(self) -> int:
        """See `Claims.version_beside`."""
        return self._claims.version_beside

    def claimed(self) -> Claimed:
        """Return the requests of all pods, by node."""
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
        self._count_on_node(key, before, -1)
        self._count_on_node(key, after, 1)
        if before is not None and (owner := job_owner(before)) is not None:
            pods = self._by_job.get((key[0], owner[1])) or {}
            pods.pop(key, None)
            if not pods:
                self._by_job.pop((key[0], owner[1]), None)
        if after is None:
            self._claims.note(key, None)
            self._charge(key, None, None)
            return
        if (owner := job_owner(after)) is not None:
            self._by_job.setdefault((key[0], owner[1]), {})[key] = after
        self._claim(key, after)

    def _count_on_node(self, key: Key, pod: Json | None, number: int) -> None:
        node, owner = ((pod or {}).get("spec") or {}).get("nodeName"), job_owner(pod) if pod is not None else None
        if not node or owner is None:
            return
        jobs = self._on_node.setdefault(node, Counter())
        jobs[key[0], owner[0]] += number
        if not jobs[key[0], owner[0]]:
            del jobs[key[0], owner[0]]
        if not jobs:
            del self._on_node[node]

    def _claim(self, key: Key, pod: Json) -> None:
        owner = job_owner(pod)
        orphaned = owner is not None and (key[0], owner[1]) not in self._known
        charge = self.charge(pod)
        self._claims.note(key, claim_of(pod, charge, orphaned=orphaned))
        self._charge(key, None if owner is None else (key[0], owner[1]), charge)

    def _charge(self, key: Key, job: Key | None, charge: Charge | None) -> None:
        """Replace what a pod adds to the units of its job; None: it adds nothing."""
        if (before := self._charges.pop(key, None)) is not None:
            payer, old = before
            units = self._occupied[payer]
            units[old.pool] -= old.units
            if not units[old.pool]:
                del units[old.pool]
            if not units:
                del self._occupied[payer]
        if job is not None and charge is not None and charge.units:
            self._charges[key] = job, charge
            self._occupied.setdefault(job, Counter())[charge.pool] += charge.units
