"""All jobs of the operator: due jobs get turns in a few threads.

A job that fails to be looked at (the API server is away, a bug) is tried again later and later, and never holds up
another one. What the watches report only changes the stores and wakes jobs; nothing is decided there. An object that
cannot be read is told of and passed over: nothing that one object holds keeps the others waiting, or ends a thread.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

from heterps_operator.controller.accounting import PodAccounting
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.job import JobController
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.controller.store import Key, ObjectStore, key_of
from heterps_operator.controller.work_queue import WorkQueue
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import LABEL_JOB, job_owner, jobs_path, pods_path
from heterps_operator.kubernetes.reading.complaints import failed_turn, pod_complaint, unreadable
from heterps_operator.kubernetes.reading.pools import (
    Capacity,
    job_key,
    pool_capacity,
    pool_limit,
    pool_status,
    unit_resource,
)
from heterps_operator.kubernetes.reading.readable import JOB, NODE, POD, POOL, check
from heterps_operator.kubernetes.reading.shapes import UnreadableError
from heterps_operator.kubernetes.state import StateTaken
from heterps_runtime.contract import API_VERSION

__all__ = ["Supervisor"]

_LOG = logging.getLogger("heterps.operator")
_RESYNC_SECONDS = 300.0  # between two comparisons of what is remembered with what there is
_GATHER_SECONDS = 2.0  # after a watch has begun anew: its list comes in pieces, and others begin anew with it
_MOST_GATHERED = 5
_RESYNC_RETRY_SECONDS = 10.0
_POOLS_SECONDS = 5.0  # at most, between a change and the pools' status
_LONGEST_RETRY_SECONDS = 60.0
_STUCK_SECONDS = 180.0  # a turn waits some seconds for the API server, and some for a coordinator
_TAKEN_SECONDS = 10.0  # after another operator was seen at work on a job
_NODES = "/api/v1/nodes"
_POOLS = f"/apis/{API_VERSION}/devicepools"


class Supervisor:
    """Runs the controllers of all jobs.

    Args:
        cluster: what they share.
        namespaces: whose jobs are managed; empty: all.
        threads: turns at the same time.
        jitter: random numbers of [0, 1).
    """

    def __init__(
        self,
        cluster: OperatorContext,
        *,
        namespaces: Iterable[str] = (),
        threads: int = 8,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        self._jitter = jitter
        self.schedule = WorkQueue(on_wait=cluster.metrics.on_wait)
        self._controllers: dict[Key, JobController] = {}
        self._failures: dict[Key, int] = {}
        self._accounting = PodAccounting(cluster.pods, cluster.ledger)
        self._problems = ProblemRecorder(cluster.api, cluster.clock)
        self._limits: dict[str, int] = {}
        self._capacities: dict[str, Capacity] = {}
        self._counted: tuple[int, ...] = ()  # versions of what they were counted from
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pools_changed = threading.Event()
        self._relisted = threading.Event()
        self._held: dict[str, int] = {}  # of each pool, when its status was written last
        self._threads = [
            threading.Thread(target=self._work, name=f"turn-{number}", daemon=True) for number in range(threads)
        ]
        kept = {"pools": self._keep_pools, "resync": self._keep_synced, "recorder": self._keep_telling}
        for name, target in kept.items():
            self._threads.append(threading.Thread(target=self._keep_on, args=(target,), name=name, daemon=True))
        self.last_turn = cluster.clock()
        cluster.metrics.watch_queue(self.schedule.depth)

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Learn what there is, then begin.

        Raises:
            ApiError: the API server does not answer.
        """
        self.synchronize()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let running turns end, and begin no more; pods run on. May be called at any time, also before `start`."""
        self._stop.set()
        self._pools_changed.set()
        self._relisted.set()
        self.schedule.close()
        self._problems.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        for key in list(self._controllers):
            self._drop(key)

    def trouble(self) -> str | None:
        """What a liveness probe must know: why jobs get no turns; None if they do."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead:
            return f"threads have ended: {', '.join(dead)}"
        idle = self._cluster.clock() - self.last_turn
        if self.schedule.depth() and idle > _STUCK_SECONDS:
            return f"{self.schedule.depth()} jobs are due, and none was reconciled for {idle:.0f} s"
        return None

    # --- what the watches report --------------------------------------------------------------------------------------

    def job_seen(self, item: Json, *, gone: bool = False) -> None:
        """A HeterPSJob has appeared, changed or gone."""
        self._take(JOB, self._note_job, item, gone)

    def pod_seen(self, item: Json, *, gone: bool = False) -> None:
        """A pod with the label of HeterPS has appeared, changed or gone."""
        self._take(POD, self._note_pod, item, gone)

    def pool_seen(self, item: Json, *, gone: bool = False) -> None:
        """A DevicePool has appeared, changed or gone."""
        self._take(POOL, self._note_pool, item, gone)

    def node_seen(self, item: Json, *, gone: bool = False) -> None:
        """A node has appeared, changed or gone."""
        self._take(NODE, self._note_node, item, gone)

    def listed(self) -> None:
        """A watch has begun anew with a list: what was deleted before that was not reported."""
        self._relisted.set()

    def synchronize(self) -> None:
        """Compare what is remembered with what there is: watches may miss what was deleted while they reconnected.

        Raises:
            ApiError: the API server does not answer.
        """
        cluster = self._cluster
        self._compare(cluster.nodes, [_NODES], self.node_seen)
        self._compare(cluster.pools, [_POOLS], self.pool_seen)
        self._compare(cluster.jobs, self._paths(jobs_path), self.job_seen)  # whose pods there are
        self._compare(cluster.pods, self._paths(pods_path), self.pod_seen, LABEL_JOB)
        self._refresh_limits()

    # --- threads ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (key := self.schedule.take()) is not None:
            pause: float | None = _LONGEST_RETRY_SECONDS
            try:
                pause = self._turn(key)
            except Exception:  # one job must not end the operator
                _LOG.exception("%s: cannot be reconciled; retrying in %.0f s", job_key(*key), pause)
            self.schedule.done(key, pause)

    def _turn(self, key: Key) -> float | None:
        """Look at a job; returns seconds until the next look."""
        began = self._cluster.clock()
        error: Exception | None = None
        pause: float | None = None
        try:
            pause = self._controller(key).turn()
            self._failures.pop(key, None)
        except StateTaken as taken:
            _LOG.warning("%s: %s; another operator is working on it", job_key(*key), taken)
            self._drop(key)
            pause = _TAKEN_SECONDS
        except Exception as failure:  # one job must not hold up the others
            error = failure
            pause = self._retry_seconds(key)
            if isinstance(failure, ApiError):
                _LOG.warning("%s: %s; retrying in %.0f s", job_key(*key), failure, pause)
            else:
                _LOG.exception("%s: the turn failed; retrying in %.0f s", job_key(*key), pause)
                if (job := self._cluster.jobs.get(*key)) is not None:
                    self._problems.tell(JOB, job, failed_turn(failure))
        self.last_turn = self._cluster.clock()
        self._cluster.metrics.on_turn(key, self.last_turn - began, error)
        self._cluster.active_jobs = self.schedule.known()
        if self._cluster.jobs.get(*key) is not None:
            return pause
        self._drop(key)
        self._wake_waiting()  # what it held is free
        return None

    def _keep_on(self, work: Callable[[], None]) -> None:
        """Have a thread work on whatever happens."""
        while not self._stop.is_set():
            try:
                work()
            except Exception:
                _LOG.exception("thread %s goes on in %.0f s", threading.current_thread().name, _RESYNC_RETRY_SECONDS)
                self._stop.wait(_RESYNC_RETRY_SECONDS)

    def _keep_telling(self) -> None:
        self._problems.run(self._stop)

    def _keep_pools(self) -> None:
        """Keep the pools' limits and status up to date; changes are gathered for a moment."""
        while not self._stop.is_set():
            self._pools_changed.wait(_POOLS_SECONDS)
            self._pools_changed.clear()
            if self._stop.wait(0.5):
                return
            if self._refresh_limits():
                self._wake_waiting()
            for pool in self._cluster.pools.all():
                try:
                    self._publish_pool(pool)
                except ApiError as error:
                    _LOG.warning("pool %s: %s", pool["metadata"]["name"], error)
                except Exception as error:  # one pool must not hold up the others
                    self._complain(POOL, pool, error)

    def _keep_synced(self) -> None:
        while not self._stop.is_set():
            self._relisted.wait(_RESYNC_SECONDS * (0.9 + 0.2 * self._jitter()))
            for _ in range(_MOST_GATHERED):
                if self._relisted.is_set() and not self._stop.is_set():
                    self._relisted.clear()
                    self._stop.wait(_GATHER_SECONDS)
            if self._stop.is_set():
                return
            try:
                self.synchronize()
            except ApiError as error:
                _LOG.warning("resync: %s; retrying in %.0f s", error, _RESYNC_RETRY_SECONDS)
                self._stop.wait(_RESYNC_RETRY_SECONDS)
                self._relisted.set()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _take(self, kind: str, note: Callable[[Json, bool], None], item: Json, gone: bool) -> None:
        """Take note of an object, or tell of it: the caller goes on with the next one in any case."""
        version = self._cluster.pods.claims_version_beside
        try:
            if not gone:
                check(kind, item)
            note(item, gone)
        except Exception as error:
            if gone:
                _LOG.warning("a %s that is gone: %r", kind, error)
            else:
                self._complain(kind, item, error)
        if self._cluster.pods.claims_version_beside != version:  # a coordinator on a node may leave it a unit less
            self._pools_changed.set()

    def _complain(self, kind: str, item: Json, error: Exception) -> None:
        unforeseen = None if isinstance(error, UnreadableError) else error
        self._problems.tell(kind, item, unreadable(kind, error), unforeseen)

    def _note_job(self, item: Json, gone: bool) -> None:
        if not (self._cluster.jobs.remove(item) if gone else self._cluster.jobs.put(item)):
            return
        (self._accounting.job_gone if gone else self._accounting.job_seen)(item)
        self.schedule.wake(key_of(item))

    def _note_pod(self, item: Json, gone: bool) -> None:
        pods, key = self._cluster.pods, key_of(item)
        before = pods.get(*key)
        changed = pods.remove(item) if gone else pods.put(item)
        known = before if gone else pods.get(*key)
        if known is None:
            return
        # Also of a job that is gone: its pods occupy what they occupy until they have ended.
        if changed and (job := self._accounting.pod_changed(known)) is not None:
            self.schedule.wake(job)
        if not gone and (complaint := pod_complaint(item, job_owner(known) is not None, pods.charge(known))):
            self._problems.tell(POD, item, complaint)

    def _note_pool(self, item: Json, gone: bool) -> None:
        before = self._cluster.pools.get("", str(item["metadata"]["name"]))
        changed = self._cluster.pools.remove(item) if gone else self._cluster.pools.put(item)
        # Its status is written here: only what people write matters.
        if gone:
            self._cluster.metrics.forget_pool(str(item["metadata"]["name"]))
        if changed and (gone or before is None or before["spec"] != item["spec"]):
            pools = self._cluster.pools.all()
            if self._cluster.pods.set_resources({p["metadata"]["name"]: unit_resource(p["spec"]) for p in pools}):
                self._accounting.count_all()
            self._pools_changed.set()
            self._wake_all()

    def _note_node(self, item: Json, gone: bool) -> None:
        if self._cluster.nodes.remove(item) if gone else self._cluster.nodes.put(item):
            self._pools_changed.set()

    def _paths(self, path: Callable[[str | None], str]) -> list[str]:
        return [path(namespace) for namespace in self._namespaces] or [path(None)]

    def _compare(
        self, store: ObjectStore, paths: Iterable[str], seen: Callable[..., None], label_selector: str = ""
    ) -> None:
        """Take over what lists say of objects of which the watch has told nothing since they were asked for."""
        before = store.snapshot()
        listed: set[Key] = set()
        for path in paths:
            for item in self._cluster.api.each(path, label_selector=label_selector):
                key = _key_of(item)
                listed.add(key)
                if store.get(*key) is before.get(key):  # else the list is older than what is known by now
                    seen(item)
        for key, known in before.items():
            if key not in listed and store.get(*key) is known:
                seen(known, gone=True)

    def _controller(self, key: Key) -> JobController:
        with self._lock:
            known = self._controllers.get(key)
            if known is None:
                known = JobController(self._cluster, key, lambda: self.schedule.wake(key))
                self._controllers[key] = known
            return known

    def _drop(self, key: Key) -> None:
        with self._lock:
            controller = self._controllers.pop(key, None)
            self._failures.pop(key, None)
        if controller is not None:
            try:
                controller.abandon()
            except Exception:
                _LOG.exception("%s: its objects were not deleted", job_key(*key))

    def _retry_seconds(self, key: Key) -> float:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return min(2.0 ** min(failures - 1, 10), _LONGEST_RETRY_SECONDS) * (0.75 + 0.5 * self._jitter())

    def _wake_waiting(self) -> None:
        """Wake the jobs for which free units are news; others look at what is free when it is their turn."""
        with self._lock:
            waiting = [key for key, controller in self._controllers.items() if controller.waits_for_room]
        for key in waiting:
            self.schedule.wake(key)

    def _wake_all(self) -> None:
        for job in self._cluster.jobs.all():
            self.schedule.wake(key_of(job))

    def _refresh_limits(self) -> bool:
        """Tell the ledger what the pools have; returns whether that has changed."""
        cluster = self._cluster
        pools = {str(pool["metadata"]["name"]): pool for pool in cluster.pools.all()}
        counted = cluster.nodes.version, cluster.pools.version, cluster.pods.claims_version
        capacities = self._capacities
        if counted != self._counted or pools.keys() != capacities.keys():  # thousands of nodes take a while
            nodes, claimed = cluster.nodes.all(), cluster.pods.claimed()
            capacities = {}
            for name, pool in pools.items():
                try:
                    capacities[name] = pool_capacity(pool, nodes, claimed)
                except Exception as error:  # one pool must not hold up the others
                    self._complain(POOL, pool, error)
            self._capacities, self._counted = capacities, counted
        limits = {name: pool_limit(pools[name], capacity) for name, capacity in capacities.items()}
        changed, self._limits = limits != self._limits, limits
        self._cluster.ledger.set_limits(limits)
        return changed

    def _publish_pool(self, pool: Json) -> None:
        name = str(pool["metadata"]["name"])
        held = self._cluster.ledger.held(name)
        capacity = self._capacities.get(name)
        if capacity is None:  # it has just appeared
            return
        status = pool_status(pool, capacity, held, now=self._cluster.clock())
        self._cluster.metrics.update_pool(pool, status)
        if status == pool.get("status"):
            return
        body = {"apiVersion": API_VERSION, "kind": "DevicePool", "metadata": {"name": name}, "status": status}
        self._cluster.pools.put(self._cluster.api.apply(f"{_POOLS}/{name}/status", body))


def _key_of(item: Any) -> Key:
    """Namespace and name of an object, however malformed; of one without a name, those of no object."""
    try:
        return key_of(item)
    except (AttributeError, KeyError, TypeError):
        return "", ""
