"""The operator's cache of the cluster."""

from __future__ import annotations

import copy
from typing import Any

from heterps_operator.controller.stores.objects import ObjectStore
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.controller.stores.slimming import slim_node
from heterps_operator.kubernetes.reading.processes import process_of, process_text
from tests.heterps_operator.helpers.documents import CPU_WORKER, owner

Json = dict[str, Any]


def item(name: str, uid: str = "1", **fields: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "space", "uid": uid}, **fields}


def pod(name: str, job: str = "flights", uid: str = "1", **fields: Any) -> Json:
    made = item(name, uid, **fields)
    made["metadata"] |= {"labels": {"heterps.io/job": job}, "ownerReferences": [owner(job)]}
    return made


def job(name: str, namespace: str = "space", uid: str = "") -> Json:
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid or name}}


def test_only_what_has_changed_is_news() -> None:
    store = ObjectStore()
    assert store.put(item("a", spec={"x": 1}))
    assert not store.put(item("a", spec={"x": 1}))
    assert store.put(item("a", spec={"x": 2}))


def test_an_answer_does_not_replace_what_the_watch_has_told_since_the_request() -> None:
    store = ObjectStore()
    assert store.put_answer(item("a", spec={"x": 1}), None)
    asked = store.get("space", "a")
    assert store.put_answer(item("a", spec={"x": 2}), asked)
    assert not store.put_answer(item("a", spec={"x": 3}), asked)
    assert not store.put_answer(item("a", spec={"x": 3}), None)
    found = store.get("space", "a")
    assert found is not None
    assert found["spec"] == {"x": 2}
    store.remove(item("a"))
    assert not store.put_answer(item("a", spec={"x": 3}), found), "it is gone"


def test_the_answer_about_a_new_object_is_stored_although_an_earlier_one_of_its_name_was_deleted_meanwhile() -> None:
    store = ObjectStore()
    store.put(item("a", uid="1"))
    asked = store.get("space", "a")
    store.remove(item("a", uid="1"))
    assert store.put_answer(item("a", uid="2"), asked)
    assert store.get("space", "a") == item("a", uid="2")


def test_the_answer_about_a_new_object_replaces_an_earlier_one_that_the_watch_has_reported_late() -> None:
    store = ObjectStore()
    early, late = item("a", uid="1"), item("a", uid="2")
    early["metadata"]["creationTimestamp"], late["metadata"]["creationTimestamp"] = (
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:09Z",
    )
    store.put(early)
    assert store.put_answer(late, None)
    assert not store.put({**early, "status": {"phase": "Succeeded"}})
    assert not store.remove(early)
    assert store.get("space", "a") == late


def test_the_answer_about_an_object_that_was_deleted_meanwhile_is_not_stored() -> None:
    store = ObjectStore()
    store.remove(item("a"))
    assert not store.put_answer(item("a"), None)
    assert store.put(item("a")), "it has its label back"
    assert store.put_answer(item("a", spec={"x": 1}), store.get("space", "a"))


def test_a_later_object_of_a_name_outlives_the_news_that_an_earlier_one_is_gone() -> None:
    store = ObjectStore()
    store.put(item("a", uid="2"))
    assert not store.remove(item("a", uid="1"))
    assert store.get("space", "a") is not None
    assert store.remove(item("a", uid="2"))
    assert store.get("space", "a") is None


def names(store: PodStore, *of: str) -> set[str]:
    return {p["metadata"]["name"] for p in store.of_job(job(*of))}


def test_pods_are_found_by_job_until_they_are_gone() -> None:
    store = PodStore()
    for name, of in (("a-0", "a"), ("a-1", "a"), ("b-0", "b")):
        store.put(pod(name, of))
    assert names(store, "a") == {"a-0", "a-1"}
    store.remove(pod("a-0", "a"))
    assert names(store, "a") == {"a-1"}
    assert names(store, "a", "elsewhere") == set()
    assert names(store, "a", "space", "another job of the name") == set()


def test_the_jobs_of_a_node_are_found_until_their_last_pod_there_is_gone() -> None:
    store = PodStore()
    for name, of, node in (
        ("a-0", "a", "n"),
        ("a-1", "a", "n"),
        ("b-0", "b", "n"),
        ("b-1", "b", "m"),
        ("c-0", "c", ""),
    ):
        store.put(pod(name, of, spec={"nodeName": node}))
    a, b = ("space", "a"), ("space", "b")
    assert store.jobs_on("n") == {a, b}
    store.remove(pod("a-0", "a"))
    store.put(pod("b-0", "b", spec={"nodeName": "m"}))
    assert store.jobs_on("n") == {a}
    assert store.jobs_on("m") == {b}
    store.remove(pod("a-1", "a"))
    assert store.jobs_on("n") == frozenset()
    assert store._on_node.keys() == {"m"}


def test_a_label_makes_a_pod_nobodys() -> None:
    store = PodStore()
    stranger = pod("stranger", "a", status={"phase": "Running", "message": "x" * 1000}, spec={"nodeName": "n"})
    del stranger["metadata"]["ownerReferences"]
    stranger["metadata"]["annotations"] = {"heterps.io/process": "x" * 100_000}
    assert store.put(stranger)
    assert names(store, "a") == set()
    kept = store.get("space", "stranger")
    assert kept is not None
    assert (kept["spec"], kept["status"]) == ({"nodeName": "n"}, {"phase": "Running"})
    assert kept["metadata"]["annotations"] == {}, "a stranger's texts take no memory"


def test_a_pod_stays_what_it_was_whatever_is_written_on_it_later() -> None:
    store = PodStore()
    worker = pod("a-0", "a")
    worker["metadata"]["annotations"] = {"heterps.io/process": process_text(CPU_WORKER), "heterps.io/note": "1"}
    store.put(worker)
    changed = copy.deepcopy(worker)
    changed["metadata"]["labels"] = {"heterps.io/job": "b"}
    changed["metadata"]["annotations"] = {"heterps.io/process": '{"units": "1"}', "heterps.io/note": "2"}
    del changed["metadata"]["ownerReferences"]  # as --cascade=orphan does
    store.put(changed)
    [kept] = store.of_job(job("a"))
    assert process_of(kept) == CPU_WORKER
    assert kept["metadata"]["annotations"]["heterps.io/note"] == "2"
    assert names(store, "b") == set()
    store.remove(changed)
    assert names(store, "a") == set()
    other = copy.deepcopy(changed)
    other["metadata"]["uid"] = "2"
    store.put(worker)
    store.put(other)  # another pod of the same name
    assert names(store, "a") == set()


def test_what_nobody_reads_of_a_pod_is_not_kept() -> None:
    store = PodStore()
    made = pod("a-0", "a", spec={"nodeName": "n", "volumes": [{"name": "v"}] * 50}, status={"phase": "Running"})
    made["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    made["metadata"]["labels"]["app.kubernetes.io/name"] = "heterps"
    made["metadata"]["resourceVersion"] = "17"
    made["status"]["hostIPs"] = [{"ip": "10.0.0.1"}]
    assert store.put(made)
    [kept] = store.of_job(job("a"))
    assert kept["spec"] == {"nodeName": "n"}
    assert "managedFields" not in kept["metadata"]
    assert kept["status"] == {"phase": "Running"}
    assert kept["metadata"]["labels"] == {"heterps.io/job": "a"}
    made["metadata"]["resourceVersion"] = "18"
    assert not store.put(made)  # a field that is not read has changed


def test_heartbeats_of_a_node_are_no_news() -> None:
    store = ObjectStore(slim_node)
    node = {
        "metadata": {"name": "n", "labels": {"pool": "cpu"}},
        "status": {
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}],
        },
    }
    assert store.put(node)
    node["status"]["conditions"][0]["lastHeartbeatTime"] = "2"  # type: ignore[index]
    assert not store.put(node)
    node["status"]["conditions"][0]["status"] = "Unknown"  # type: ignore[index]
    assert store.put(node)
