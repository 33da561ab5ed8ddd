"""Which pods count as whose: the ledger's side of what the watches report of jobs and pods. Thread-safe.

A pod occupies units of a pool if a HeterPSJob that the operator knows owns it, by uid. A job that was deleted stays
known until its last pod has ended. Pods of jobs that were gone before the operator began are not the ledger's: what
they take of their nodes is taken off the pools themselves (`claims.ORPHANED`).
"""

from __future__ import annotations

import threading

from heterps_operator.controller.stores.objects import Key, key_of
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import job_owner
from heterps_operator.kubernetes.reading.pools import Ledger, job_key

__all__ = ["PodAccounting"]

_GONE = " (deleted)"  # after the name of a job that is gone, for those who wait for its units


class PodAccounting:
    """Keeps the ledger's occupied units.

    Args:
        pods: that were seen.
        ledger: to keep.
    """

    def __init__(self, pods: PodStore, ledger: Ledger) -> None:
        self._pods = pods
        self._ledger = ledger
        self._lock = threading.Lock()  # what is counted last is to be what was noted last
        self._present: dict[Key, str] = {}  # uid of the job of that name
        self._names: dict[Key, str] = {}  # of known jobs, by namespace and uid; with those that are gone and have pods

    def job_seen(self, job: Json) -> None:
        """A job is there."""
        key, uid = key_of(job), str(job["metadata"].get("uid") or "")
        with self._lock:
            if self._present.get(key) == uid:
                return
            self._present[key] = uid
            self._names[key[0], uid] = key[1]
            self._pods.know_job(key[0], uid)
            self._count(key)

    def job_gone(self, job: Json) -> None:
        """A job is there no more."""
        key, uid = key_of(job), str(job["metadata"].get("uid") or "")
        with self._lock:
            if self._present.get(key) == uid:
                del self._present[key]
                self._count(key)

    def pod_changed(self, pod: Json) -> Key | None:
        """A pod has come, changed or gone.

        Args:
            pod: as the store keeps it, or kept it.

        Returns:
            The job for which that is news; None if the operator knows none.
        """
        owner, namespace = job_owner(pod), key_of(pod)[0]
        with self._lock:
            name = None if owner is None else self._names.get((namespace, owner[1]))
            if name is None:
                return None
            self._count((namespace, name))
        return namespace, name

    def count_all(self) -> None:
        """What a unit of a pool is has changed."""
        with self._lock:
            for key in {(namespace, name) for (namespace, _), name in self._names.items()}:
                self._count(key)

    def _count(self, key: Key) -> None:
        """Tell the ledger what the pods of the jobs of a name occupy, and forget those that are gone for good."""
        namespace, present, gone = key[0], self._present.get(key), dict[str, int]()
        for uid in [uid for (where, uid), name in self._names.items() if (where, name) == key and uid != present]:
            for pool, units in self._pods.occupied(namespace, uid).items():
                gone[pool] = gone.get(pool, 0) + units
            if not self._pods.of_owner(namespace, uid):
                del self._names[namespace, uid]
                self._pods.know_job(namespace, uid, known=False)
        name = job_key(*key)
        self._ledger.occupy(name, {} if present is None else self._pods.occupied(namespace, present))
        self._ledger.occupy(name + _GONE, gone)
