"""Pods that falsely claim to belong to a job: the operator reports them, and jobs get all units."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.kubernetes.api import connect
from heterps_operator.kubernetes.reading.complaints import unreadable
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.kubernetes.reading.readable import NODE, POOL
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.cluster.helm import Helm, grant, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE, Operator

Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


def stranger(name: str, pool: str, **process: Any) -> Json:
    """Return a pod that waits forever, with a job's label and an invented annotation."""
    worker = ProcessSpec("worker-0-0", Role.WORKER, pool, 1, stage=0, index=0)
    text = json.dumps({**json.loads(process_text(worker)), **process}, separators=(",", ":"))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"heterps.io/job": "x"},
            "annotations": {"heterps.io/process": text},
        },
        "spec": {
            "nodeSelector": {"heterps.io/no-such-node": "true"},
            "containers": [{"name": "heterps", "image": "registry.example.com/none:1"}],
        },
    }


def told(kubectl: Kubectl, name: str) -> list[Json]:
    """Return the operator's events about a pod."""
    found = kubectl.items("events", f"--field-selector=involvedObject.kind=Pod,involvedObject.name={name}")
    return [event for event in found if event["source"].get("component") == "heterps-operator"]


def test_a_pod_that_only_says_that_it_is_a_job_s_harms_nobody(
    make_alone: Callable[..., ClusterJob], make_operator: Callable[..., Operator], kubectl: Kubectl, admin: Kubectl
) -> None:
    """The running operator continues, and the next one starts among such pods."""
    other = Kubectl(admin.kubeconfig, admin.cache, f"{kubectl.namespace}-other")
    admin("create", "namespace", str(other.namespace))
    try:
        wait_until("pods can be created", lambda: not other.try_to("get", "serviceaccount", "default").code, 30)
        operator = make_operator("strangers")
        operator.start()
        first, second = make_alone("first"), make_alone("second")
        words = {
            "text": 'units must be a whole number from 0 to 1000000, is "1"',
            "greedy": "units must be a whole number from 0 to 1000000, is 1000000000",
            "forged": "metadata.ownerReferences names no HeterPSJob: it occupies no units of a pool",
        }
        other.apply(
            stranger("text", first.pool_name, units="1"),
            stranger("greedy", first.pool_name, units=1_000_000_000),
            stranger("forged", first.pool_name, units=1_000_000),
        )
        for name, said in words.items():
            wait_until(f"{name} is told", lambda name=name: told(other, name), 60, more=operator.story)  # type: ignore[misc]
            [event] = told(other, name)
            assert (event["type"], event["reason"]) == ("Warning", "Ignored" if name == "forged" else "Unreadable")
            assert said in event["message"]
        first.submit().wait_for_phase("Succeeded")
        operator.stop()

        operator.start()
        second.submit().wait_for_phase("Succeeded")
        wait_until("all is given back", lambda: second.held_units() == 0, 60, more=operator.story)
        assert operator.running
        log = operator.story()
        assert "Traceback" not in log
        assert "forbidden" not in log.lower()
        operator.stop()
        assert {name: len(told(other, name)) for name in words} == dict.fromkeys(words, 1), "once, by both together"
    finally:
        admin("delete", "namespace", str(other.namespace), "--wait=false")


def test_nodes_and_pools_are_told_with_the_rights_of_one_namespace(
    kubectl: Kubectl, admin: Kubectl, helm: Helm, custom_resources: None, make_alone: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The API server accepts events about cluster-scoped objects in `default` only."""
    assert kubectl.namespace is not None
    if admin.try_to("get", "namespace", NAMESPACE).code:
        admin("create", "namespace", NAMESPACE)
    account = grant(helm, admin, "telling", NAMESPACE, [kubectl.namespace])
    api = connect(str(kubeconfig_of(admin, tmp_path, account, NAMESPACE)))
    job = make_alone("told")
    kubectl.apply(job.pool)
    pool, node = kubectl.get("devicepool", job.pool_name), admin.items("nodes")[0]
    complaint = unreadable(POOL, UnreadableError("spec.maxUnits", "x", f"a number, in {kubectl.namespace}"))

    def events(uid: str) -> list[Json]:
        found = admin.items("events", "--namespace=default", f"--field-selector=involvedObject.uid={uid}")
        return [event for event in found if event["message"] == complaint.message]

    def tell() -> bool:
        recorder = ProblemRecorder(api, time.time, 0.0)
        recorder.tell(POOL, pool, complaint)
        recorder.tell(NODE, node, complaint)
        recorder.close()
        recorder.run(threading.Event())
        return all(events(item["metadata"]["uid"]) for item in (pool, node))

    wait_until("the roles hold, and both are told", tell, 30)
    assert [len(events(item["metadata"]["uid"])) for item in (pool, node)] == [1, 1]


def test_a_job_whose_fields_nest_deeply_stops_no_other(
    make_alone: Callable[..., ClusterJob], make_operator: Callable[..., Operator], kubectl: Kubectl
) -> None:
    """The API server accepts 10,000 levels; Python's json module gives up at 1,000, in watches and lists alike."""
    operator = make_operator("depth")
    operator.start()
    deep, first, second = make_alone("deep"), make_alone("first"), make_alone("second")
    kubectl.apply(deep.pool)
    deep.job["spec"]["podTemplates"] = {"all": {"spec": {"deep": "LISTS"}}}
    text = json.dumps(deep.job).replace('"LISTS"', "[" * 5000 + "]" * 5000)
    kubectl("create", "--filename=-", text=text)
    wait_until("it is told", lambda: deep.told("Unreadable"), 60, more=operator.story)
    first.submit().wait_for_phase("Succeeded")
    operator.stop()

    operator.start()
    second.submit().wait_for_phase("Succeeded")
    kubectl("delete", "heterpsjob", "deep", "--timeout=60s")
    wait_until("all is given back", lambda: second.held_units() == 0, 60, more=operator.story)
    assert "Traceback" not in operator.story()
