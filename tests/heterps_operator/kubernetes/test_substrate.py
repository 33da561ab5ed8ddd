"""Pods as processes: creation, deletion and observation, with an in-memory API server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import is_owned
from heterps_operator.kubernetes.substrate import KubernetesSubstrate
from heterps_operator.state.values import Departure, ProcessView
from tests.heterps_operator.helpers.documents import (
    COORDINATOR,
    CPU_WORKER,
    NOW,
    POOLS,
    Json,
    condition,
    make_job,
    running,
    stamp,
    terminated,
    waiting,
)

POD = "/api/v1/namespaces/ml/pods"


class Cluster:
    """Pods by name, in the API server and in the watch cache."""

    def __init__(self) -> None:
        self.now = NOW
        self.pods: dict[str, Json] = {}
        self.events: list[Json] = []
        self.log: tuple[str, ...] = ("from the log",)
        self.refusal: ApiError | None = None
        self.calls: list[tuple[str, Any]] = []

    # --- the API ---

    def create(self, path: str, body: Json, *, strict: bool = False) -> Json:
        self.calls.append(("create", body["metadata"]["name"]))
        if self.refusal is not None:
            raise self.refusal
        name = body["metadata"]["name"]
        if name in self.pods:
            raise ApiError(409, "AlreadyExists", f'pods "{name}" already exists')
        body["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": stamp(self.now)}
        self.pods[name] = {**body, "status": {"phase": "Pending"}}
        return self.pods[name]

    def get(self, path: str) -> Json | None:
        return self.pods.get(path.removeprefix(f"{POD}/"))

    def delete(self, path: str, grace_seconds: int | None = None, uid: str | None = None) -> None:
        assert uid == self.pods[path.removeprefix(f"{POD}/")]["metadata"].get("uid")
        self.calls.append(("delete", (path.removeprefix(f"{POD}/"), grace_seconds)))
        self.pods[path.removeprefix(f"{POD}/")]["metadata"]["deletionTimestamp"] = stamp(
            self.now + (grace_seconds or 30)
        )

    def list(self, path: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]:
        self.calls.append(("list", field_selector))
        return self.events, "1"

    def log_tail(self, namespace: str, pod: str, lines: int) -> tuple[str, ...]:
        return self.log

    # --- what happens ---

    def set(self, name: str, **status: Any) -> None:
        self.pods[name]["status"] = status

    def substrate(self, **options: Any) -> KubernetesSubstrate:
        return KubernetesSubstrate(
            cast("KubernetesApi", self), Watched(self), make_job(), POOLS, clock=lambda: self.now, **options
        )


class Watched:
    """A watch cache that is never late."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of_job(self, job: Mapping[str, Any]) -> tuple[Json, ...]:
        return tuple(pod for pod in self._cluster.pods.values() if is_owned(pod, job))

    def get(self, namespace: str, name: str) -> Json | None:
        return self._cluster.pods.get(name)

    def put_answer(self, item: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
        return False


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def substrate(cluster: Cluster) -> KubernetesSubstrate:
    """A substrate with a running coordinator."""
    made = cluster.substrate()
    made.start(COORDINATOR)
    cluster.set("flights-coordinator-1-1", phase="Running", podIP="10.0.0.7", containerStatuses=running())
    return made


def seen(substrate: KubernetesSubstrate, name: str) -> ProcessView:
    return next(view for view in substrate.processes() if view.name == name)


WORKER = "flights-worker-0-1-1-1"


def test_a_process_is_a_pod_that_knows_the_coordinator(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    assert substrate.coordinator_address() == "http://10.0.0.7:7400"
    substrate.start(CPU_WORKER)
    assert {"name": "HETERPS_COORDINATOR", "value": "http://10.0.0.7:7400"} in (
        cluster.pods[WORKER]["spec"]["containers"][0]["env"]
    )
    assert seen(substrate, "worker-0-1").running
    assert [view.name for view in substrate.processes()] == ["coordinator", "worker-0-1"]


def test_a_pod_that_is_there_already_is_as_good(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    substrate.start(CPU_WORKER)
    again = cluster.substrate()
    again.processes()
    again.start(CPU_WORKER)
    assert seen(again, "worker-0-1") == seen(substrate, "worker-0-1")


def test_an_end_is_remembered_when_the_pod_is_gone(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    substrate.start(CPU_WORKER)
    cluster.set(WORKER, phase="Failed", containerStatuses=terminated(1))
    ended = seen(substrate, "worker-0-1")
    assert (ended.exit_code, ended.ended, ended.last_lines) == (1, NOW + 60, ("from the log",))
    del cluster.pods[WORKER]
    assert seen(substrate, "worker-0-1") == ended


def test_a_pod_that_disappears_was_deleted_unless_it_was_told_to(
    cluster: Cluster, substrate: KubernetesSubstrate
) -> None:
    substrate.start(CPU_WORKER)
    substrate.processes()
    del cluster.pods[WORKER]
    assert (seen(substrate, "worker-0-1").ended, seen(substrate, "worker-0-1").reason) == (NOW, "Deleted")
    later = replace(CPU_WORKER, attempt=2)
    substrate.start(later)
    substrate.stop("worker-0-1", 5.0)
    assert cluster.calls[-1] == ("delete", ("flights-worker-0-1-1-2", 5))
    assert seen(substrate, "worker-0-1").stopping
    del cluster.pods["flights-worker-0-1-1-2"]
    gone = seen(substrate, "worker-0-1")
    assert (gone.spec, gone.running, gone.reason) == (later, False, "")


def test_the_end_of_a_later_attempt_is_seen_beside_an_earlier_pod(
    cluster: Cluster, substrate: KubernetesSubstrate
) -> None:
    substrate.start(CPU_WORKER)
    cluster.set(WORKER, phase="Failed", containerStatuses=terminated(1))
    substrate.processes()
    substrate.start(replace(CPU_WORKER, attempt=2))
    assert seen(substrate, "worker-0-1").spec.attempt == 2
    del cluster.pods["flights-worker-0-1-1-2"]
    view = seen(substrate, "worker-0-1")
    assert (view.spec.attempt, view.running, view.reason) == (2, False, "Deleted")


def test_a_pod_of_an_earlier_job_of_the_name_is_passed_over(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    substrate.start(CPU_WORKER)
    cluster.pods[WORKER]["metadata"]["ownerReferences"][0]["uid"] = "of an earlier job"
    fresh = cluster.substrate()
    assert [view.name for view in fresh.processes()] == ["coordinator"]


def test_a_later_controller_knows_what_went_on_meanwhile(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    substrate.start(CPU_WORKER)
    substrate.processes()
    known = substrate.known()
    del cluster.pods[WORKER]
    later = cluster.substrate(known=known)
    assert seen(later, "worker-0-1").reason == "Deleted"
    assert seen(later, "coordinator").running


def test_a_refused_pod_is_a_process_with_a_problem_and_is_tried_again(
    cluster: Cluster, substrate: KubernetesSubstrate
) -> None:
    cluster.refusal = ApiError(403, "Forbidden", "exceeded quota: compute")
    substrate.start(CPU_WORKER)
    view = seen(substrate, "worker-0-1")
    assert view.running
    assert view.problem is not None
    assert view.problem.reason == "QuotaExceeded"
    attempts = cluster.calls.count(("create", WORKER))
    cluster.refusal = None
    cluster.now += 1
    substrate.processes()
    assert cluster.calls.count(("create", WORKER)) == attempts, "not at once"
    cluster.now += 10
    substrate.processes()
    assert seen(substrate, "worker-0-1").problem is None
    assert WORKER in cluster.pods


def test_events_are_read_only_of_pods_that_take_long(cluster: Cluster, substrate: KubernetesSubstrate) -> None:
    substrate.start(CPU_WORKER)
    scheduled = [condition("PodScheduled", "True", at=NOW)]
    cluster.set(WORKER, phase="Pending", conditions=scheduled, containerStatuses=waiting("ContainerCreating"))
    cluster.events = [{"reason": "FailedMount", "message": 'configmap "c" not found', "lastTimestamp": stamp(NOW)}]
    cluster.now = NOW + 20
    assert seen(substrate, "worker-0-1").problem is None
    assert not [call for call in cluster.calls if call[0] == "list"]
    cluster.now = NOW + 100
    for _ in range(3):
        problem = seen(substrate, "worker-0-1").problem
        assert problem is not None
        assert problem.reason == "FailedMount"
    assert [call for call in cluster.calls if call[0] == "list"] == [("list", f"involvedObject.name={WORKER}")]


def test_pods_are_told_apart_by_role_for_metrics(cluster: Cluster) -> None:
    counted: list[tuple[str, str, str]] = []
    made = cluster.substrate(on_pod=lambda what, role, pool: counted.append((what, role, pool)))
    made.start(COORDINATOR)
    made.start(COORDINATOR)
    made.stop("coordinator", 5.0)
    made.stop("coordinator", 5.0)
    assert counted == [("created", "coordinator", ""), ("deleted", "coordinator", "")]


@pytest.mark.parametrize(
    ("owners", "reason"),
    [([], "NameTaken"), ([{"kind": "HeterPSJob", "uid": "an earlier one"}], "NameNotFree")],
    ids=["another owner's", "an earlier job's"],
)
def test_a_pod_of_the_name_that_is_not_this_job_s_is_waited_for(
    cluster: Cluster, substrate: KubernetesSubstrate, owners: list[Json], reason: str
) -> None:
    cluster.pods[WORKER] = {"metadata": {"name": WORKER, "ownerReferences": owners}, "status": {"phase": "Running"}}
    substrate.start(CPU_WORKER)
    view = seen(substrate, "worker-0-1")
    assert view.problem is not None
    assert (view.running, view.problem.reason) == (True, reason)
    assert WORKER in view.problem.message
    del cluster.pods[WORKER]
    cluster.now += 2
    assert seen(substrate, "worker-0-1").problem is None
    assert WORKER in cluster.pods


def test_a_pod_that_is_deleted_on_a_node_that_is_not_heard_of_is_lost_for_good(cluster: Cluster) -> None:
    heard = {"node-1"}
    substrate = cluster.substrate(hears_of=lambda node: node in heard)
    substrate.start(COORDINATOR)
    name = "flights-coordinator-1-1"
    cluster.pods[name]["spec"]["nodeName"] = "node-1"
    cluster.set(name, phase="Running", podIP="10.0.0.7", containerStatuses=running())
    cluster.pods[name]["metadata"]["deletionTimestamp"] = stamp(NOW + 30)
    assert seen(substrate, "coordinator").running
    heard.clear()
    assert (seen(substrate, "coordinator").ended, seen(substrate, "coordinator").reason) == (NOW, "NodeLost")
    heard.add("node-1")
    assert not seen(substrate, "coordinator").running


def test_a_process_is_told_to_leave_its_node_as_long_as_it_runs_there(cluster: Cluster) -> None:
    why = Departure("a", "is cordoned")
    made = cluster.substrate(leaves=lambda pod: why if pod["metadata"]["name"] == WORKER else None)
    made.start(COORDINATOR)
    cluster.set("flights-coordinator-1-1", phase="Running", podIP="10.0.0.7", containerStatuses=running())
    made.start(CPU_WORKER)
    assert (seen(made, "worker-0-1").leaves, seen(made, "coordinator").leaves) == (why, None)
    assert [view.leaves for view in made.known()] == [None, None], "it is observed, not remembered"
    successor = replace(CPU_WORKER, attempt=2)
    made.start(successor)
    assert seen(made, "worker-0-1").leaves is None


def test_a_watch_that_is_faster_than_the_answer_to_a_creation_is_believed() -> None:
    store = PodStore()

    class Fast(Cluster):
        def create(self, path: str, body: Json, *, strict: bool = False) -> Json:
            created = copy.deepcopy(super().create(path, body, strict=strict))
            store.put({**created, "status": {"phase": "Running"}})
            return created

    api = cast("KubernetesApi", Fast())
    substrate = KubernetesSubstrate(api, store, make_job(), POOLS, clock=lambda: NOW)
    substrate.start(COORDINATOR)
    [pod] = store.of_job(make_job())
    assert pod["status"]["phase"] == "Running"


def test_a_pod_is_not_taken_for_deleted_when_the_end_of_its_predecessor_is_reported_during_its_creation() -> None:
    """Both have one name: the job was deleted and created again."""
    store, job = PodStore(), make_job()
    predecessor = {"metadata": {"name": "flights-coordinator-1-1", "namespace": "ml", "uid": "of an earlier job"}}
    store.put(predecessor)

    class Meanwhile(Cluster):
        def create(self, path: str, body: Json, *, strict: bool = False) -> Json:
            store.remove(predecessor)
            return copy.deepcopy(super().create(path, body, strict=strict))

    substrate = KubernetesSubstrate(cast("KubernetesApi", Meanwhile()), store, job, POOLS, clock=lambda: NOW)
    substrate.start(COORDINATOR)
    assert seen(substrate, "coordinator").running


def test_of_many_that_end_together_the_logs_of_the_first_are_read() -> None:
    cluster = Cluster()
    substrate = cluster.substrate()
    substrate.start(COORDINATOR)
    cluster.set("flights-coordinator-1-1", phase="Running", podIP="10.0.0.7", containerStatuses=running())
    for index in range(100):
        substrate.start(replace(CPU_WORKER, name=f"worker-0-{index}", index=index))
        code = 2 if index == 10 else 1
        over = {"terminated": {"exitCode": code, "finishedAt": stamp(NOW + 200 - index)}}
        cluster.set(
            f"flights-worker-0-{index}-1-1", phase="Failed", containerStatuses=[{"name": "heterps", "state": over}]
        )
    cluster.calls.clear()
    told = {view.name for view in substrate.processes() if view.last_lines}
    assert told == {"worker-0-10", *(f"worker-0-{index}" for index in range(69, 100))}, "bad input explains the rest"
    assert {view.name for view in substrate.processes() if view.last_lines} == told
