"""The oldest supported Kubernetes: its API server takes what ours does, and the operator works with it.

There is a control plane and a node on paper, without a kubelet, so pods are made and scheduled, and never run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.kubernetes.api import connect
from tests.cluster import test_crd_values, test_kubernetes_objects
from tests.cluster.api_server import ApiServer
from tests.cluster.building import OLDEST, kubernetes_version, missing
from tests.cluster.cluster import POOL_LABEL, Cluster
from tests.cluster.conftest import need_cluster_made_here, unbuilt
from tests.cluster.helm import CHART, INSTALLED, Helm, installed_chart, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.kwok import NODE_GRACE_SECONDS, FakeNode
from tests.cluster.operators import Operator
from tests.heterps_operator.api.mutations import FULL
from tests.heterps_operator.helpers.documents import SPECS, make_job, pod_of
from tests.heterps_operator.kubernetes.test_objects import all_objects

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

TEAM = "ml"
OBJECTS = ("service", "configmap", "secret", "networkpolicy", "poddisruptionbudget", "heterpsjobstate", "pod")


@pytest.fixture(scope="module")
def oldest(pytestconfig: pytest.Config) -> Iterator[Kubectl]:
    """kubectl with all rights on its API server."""
    need_cluster_made_here(pytestconfig)
    if missing(list(OLDEST.values())):
        unbuilt("the oldest supported Kubernetes is")
    name = f"{os.getpid()}-oldest"
    with (
        Cluster((), name=name, node_grace_seconds=NODE_GRACE_SECONDS, control_plane=OLDEST) as cluster,
        cluster.entered(),
    ):
        api = connect(str(cluster.kubectl.kubeconfig))
        api.create("/api/v1/nodes", FakeNode("on-paper", {POOL_LABEL: "cpu"}, {"cpu": "8"}).manifest())
        cluster.kubectl("create", "namespace", TEAM)
        yield cluster.kubectl


@pytest.fixture(scope="module")
def chart(oldest: Kubectl, helm: Helm) -> Iterator[None]:
    """The chart is installed; the operator's pod never runs, as there is no kubelet."""
    with installed_chart(helm, oldest, CHART):
        wait_until(
            "the API server serves the custom resources",
            lambda: not oldest.try_to("get", "heterpsjobs,heterpsjobstates", f"--namespace={TEAM}").code,
        )
        yield


def test_its_version_is_the_one_that_the_chart_asks_for(oldest: Kubectl) -> None:
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    served = json.loads(oldest("get", "--raw=/version"))["gitVersion"]
    assert served == kubernetes_version("kubernetes-oldest")
    assert wanted == f">={'.'.join(served.removeprefix('v').split('.')[:2])}.0-0"


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_its_rules_refuse_every_wrong_value(oldest: Kubectl, manifest: Json) -> None:
    server = ApiServer(oldest.kubeconfig)
    test_crd_values.test_every_wrong_value_is_refused_and_its_field_is_named(server, manifest)


@pytest.mark.usefixtures("chart")
def test_it_keeps_the_objects_of_a_job_as_they_are(oldest: Kubectl) -> None:
    server = ApiServer(oldest.kubeconfig)
    team = Kubectl(oldest.kubeconfig, oldest.cache, TEAM)
    for item in (*all_objects(), *(pod_of(spec, make_job(), plan_revision=3) for spec in SPECS)):
        test_kubernetes_objects.check(server, test_kubernetes_objects.at(item, team))


@pytest.mark.usefixtures("chart")
def test_the_operator_plans_a_job_and_makes_its_objects(oldest: Kubectl, tmp_path: Path) -> None:
    """With the rights that the chart has granted, and behind the chart's admission policy."""
    team = Kubectl(oldest.kubeconfig, oldest.cache, TEAM)
    job = ClusterJob(team, connect(str(team.kubeconfig)), tmp_path / "shared", "old")
    unrunnable = {**job.job, "spec": {name: value for name, value in job.job["spec"].items() if name != "image"}}
    apply = ("apply", "--server-side", "--dry-run=server", "--filename=-")

    def refusal() -> str:
        return team.try_to(*apply, text=json.dumps(unrunnable)).errors  # a new policy is in force after a moment

    wait_until("the admission policy refuses it", lambda: "spec.image: must be set on a cluster" in refusal())
    rights = kubeconfig_of(oldest, tmp_path, "heterps", INSTALLED)
    lease = (f"--lease-namespace={INSTALLED}", "--lease-name=heterps")  # as the chart says
    with Operator(rights, tmp_path, *lease):
        job.submit()
        job.wait_for_condition("Planned", "True")
        wait_until("its coordinator is scheduled", lambda: scheduled(job), more=job.story)
    owned = team.items(",".join(OBJECTS), "--selector=heterps.io/job=old")
    assert {item["kind"].lower() for item in owned} == set(OBJECTS)


def scheduled(job: ClusterJob) -> bool:
    """Return whether its coordinator has a node."""
    return any(pod["spec"].get("nodeName") == "on-paper" for pod in job.pods("coordinator"))
