"""PodGroups against the schemas of their schedulers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.names import object_path
from tests.cluster.api_server import ApiServer
from tests.cluster.conftest import unbuilt
from tests.cluster.kubectl import Kubectl
from tests.cluster.schemas import schema_folder
from tests.cluster.test_kubernetes_objects import at, lost
from tests.heterps_operator.helpers.documents import POOLS, make_job
from tests.heterps_operator.kubernetes.test_objects import PLAN

GROUPS = {"Volcano": "podgroups.scheduling.volcano.sh", "Coscheduling": "podgroups.scheduling.x-k8s.io"}


@pytest.fixture(scope="module")
def pod_groups(admin: Kubectl) -> Iterator[None]:
    """Install the PodGroup definitions of both projects."""
    if not schema_folder().exists():
        unbuilt("the schemas of other schedulers are")
    for file in sorted(schema_folder().iterdir()):
        crd = yaml.safe_load(file.read_text())
        if crd["metadata"]["name"] in GROUPS.values():
            admin("apply", "--server-side", "--filename=-", text=json.dumps(crd))
    for name in GROUPS.values():
        admin("wait", "--for=condition=Established", f"crd/{name}", "--timeout=300s")
    yield
    admin("delete", "crd", *GROUPS.values())


@pytest.mark.usefixtures("pod_groups")
@pytest.mark.parametrize("gang", GROUPS)
def test_a_group_is_one_that_its_scheduler_knows(admin: Kubectl, kubectl: Kubectl, gang: str) -> None:
    policy = {"gang": gang, "priorityClassName": "high"} | ({"queue": "team-a"} if gang == "Volcano" else {})
    job = make_job(runPolicy={"schedulingPolicy": policy})
    [group] = objects.pod_groups(job, PLAN, 2, POOLS)
    group = at(group, kubectl)
    path = object_path(group)
    reply = ApiServer(admin.kubeconfig).would_create(path.rsplit("/", 1)[0], group)
    assert reply.code == 201, reply.message
    assert lost(group, reply.body) == []
