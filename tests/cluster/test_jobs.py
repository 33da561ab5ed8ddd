"""Jobs on a real cluster: applied, planned, trained, stopped, deleted."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from heterps_operator.kubernetes.names import COORDINATOR_PORT, MESSAGE_PORT, METRICS_PORT
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_runtime.contract import PATH_METRICS
from tests.cluster.cluster import POOL_LABEL
from tests.cluster.faults import COMPARED
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import wait_until
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(600)


def test_a_job_is_trained_in_pods_on_the_right_nodes(make: Make) -> None:
    job = make("trained").submit()
    job.wait_for_phase("Running")
    for pod in job.pods():
        if pod["metadata"]["labels"]["heterps.io/role"] in ("ps", "worker"):
            assert pod["spec"]["nodeName"].startswith("cpu-")
            [container] = pod["spec"]["containers"]
            assert container["resources"]["limits"]["cpu"] == "1"
            assert pod["spec"]["automountServiceAccountToken"] is False
    status = job.wait_for_phase("Succeeded")
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 400
    assert float(status["cost"]["total"]) > 0
    assert status["plan"]["summary"] == f"{job.pool_name} x1 [tables..output]"
    assert job.condition("Succeeded")["status"] == "True"
    assert set(job.model()) == {
        "tables.carrier.weight",
        "tables.origin.weight",
        *(f"{layer}.{part}" for layer in ("linear", "output") for part in ("weight", "bias")),
    }
    reasons = {
        event["reason"] for event in job.kubectl.items("events") if event["involvedObject"]["kind"] == "HeterPSJob"
    }
    assert reasons >= {"PlanComputed", "AllReady"}
    wait_until("its pods have ended", lambda: not [p for p in job.pods() if p["status"]["phase"] == "Running"])


def test_a_suspended_job_goes_on_from_its_checkpoint_to_the_model_of_plain_pytorch(
    make: Make, expected_model: dict[str, Any]
) -> None:
    spill = {"memory": "4Ki", "maxBytes": "64Mi"}  # the server makes its file on the node's disk
    job = make("broken", spec={**COMPARED, "parameterServer.spill": spill}).submit()
    job.wait_for_step(60)
    [server] = job.pods("ps")
    assert server["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "64Mi"
    job.patch({"runPolicy": {"suspend": True}})
    status = job.wait_for_phase("Suspended")
    assert 60 <= status["checkpoint"]["step"] < 400
    wait_until("its pods are gone", lambda: not [p for p in job.pods() if p["status"]["phase"] == "Running"])
    job.patch({"runPolicy": {"suspend": False}})
    job.wait_for_phase("Succeeded")
    assert_same_model(job.model(), expected_model)


def test_a_job_that_encrypts_trains_the_model_of_plain_pytorch(make: Make, expected_model: dict[str, Any]) -> None:
    job = make("encrypted", spec={**COMPARED, "encryption": "Required"}).submit()
    job.wait_for_step(60)
    assert job.coordinator().address.startswith("https://")
    [coordinator] = job.pods("coordinator")
    address, token = str(coordinator["status"]["podIP"]), job.token()
    with pytest.raises(CoordinatorError, match="does not answer"):
        CoordinatorClient(f"http://{address}:{COORDINATOR_PORT}", token).status()
    with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}{PATH_METRICS}", timeout=30) as answer:
        assert b"heterps_training_committed_steps" in answer.read()
    listening = {(role, port) for role in ("coordinator", "ps", "worker") for port in ports_that_answer(job, role)}
    assert listening == {
        *(("coordinator", port) for port in (COORDINATOR_PORT, METRICS_PORT, MESSAGE_PORT)),
        *((role, port) for role in ("ps", "worker") for port in (METRICS_PORT, MESSAGE_PORT)),
    }
    job.wait_for_phase("Succeeded")
    assert_same_model(job.model(), expected_model)


def ports_that_answer(job: ClusterJob, role: str) -> list[int]:
    """Connect to each port that the pod of a role declares, and return these ports."""
    [pod] = job.pods(role)
    [container] = pod["spec"]["containers"]
    ports = [int(port["containerPort"]) for port in container["ports"]]
    for port in ports:
        socket.create_connection((str(pod["status"]["podIP"]), port), timeout=30).close()
    return ports


@pytest.mark.usefixtures("own_cluster")  # which has both families
def test_pods_with_addresses_of_both_families_use_the_first(make: Make) -> None:
    job = make("dual-stack").submit()
    job.wait_for_step(20)
    for pod in job.pods():
        first, second = (ip_address(entry["ip"]) for entry in pod["status"]["podIPs"])
        assert (first.version, second.version) == (4, 6)
        assert str(first) == pod["status"]["podIP"]
    assert job.kubectl.get("service", job.name)["spec"]["ipFamilies"] == ["IPv4"]
    [coordinator] = job.pods("coordinator")
    _, other = coordinator["status"]["podIPs"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((other["ip"], COORDINATOR_PORT), timeout=30)
    job.wait_for_phase("Succeeded")


def test_a_deleted_job_takes_everything_with_it(make: Make) -> None:
    job = make("deleted").submit()
    job.wait_for_step(20)
    job.delete()
    kinds = "pods,services,configmaps,heterpsjobstates,secrets,poddisruptionbudgets,networkpolicies"
    wait_until(
        "nothing is left",
        lambda: not job.kubectl.items(kinds, "--selector=heterps.io/job=deleted"),
        more=job.story,
    )


def test_a_job_whose_pool_is_missing_says_so_and_begins_when_it_is_there(make: Make) -> None:
    job = make("early")
    job.kubectl.apply(job.job)
    condition = job.wait_for_condition("Planned", "False", "PoolNotFound", 20)
    assert f"there is no DevicePool {job.pool_name}" in condition["message"]
    job.kubectl.apply(job.pool)
    job.keep_profile()
    job.wait_for_phase("Profiling", "Planning", "Starting", "Running", "Succeeded")


def test_a_pod_that_fits_no_node_is_told_on_the_job(make: Make) -> None:
    job = make("homeless", pool={"nodeSelector": {"kubernetes.io/hostname": "cpu-0"}, "unitsPerPod": 2, "maxUnits": 64})
    job.job["spec"]["scheduling"]["stages"] = [{"pool": job.pool_name, "lastLayer": "output", "units": 62}]
    job.job["spec"]["pools"] = [{"name": job.pool_name}]
    job.submit()
    job.wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)
    # What is free is told again when it changes: the operator may learn of the last test's end after its first answer.
    free = f"2 of 64 of {job.pool_name} are free"
    wait_until("it is told", lambda: free in job.condition("Planned")["message"], PATIENCE_SECONDS, more=job.story)


def test_pools_on_different_nodes_are_measured_at_the_same_time(make: Make) -> None:
    job = make("measured", spec={"scheduling": {}})
    job.add_pool("other", nodeSelector={POOL_LABEL: "accelerator"})
    job.submit(profiled=False)

    def measuring() -> bool:
        nodes = {pod["spec"].get("nodeName") for pod in job.pods("profile") if pod["status"]["phase"] == "Running"}
        return len(nodes) == 2

    wait_until("both are measured", measuring, PATIENCE_SECONDS, more=job.story)
    job.wait_for_condition("Profiled", "True", "AllPoolsMeasured", PATIENCE_SECONDS)
    job.wait_for_phase("Running", "Succeeded")
