"""Pods and nodes fail: every sample is applied once, and in `sync` the model is the one that plain PyTorch trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import (
    assert_every_sample_counted,
    counting_job,
    held,
    kill_pod,
    only_pod,
    small_job,
    wait_for_successor,
)
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Model = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]


@pytest.mark.parametrize(
    ("how", "roles", "consistency"),
    # A server's pod is deleted in test_faults_operator.py.
    [("killed", ("worker", "ps", "coordinator"), "hybrid"), ("deleted", ("worker", "coordinator"), "async")],
)
def test_each_kind_of_pod_may_end_at_any_time(
    how: str, roles: Sequence[str], consistency: str, make: Make, own_cluster: Cluster
) -> None:
    """Training runs at its usual pace when a pod ends, and is then held until the pod's successor runs."""
    job = counting_job(make, how, consistency, units=2).submit()
    for number, role in enumerate(roles):
        job.wait_for_step(30 + 60 * number)
        victim = only_pod(job, role)
        if how == "killed":
            kill_pod(victim)
        else:
            job.kubectl("delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force")
        with held(job):
            wait_for_successor(job, role, victim)
    status = job.wait_for_phase("Succeeded")
    assert status["restarts"] == (3 if how == "killed" else 0)  # external deletions do not count
    assert_every_sample_counted(job)


@pytest.mark.parametrize("role", ["ps", "coordinator"])
def test_a_pod_that_is_told_to_end_costs_no_step(role: str, make: Make, expected_model: Model) -> None:
    """It is deleted with its grace period, as evictions and preemption do it, long after the last checkpoint."""
    job = small_job(make, f"told-{role}", spec={"checkpoint.everySteps": 100_000})
    job.job["spec"]["podTemplates"]["all"]["spec"]["terminationGracePeriodSeconds"] = 60
    job.submit().wait_for_step(30)
    step, victim = job.step(), only_pod(job, role)
    job.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
    wait_for_successor(job, role, victim)
    status = job.wait_for_phase("Succeeded")
    assert status["restarts"] == 0
    [resumed] = job.told("Resumed")
    assert int(resumed.split()[3]) >= step, resumed
    assert job.told("RolledBack") == []
    assert_same_model(job.model(), expected_model)


@pytest.fixture
def lonely_node(own_cluster: Cluster) -> Iterator[str]:
    """A node whose kubelet a test may stop."""
    node = own_cluster.nodes["cpu-0"]
    yield node.node.name
    assert node.kubelet is not None
    if not node.kubelet.running:
        node.start_kubelet()
    wait_until("the node is ready", lambda: is_ready(own_cluster, node.node.name), 120)


def test_a_node_that_is_not_heard_of_costs_what_its_pods_tolerate(
    make: Make, own_cluster: Cluster, lonely_node: str, expected_model: Model
) -> None:
    """Two jobs have workers on a node whose kubelet is killed; its containers keep running.

    One job tolerates the silent node. The other gives its workers up after a second: they are replaced on another node,
    while the old ones still try to take part.
    """
    patient = small_job(make, "patient", worker_on=lonely_node, tolerated_seconds=900)
    hasty = counting_job(make, "hasty", "async", worker_on=lonely_node, tolerated_seconds=1)
    with held(patient, hasty):
        for job in (patient, hasty):
            job.submit()
        for job in (patient, hasty):
            job.wait_for_step(2)
        before = {job.name: only_pod(job, "worker") for job in (patient, hasty)}
        assert {pod["spec"]["nodeName"] for pod in before.values()} == {lonely_node}
        kubelet = own_cluster.nodes[lonely_node].kubelet
        assert kubelet is not None
        kubelet.end()
        successor = wait_for_successor(hasty, "worker", before["hasty"])
        [old] = [p for p in hasty.pods("worker") if p["metadata"]["uid"] == before["hasty"]["metadata"]["uid"]]
        assert old["status"]["phase"] == "Running", "the old worker still runs"
        assert any("its node was lost" in text for text in hasty.told("ProcessRestarts"))
        wait_until("it is on another node", lambda: node_of(hasty, successor) not in ("", lonely_node), 240)
        condition = patient.wait_for_condition("PodsReady", "False", "NodeNotReady", seconds=240)
        assert f"node {lonely_node}" in condition["message"]
        step = patient.step()
        patient.wait_for_step(step + 2)
        hasty.wait_for_step(hasty.step() + 2)
        own_cluster.nodes[lonely_node].start_kubelet()
        patient.wait_for_condition("PodsReady", "True", seconds=240)
        assert only_uid(patient, "worker") == before["patient"]["metadata"]["uid"]
    for job in (patient, hasty):
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
    assert_same_model(patient.model(), expected_model)
    assert_every_sample_counted(hasty)


def is_ready(cluster: Cluster, name: str) -> bool:
    node = cluster.kubectl.get("node", name)
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    return ready and not node["spec"].get("taints")


def node_of(job: ClusterJob, pod: dict[str, Any]) -> str:
    return str(job.kubectl.get("pod", pod["metadata"]["name"])["spec"].get("nodeName") or "")


def only_uid(job: ClusterJob, role: str) -> str:
    [pod] = job.pods(role)
    return str(pod["metadata"]["uid"])
