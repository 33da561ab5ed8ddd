"""The units that the pods of each job occupy, for the ledger. Thread-safe.

A pod occupies units of its pool if its owner, by uid, is a HeterPSJob that the operator knows. A deleted job stays
known until its last pod has ended. Pods of jobs that were deleted before the operator started do not count in the
ledger; their requests reduce the capacity of the pools (`claims.ORPHANED`).
"""

from __future__ import annotations

import threading

from heterps_operator.controller.capacity.ledger import Ledger, job_key
from heterps_operator.controller.stores.objects import Key, key_of
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import job_owner

__all__ = ["PodAccounting"]

_GONE = " (deleted)"  # added to the name of a deleted job in the list of holders


class PodAccounting:
    """Keeps the ledger's occupied units up to date.

    Args:
        pods: the store of pods.
        ledger: the ledger.
    """

    def __init__(self, pods: PodStore, ledger: Ledger) -> None:
        self._pods = pods
        self._ledger = ledger
        self._lock = threading.Lock()  # counts reach the ledger in the order of the changes
        self._present: dict[Key, str] = {}  # uid of the existing job, by namespace and name
        self._names: dict[Key, str] = {}  # names by namespace and uid: of existing jobs, and of deleted ones with pods
        self._uids: dict[Key, set[str]] = {}  # the same by namespace and name: counting must not search all jobs

    def job_seen(self, job: Json) -> None:
        """Add a job."""
        key, uid = key_of(job), str(job["metadata"].get("uid") or "")
        with self._lock:
            if self._present.get(key) == uid:
                return
            self._present[key] = uid
            self._names[key[0], uid] = key[1]
            self._uids.setdefault(key, set()).add(uid)
            self._pods.know_job(key[0], uid)
            self._count(key)

    def job_gone(self, job: Json) -> None:
        """Remove a job."""
        key, uid = key_of(job), str(job["metadata"].get("uid") or "")
        with self._lock:
            if self._present.get(key) == uid:
                del self._present[key]
                self._count(key)

    def pod_changed(self, pod: Json) -> Key | None:
        """Count the pods of a job again after a pod was added, changed or removed.

        Args:
            pod: the pod as stored, or as it was stored before.

        Returns:
            The job of the pod; None if the operator does not know it.
        """
        owner, namespace = job_owner(pod), key_of(pod)[0]
        with self._lock:
            name = None if owner is None else self._names.get((namespace, owner[1]))
            if name is None:
                return None
            self._count((namespace, name))
        return namespace, name

    def count_all(self) -> None:
        """Count the pods of all jobs again, after the resource of a pool's units has changed."""
        with self._lock:
            for key in list(self._uids):
                self._count(key)

    def _count(self, key: Key) -> None:
        """Pass the units of all jobs of a name to the ledger, and forget deleted jobs without pods."""
        namespace, present, gone = key[0], self._present.get(key), dict[str, int]()
        uids = self._uids.get(key, set())
        for uid in sorted(uids - {present}):
            for pool, units in self._pods.occupied(namespace, uid).items():
                gone[pool] = gone.get(pool, 0) + units
            if not self._pods.of_owner(namespace, uid):
                del self._names[namespace, uid]
                uids.discard(uid)
                self._pods.know_job(namespace, uid, known=False)
        if not uids:
            self._uids.pop(key, None)
        name = job_key(*key)
        self._ledger.occupy(name, {} if present is None else self._pods.occupied(namespace, present))
        self._ledger.occupy(name + _GONE, gone)
