"""How the operator merges lists and watches of the same objects. Its threads do not run here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.reading.processes import process_text
from tests.heterps_operator.helpers.documents import COORDINATOR, CPU_WORKER, owner
from tests.heterps_operator.helpers.lists import JOBS, NODES, PODS, POOLS, Lists
from tests.heterps_operator.helpers.nodes import make_node, make_pool, pod_on

Json = dict[str, Any]


def job(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": "ml", "uid": name}, "spec": {"pools": [{"name": "cpu"}]}}


def pod(name: str, phase: str = "Running") -> Json:
    metadata: Json = {"name": name, "namespace": "ml", "uid": name, "labels": {"heterps.io/job": "flights"}}
    metadata |= {
        "ownerReferences": [owner("flights")],
        "annotations": {"heterps.io/process": process_text(COORDINATOR)},
    }
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
def supervisor(lists: Lists, tmp_path: Path) -> Supervisor:
    return Supervisor(OperatorContext(cast("KubernetesApi", lists), tmp_path))


def take_all(supervisor: Supervisor) -> list[str]:
    """Give each job that is woken its turn, and return their names."""
    names = []
    while supervisor.queue.known():
        key = supervisor.queue.take() or ("", "")
        supervisor.queue.done(key, None)
        names.append(key[1])
    return names


def phases(supervisor: Supervisor) -> dict[str, str]:
    return {p["metadata"]["name"]: p["status"]["phase"] for p in supervisor._cluster.pods.of_job(job("flights"))}


def test_a_list_tells_what_the_watch_has_missed(supervisor: Supervisor, lists: Lists) -> None:
    for seen in (pod("a"), pod("b")):
        supervisor.reflector.pod_seen(seen)
    lists.items[PODS] = [pod("a", "Failed"), pod("c")]
    supervisor.reflector.synchronize()
    assert phases(supervisor) == {"a": "Failed", "c": "Running"}


def test_what_the_watch_tells_while_a_list_is_read_is_newer(supervisor: Supervisor, lists: Lists) -> None:
    for seen in (pod("ended"), pod("deleted")):
        supervisor.reflector.pod_seen(seen)
    lists.items[PODS] = [pod("ended"), pod("deleted")]

    def happens() -> None:
        supervisor.reflector.pod_seen(pod("ended", "Failed"))
        supervisor.reflector.pod_seen(pod("deleted"), gone=True)
        supervisor.reflector.pod_seen(pod("created"))

    lists.meanwhile[PODS] = happens
    supervisor.reflector.synchronize()
    assert phases(supervisor) == {"ended": "Failed", "created": "Running"}


def test_a_list_without_news_wakes_nobody(supervisor: Supervisor, lists: Lists) -> None:
    lists.items = {JOBS: [job("flights")], PODS: [pod("a")]}
    supervisor.reflector.synchronize()
    assert supervisor.queue.depth() == 1
    supervisor.queue.done(supervisor.queue.take() or ("", ""), None)
    supervisor.reflector.synchronize()
    assert supervisor.queue.known() == 0


def test_units_that_become_free_wake_only_who_waits_for_them(supervisor: Supervisor) -> None:
    supervisor.reflector.job_seen(job("runs"))
    supervisor.queue.done(supervisor.queue.take() or ("", ""), None)
    supervisor.wake_waiting()
    assert supervisor.queue.known() == 0
    supervisor._controller(("ml", "new"))  # an unknown job
    supervisor.wake_waiting()
    assert supervisor.queue.known() == 1


def test_a_coordinator_on_a_node_takes_a_unit_from_its_pool(supervisor: Supervisor, lists: Lists) -> None:
    coordinator = pod_on("a", "flights-coordinator-1-1", "100m")
    lists.items = {POOLS: [make_pool()], NODES: [make_node("a", "4")], PODS: [coordinator]}
    supervisor.reflector.synchronize()
    ledger = supervisor._cluster.ledger
    assert ledger.free("cpu") == 3
    supervisor.pools.changed.clear()
    supervisor.reflector.pod_seen({**coordinator, "status": {"phase": "Succeeded"}})
    assert supervisor.pools.changed.is_set(), "the thread that keeps the pools looks at once"
    supervisor.pools.refresh()
    assert ledger.free("cpu") == 4


def test_limits_are_those_of_pods_whose_jobs_are_known(supervisor: Supervisor, lists: Lists) -> None:
    """A new operator must not mistake pods of jobs for those of deleted jobs."""
    worker = pod_on("a", "a-worker-0-1-1-1", "2", CPU_WORKER)
    lists.items = {POOLS: [make_pool(maxUnits=4)], NODES: [make_node("a", "4")], PODS: [worker]}
    lists.items[JOBS] = [{**job("a"), "metadata": {"name": "a", "namespace": "ml", "uid": "a"}}]
    supervisor.reflector.synchronize()
    ledger = supervisor._cluster.ledger
    assert (ledger.held_by("ml/a"), ledger.free("cpu")) == ({"cpu": 2}, 2)
    supervisor.reflector.job_seen(lists.items[JOBS][0], gone=True)
    supervisor.pools.refresh()
    assert (ledger.holders("cpu"), ledger.free("cpu")) == ((("ml/a (deleted)", 2),), 2)
    supervisor.reflector.pod_seen(worker, gone=True)
    assert ledger.free("cpu") == 4


def test_a_new_operator_keeps_the_place_of_a_deleted_job_s_pods(supervisor: Supervisor, lists: Lists) -> None:
    worker = pod_on("a", "a-worker-0-1-1-1", "2", CPU_WORKER)
    lists.items = {POOLS: [make_pool(maxUnits=4)], NODES: [make_node("a", "16")], PODS: [worker]}
    supervisor.reflector.synchronize()
    ledger = supervisor._cluster.ledger
    assert ledger.free("cpu") == 2
    assert not ledger.reserve("ml/b", {"cpu": 3}).granted
    supervisor.pools.changed.clear()
    supervisor.reflector.pod_seen(worker, gone=True)
    assert supervisor.pools.changed.is_set()
    supervisor.pools.refresh()
    assert ledger.reserve("ml/b", {"cpu": 4}).granted


def test_a_node_that_is_cordoned_wakes_the_jobs_with_pods_there(supervisor: Supervisor, lists: Lists) -> None:
    pods = [pod_on("a", "a-worker-0-1-1-1", "2", CPU_WORKER)]
    lists.items = {POOLS: [make_pool()], NODES: [make_node("a"), make_node("b")], PODS: pods, JOBS: [job("other")]}
    supervisor.reflector.synchronize()
    take_all(supervisor)
    supervisor.reflector.node_seen(make_node("a", cpu="8"))
    supervisor.reflector.node_seen(make_node("b", cordoned=True))
    assert supervisor.queue.known() == 0
    assert supervisor._cluster.ledger.free("cpu") == 6
    supervisor.reflector.node_seen(make_node("a", cpu="8", cordoned=True))
    assert supervisor._cluster.ledger.free("cpu") == 0, "they leave, and must not count on the units there"
    assert supervisor.queue.take() == ("ml", "a")


def test_a_node_that_is_no_longer_cordoned_wakes_the_jobs_that_wait(supervisor: Supervisor, lists: Lists) -> None:
    pods = [pod_on("a", "a-worker-0-1-1-1", "2", CPU_WORKER)]
    lists.items = {POOLS: [make_pool()], NODES: [make_node("a", cordoned=True)], PODS: pods, JOBS: [job("waits")]}
    supervisor.reflector.synchronize()
    supervisor._controller(("ml", "waits"))  # has not begun, so it waits
    take_all(supervisor)
    supervisor.reflector.node_seen(make_node("a"))
    assert "waits" in take_all(supervisor)


def test_a_pool_that_changes_wakes_the_jobs_that_name_it(supervisor: Supervisor) -> None:
    def pool(name: str) -> Json:
        return {**make_pool(), "metadata": {"name": name}}

    other = job("other")
    other["spec"]["pools"] = [{"name": "v100"}, {"name": "cpu"}]
    for seen in (job("a"), other):
        supervisor.reflector.job_seen(seen)
    assert take_all(supervisor) == ["a", "other"]
    for name, gone, expected in (
        ("v100", False, ["other"]),
        ("another", False, []),
        ("v100", True, ["other"]),
        ("cpu", False, ["a", "other"]),
    ):
        supervisor.reflector.pool_seen(pool(name), gone=gone)
        assert sorted(take_all(supervisor)) == expected, name


def test_a_watch_that_begins_anew_is_followed_by_a_comparison(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.controller.reflector._GATHER_SECONDS", 0.01)
    supervisor.start()
    try:
        supervisor.reflector.pod_seen(pod("deleted"))  # no deletion is reported
        removed, remove = threading.Event(), supervisor._cluster.pods.remove

        def noted(item: Json) -> bool:
            known = remove(item)
            removed.set()
            return known

        monkeypatch.setattr(supervisor._cluster.pods, "remove", noted)
        supervisor.reflector.listed()
        assert removed.wait(20)
        assert phases(supervisor) == {}
    finally:
        supervisor.stop()


@pytest.mark.parametrize("reported", [True, False])
def test_watches_that_do_not_report_what_lists_show_must_restart(
    supervisor: Supervisor, lists: Lists, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    for name in ("_RESYNC_SECONDS", "_REPORT_SECONDS"):
        monkeypatch.setattr(f"heterps_operator.controller.reflector.{name}", 0.01)
    reflector, stop, listed = supervisor.reflector, threading.Event(), threading.Semaphore(0)

    def change() -> None:
        """Each list of pods has another one, which the watch may report as well."""
        lists.items[PODS] = [pod(f"a{listed._value}")]
        if reported:
            reflector.heard("pods")
        listed.release()

    lists.meanwhile[PODS] = change
    thread = threading.Thread(target=reflector.run, args=(stop,), daemon=True)
    thread.start()
    try:
        for _ in range(5):
            assert listed.acquire(timeout=20)
        assert reported or reflector.watches_lost.wait(20)
        assert reported is not reflector.watches_lost.is_set()
    finally:
        stop.set()
        reflector.listed()
        thread.join()


@pytest.mark.parametrize(("namespaces", "news"), [((), {"resourceclaims"}), (("ml",), set[str]())])
def test_no_watch_reports_claims_of_other_namespaces(
    lists: Lists, tmp_path: Path, namespaces: tuple[str, ...], news: set[str]
) -> None:
    context = OperatorContext(cast("KubernetesApi", lists), tmp_path, devices=DeviceStores())
    claim = {"metadata": {"name": "a", "namespace": "other", "uid": "a"}}
    lists.items["/apis/resource.k8s.io/v1/resourceclaims"] = [claim]
    reflector = Supervisor(context, namespaces=namespaces).reflector
    assert reflector.synchronize() == news
    assert reflector.synchronize() == set()


def test_watches_that_do_not_restart_fail_the_liveness_probe(
    supervisor: Supervisor, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.controller.reflector._RESYNC_SECONDS", 0.01)
    reflector, stop = supervisor.reflector, threading.Event()
    lists.meanwhile[PODS] = stop.set
    reflector.watches_lost.set()
    reflector.run(stop)
    assert reflector.trouble() == "the watches do not restart"
    stop.clear()
    reflector.watches_lost.clear()
    reflector.run(stop)
    assert reflector.trouble() is None
