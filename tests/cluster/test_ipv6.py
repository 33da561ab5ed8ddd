"""A cluster with IPv6 only: the operator, and a job in pods."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from heterps_operator.kubernetes.api import connect
from tests.cluster.addresses import IPV6
from tests.cluster.cluster import POOL_LABEL, Cluster
from tests.cluster.conftest import need_cluster_made_here
from tests.cluster.helm import Helm, grant, install_custom_resources, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.nodes import Node
from tests.cluster.operators import NAMESPACE, Operator

pytestmark = pytest.mark.timeout(600)

# Two of them, as a coordinator costs a pool of whole cores one.
NODES = tuple(Node(name, labels={POOL_LABEL: "cpu"}) for name in ("cpu-0", "cpu-1"))


@pytest.fixture
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of this test alone."""
    need_cluster_made_here(pytestconfig)
    with Cluster(NODES, name=f"{os.getpid()}-6", addresses=IPV6) as running, running.entered():
        yield running


@pytest.fixture
def kubectl(cluster: Cluster) -> Kubectl:
    """kubectl in a namespace of this cluster."""
    install_custom_resources(cluster.kubectl)
    for name in (NAMESPACE, "ml"):
        cluster.kubectl("create", "namespace", name)
    scoped = Kubectl(cluster.kubectl.kubeconfig, cluster.kubectl.cache, "ml")
    wait_until("pods can be created", lambda: not scoped.try_to("get", "serviceaccount", "default").code, 30)
    return scoped


def test_a_job_trains_where_all_addresses_are_ipv6(
    cluster: Cluster, kubectl: Kubectl, helm: Helm, tmp_path: Path
) -> None:
    rights = kubeconfig_of(cluster.kubectl, tmp_path, grant(helm, cluster.kubectl, "tests", NAMESPACE), NAMESPACE)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    spec = {"training.steps": 40, "encryption": "Required", "runPolicy.cleanPodPolicy": "None"}
    job = ClusterJob(kubectl, connect(str(kubectl.kubeconfig)), shared, "six", spec=spec)
    with Operator(rights, tmp_path):
        status = job.submit().wait_for_phase("Succeeded")
    assert status["progress"]["step"] == 40
    assert "tables.carrier.weight" in job.model()
    pods = job.pods()
    assert len(pods) == 3, "a coordinator, a server and a worker"
    assert {ip_address(pod["status"]["podIP"]).version for pod in pods} == {6}
    service = kubectl.get("service", job.name)
    assert service["spec"]["ipFamilies"] == ["IPv6"]
