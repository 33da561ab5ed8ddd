"""Keeps the stores equal to the cluster: watches report changes, and lists find what the watches have missed.

Nothing is decided here. Changes wake the jobs concerned. An object that cannot be read is reported and skipped: no
object can delay the others or end a thread.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from heterps_operator.controller.capacity.accounting import PodAccounting
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.pools import PoolKeeper
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.controller.stores.devices import KINDS, DeviceStores
from heterps_operator.controller.stores.objects import Key, ObjectStore, key_of
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import DEVICES_VERSION, LABEL_JOB, job_owner, jobs_path, pods_path
from heterps_operator.kubernetes.reading.complaints import pod_complaint
from heterps_operator.kubernetes.reading.pools import unit_resource
from heterps_operator.kubernetes.reading.readable import CLAIM, JOB, NODE, POD, POOL, check
from heterps_runtime.contract import API_VERSION

__all__ = ["Reflector"]

_LOG = logging.getLogger("heterps.operator")
_RESYNC_SECONDS = 300.0  # between two comparisons of the stores with fresh lists
_GATHER_SECONDS = 2.0  # after a watch has restarted: its list comes in pages, and other watches restart with it
_MOST_GATHERED = 5
_RETRY_SECONDS = 10.0
_REPORT_SECONDS = 15.0  # from the list that has a change until a watch must have reported it
_FILE_SECONDS = 5.0  # between two looks at the pool file, which the kubelet replaces within about a minute
_NODES = "/api/v1/nodes"
_POOLS = f"/apis/{API_VERSION}/devicepools"
_DEVICES = f"/apis/{DEVICES_VERSION}"


class Reflector:
    """Fills the stores of jobs, pods, pools, nodes and devices. Thread-safe.

    With a pool file, pools come from it, and the store of nodes stays empty.

    Args:
        cluster: the shared context, with the stores.
        pools: is told of changed capacities.
        problems: receives objects that cannot be read.
        wake: called with the key of each job that is concerned by a change.
        wake_for_pool: called with the key of each job that names a changed pool.
        namespaces: namespaces of the managed jobs; empty: all.
        jitter: returns random numbers in [0, 1).

    Attributes:
        watches_lost: set when a watch reports nothing although there are changes, until the watches restart.
    """

    def __init__(
        self,
        cluster: OperatorContext,
        pools: PoolKeeper,
        problems: ProblemRecorder,
        wake: Callable[[Key], None],
        wake_for_pool: Callable[[Key], None],
        *,
        namespaces: Iterable[str] = (),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._pools = pools
        self._problems = problems
        self._wake = wake
        self._wake_for_pool = wake_for_pool
        self._namespaces = tuple(namespaces)
        self._jitter = jitter
        self._accounting = PodAccounting(cluster.pods, cluster.ledger)
        self._relisted = threading.Event()
        self._reports: Counter[str] = Counter()  # of watches so far, by plural
        self._watches_stuck = False
        self.watches_lost = threading.Event()

    def trouble(self) -> str | None:
        """Return why changes are noticed late, for a liveness probe; None if they are not."""
        return "the watches do not restart" if self._watches_stuck else None

    # --- watches ------------------------------------------------------------------------------------------------------

    def job_seen(self, item: Json, *, gone: bool = False) -> None:
        """Take a HeterPSJob that was added, changed or deleted."""
        self._take(JOB, self._note_job, item, gone)

    def pod_seen(self, item: Json, *, gone: bool = False) -> None:
        """Take a pod with the label of HeterPS that was added, changed or deleted."""
        self._take(POD, self._note_pod, item, gone)

    def pool_seen(self, item: Json, *, gone: bool = False) -> None:
        """Take a DevicePool that was added, changed or deleted."""
        self._take(POOL, self._note_pool, item, gone)

    def node_seen(self, item: Json, *, gone: bool = False) -> None:
        """Take a node that was added, changed or deleted."""
        self._take(NODE, self._note_node, item, gone)

    def device_seen(self, kind: str, item: Json, *, gone: bool = False) -> None:
        """Take a DeviceClass, ResourceSlice or ResourceClaim that was added, changed or deleted."""
        self._take(kind, functools.partial(self._note_device, kind), item, gone)

    def heard(self, plural: str) -> None:
        """A watch has reported an object of this kind."""
        self._reports[plural] += 1

    def watches_restart(self) -> None:
        """All watches restart, after one has failed or reported nothing."""
        self.watches_lost.clear()
        self._cluster.metrics.on_watch_restart()

    def listed(self) -> None:
        """A watch has restarted with a list, which does not contain what was deleted before."""
        self._relisted.set()

    # --- lists --------------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Compare the stores with lists, periodically and after watches restart; call `listed` to end it."""
        while not stop.is_set():
            relisted = self._relisted.wait(_RESYNC_SECONDS * (0.9 + 0.2 * self._jitter()))
            for _ in range(_MOST_GATHERED):
                if self._relisted.is_set() and not stop.is_set():
                    self._relisted.clear()
                    stop.wait(_GATHER_SECONDS)
            if stop.is_set():
                return
            reports = self._reports.copy()
            try:
                news = self.synchronize()
            except ApiError as error:
                _LOG.warning("resync: %s; retrying in %.0f s", error, _RETRY_SECONDS)
                stop.wait(_RETRY_SECONDS)
                self._relisted.set()
                continue
            if not relisted:  # otherwise the watches have just restarted
                self._watches_stuck = self.watches_lost.is_set()  # since the list before
                self._judge_watches(news, reports, stop)

    def synchronize(self) -> set[str]:
        """Compare the stores with fresh lists, and return the kinds (plurals) of which watches report the same changes.

        Raises:
            ApiError: the API server does not answer.
        """
        cluster, news = self._cluster, set[str]()
        if cluster.pool_file is None:
            news |= self._compare(cluster.nodes, [_NODES], self.node_seen)
            news |= self._compare(cluster.pools, [_POOLS], self.pool_seen)
        else:
            self.read_pools()
        if cluster.devices is not None:
            news |= self._compare_devices(cluster.devices)
        news |= self._compare(cluster.jobs, self._paths(jobs_path), self.job_seen)  # before the pods that they own
        news |= self._compare(cluster.pods, self._paths(pods_path), self.pod_seen, LABEL_JOB)
        self._pools.refresh()
        return news

    def _judge_watches(self, news: set[str], reports: Counter[str], stop: threading.Event) -> None:
        """Let the watches restart if one of them has reported nothing since its kind has news.

        A watch that works reports the same changes as the list, a little earlier or later.

        Args:
            news: kinds of which a list had changes.
            reports: number of reports before that list.
            stop: set when the operator ends.
        """
        if news:
            self._relisted.wait(_REPORT_SECONDS)  # or until they restart by themselves
        silent = sorted(kind for kind in news if self._reports[kind] == reports[kind])
        if silent and not self._relisted.is_set() and not stop.is_set():
            _LOG.warning("watches of %s do not report changes that lists show; all watches restart", ", ".join(silent))
            self.watches_lost.set()

    def follow_file(self, stop: threading.Event) -> None:
        """Look at the pool file until `stop` is set."""
        while not stop.wait(_FILE_SECONDS):
            self.read_pools()

    def read_pools(self) -> None:
        """Take the pools of the pool file, and wake the jobs that name one that has changed."""
        file = self._cluster.pool_file
        assert file is not None
        changed, pools = file.refresh(), file.pools
        for known in self._cluster.pools.all():
            if known["metadata"]["name"] not in pools:
                self.pool_seen(known, gone=True)
        for pool in pools.values():
            self.pool_seen(pool)
        for name in changed:  # also one that is refused, which the store does not have
            self._wake_users(name)

    def _paths(self, path: Callable[[str | None], str]) -> list[str]:
        return [path(namespace) for namespace in self._namespaces] or [path(None)]

    def _compare(
        self, store: ObjectStore, paths: Iterable[str], seen: Callable[..., None], label_selector: str = ""
    ) -> set[str]:
        """Take the objects of lists, except those that a watch has reported since the lists were requested.

        Returns:
            The kind's plural if anything has changed.
        """
        before, changed, plural = store.snapshot(), False, ""
        listed: set[Key] = set()
        for path in paths:
            plural = path.rpartition("/")[2]
            for item in self._cluster.api.each(path, label_selector=label_selector):
                key = _key_of(item)
                listed.add(key)
                if store.get(*key) is before.get(key):
                    seen(item)
                    changed |= store.get(*key) is not before.get(key)
        for key, known in before.items():
            if key not in listed and store.get(*key) is known:
                seen(known, gone=True)
                changed = True
        return {plural} if changed else set()

    def _compare_devices(self, devices: DeviceStores) -> set[str]:
        news = set[str]()
        try:
            for kind, plural in KINDS.items():
                seen = functools.partial(self.device_seen, kind)
                found = self._compare(devices.of(kind), [f"{_DEVICES}/{plural}"], seen)
                if kind != CLAIM or not self._namespaces:  # no watch reports claims of other namespaces
                    news |= found
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            devices.served = False
        else:
            devices.served = True
        return news

    # --- stores -------------------------------------------------------------------------------------------------------

    def _take(self, kind: str, note: Callable[[Json, bool], None], item: Json, gone: bool) -> None:
        """Check and store an object, or report it; this never raises."""
        version = self._cluster.pods.claims_version_beside
        try:
            if not gone:
                check(kind, item)
            note(item, gone)
        except Exception as error:
            if gone:
                _LOG.warning("a deleted %s: %r", kind, error)
            else:
                self._problems.tell_unreadable(kind, item, error)
        if self._cluster.pods.claims_version_beside != version:  # a coordinator may take a unit from its node
            self._pools.changed.set()

    def _note_job(self, item: Json, gone: bool) -> None:
        if not (self._cluster.jobs.remove(item) if gone else self._cluster.jobs.put(item)):
            return
        (self._accounting.job_gone if gone else self._accounting.job_seen)(item)
        self._wake(key_of(item))

    def _note_pod(self, item: Json, gone: bool) -> None:
        pods, key = self._cluster.pods, key_of(item)
        before = pods.get(*key)
        changed = pods.remove(item) if gone else pods.put(item)
        known = before if gone else pods.get(*key)
        if known is None:
            return
        # Pods of a deleted job count as well: they occupy their units until they end.
        if changed and (job := self._accounting.pod_changed(known)) is not None:
            self._wake(job)
        if not gone and (complaint := pod_complaint(item, job_owner(known) is not None, pods.charge(known))):
            self._problems.tell(POD, item, complaint)

    def _note_pool(self, item: Json, gone: bool) -> None:
        name = str(item["metadata"]["name"])
        before = self._cluster.pools.get("", name)
        changed = self._cluster.pools.remove(item) if gone else self._cluster.pools.put(item)
        if gone:
            self._cluster.metrics.forget_pool(name)
        # The operator itself writes the status: only a changed spec matters.
        if changed and (gone or before is None or before["spec"] != item["spec"]):
            pools = self._cluster.pools.all()
            if self._cluster.pods.set_resources({p["metadata"]["name"]: unit_resource(p["spec"]) for p in pools}):
                self._accounting.count_all()
            self._pools.changed.set()
            self._wake_users(name)

    def _wake_users(self, pool: str) -> None:
        for job in self._cluster.jobs.all():
            if any(entry["name"] == pool for entry in job["spec"]["pools"]):
                self._wake_for_pool(key_of(job))

    def _note_node(self, item: Json, gone: bool) -> None:
        nodes, name = self._cluster.nodes, str(item["metadata"]["name"])
        before = nodes.get("", name)
        if not (nodes.remove(item) if gone else nodes.put(item)):
            return
        self._pools.changed.set()
        after = nodes.get("", name)
        if before is not None and after is not None and before["spec"] != after["spec"]:
            jobs = self._cluster.pods.jobs_on(name)  # cordoned, or a taint says that it will be removed
            if jobs:
                self._pools.refresh()  # they leave the node now, and must not count on its units
            for job in jobs:
                self._wake(job)

    def _note_device(self, kind: str, item: Json, gone: bool) -> None:
        assert self._cluster.devices is not None
        store = self._cluster.devices.of(kind)
        changed = store.remove(item) if gone else store.put(item)
        if changed and any(pool["spec"].get("deviceClassName") for pool in self._cluster.pools.all()):
            self._pools.changed.set()


def _key_of(item: Any) -> Key:
    """Return the namespace and name of an object; of a malformed one without a name, two empty strings."""
    try:
        return key_of(item)
    except (AttributeError, KeyError, TypeError):
        return "", ""
