"""Pods and other objects of a job, against the API server: accepted without changes or losses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from heterps_operator.kubernetes.api import KubernetesApi, connect
from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.names import object_path
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.cluster.api_server import ApiServer
from tests.cluster.kubectl import Kubectl
from tests.heterps_operator.helpers.documents import CPU_WORKER, PROFILER, SERVER, SPECS, Json, make_job, pod_of
from tests.heterps_operator.kubernetes.test_objects import MOVES, PLAN, all_objects

TEMPLATE = {
    "metadata": {"labels": {"team": "ads"}, "annotations": {"example.com/note": "mine"}},
    "spec": {
        "serviceAccountName": "default",
        "imagePullSecrets": [{"name": "registry"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"heterps.io/role": "ps"}}},
        }]}},
        "initContainers": [{"name": "fetch", "image": "example.com/fetch:1"}],
        "containers": [
            {"name": "heterps", "env": [{"name": "MINE", "value": "1"}],
             "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
             "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            {"name": "sidecar", "image": "example.com/sidecar:1"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}  # fmt: skip
NOT_ROOT = {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}}


@pytest.fixture
def server(admin: Kubectl) -> ApiServer:
    return ApiServer(admin.kubeconfig)


@pytest.fixture
def client(admin: Kubectl) -> KubernetesApi:
    return connect(str(admin.kubeconfig))


@pytest.fixture
def priority(admin: Kubectl, kubectl: Kubectl) -> Iterator[str]:
    """A PriorityClass, which is cluster-scoped."""
    name = f"high-{kubectl.namespace}"
    admin("create", "priorityclass", name, "--value=1000")
    yield name
    admin("delete", "priorityclass", name)


def at(item: Json, kubectl: Kubectl) -> Json:
    """Return the object in the test's namespace."""
    moved = copy.deepcopy(item)
    moved["metadata"]["namespace"] = kubectl.namespace
    return moved


CODE: list[Json] = [
    {"configMap": {"name": "heterps-code-1", "sha256": "1" * 64}},
    {"archive": {"uri": "s3://bucket/code.zip", "sha256": "1" * 64}},
    {"git": {"repository": "https://git.example.com/r", "revision": "1" * 40, "secretName": "git"}},
]


def lost(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Return paths whose values the server did not keep; its additions are ignored."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [fault for key, value in sent.items() for fault in lost(value, stored.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) <= len(stored):
        return [fault for i, value in enumerate(sent) for fault in lost(value, stored[i], f"{path}[{i}]")]
    return [] if sent == stored else [f"{path}: {sent!r} became {stored!r}"]


def check(server: ApiServer, item: Json) -> None:
    """Fail unless the server would store the object unchanged. Quantities may be reformatted."""
    reply = server.would_create(object_path(item).rsplit("/", 1)[0], item)
    assert reply.code == 201, reply.message
    changed = [line for line in lost(item, reply.body) if ".resources." not in line]
    assert changed == []


def test_objects_are_kept_as_they_are(server: ApiServer, kubectl: Kubectl) -> None:
    for item in all_objects():
        check(server, at(item, kubectl))


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_pods_are_kept_as_they_are_under_the_pod_security_standards(
    server: ApiServer, kubectl: Kubectl, admin: Kubectl, level: str
) -> None:
    admin("label", "namespace", str(kubectl.namespace), f"pod-security.kubernetes.io/enforce={level}")
    # The image decides who it runs as, so a restricted namespace needs a word from the job.
    templates = {"podTemplates": {"all": NOT_ROOT}} if level == "restricted" else {}
    for spec in SPECS:
        check(server, at(pod_of(spec, make_job(**templates), plan_revision=3), kubectl))
    for code in CODE:
        job = make_job(**templates, code=code, credentials=[{"secretName": "s3"}])
        for spec in (CPU_WORKER, PROFILER):
            check(server, at(pod_of(spec, job), kubectl))


def test_pods_with_a_template_are_kept_as_they_are(server: ApiServer, kubectl: Kubectl) -> None:
    job = make_job(podTemplates={"all": TEMPLATE})
    for spec in SPECS:
        check(server, at(pod_of(spec, job), kubectl))


@pytest.mark.parametrize("gang", ["None", "Kueue", "Volcano", "Coscheduling"])
def test_pods_of_gangs_are_kept_as_they_are(server: ApiServer, kubectl: Kubectl, priority: str, gang: str) -> None:
    policy = {"gang": gang, "queue": "team-a", "priorityClassName": priority}
    job = make_job(runPolicy={"schedulingPolicy": policy})
    for spec in (SERVER, CPU_WORKER):
        check(server, at(pod_of(spec, job), kubectl))


def test_the_longest_names_fit(server: ApiServer, kubectl: Kubectl) -> None:
    job = make_job()
    job["metadata"]["name"] = "j" * 40
    spec = ProcessSpec("profile-" + "p" * 55, Role.PROFILE, "cpu", 1, incarnation=100, attempt=1000)
    check(server, at(pod_of(spec, job), kubectl))
    for item in (objects.service(job), objects.run_config(job, {}), objects.plan_config(job, 99_999, {})):
        check(server, at(item, kubectl))
    for item in (*objects.disruption_budgets(job, PLAN, MOVES), objects.network_policy(job, "heterps-system", ())):
        check(server, at(item, kubectl))


def test_applying_again_changes_nothing(client: KubernetesApi, kubectl: Kubectl) -> None:
    for item in (at(item, kubectl) for item in all_objects()):
        # The garbage collector would delete an object with a missing owner.
        del item["metadata"]["ownerReferences"]
        first = client.apply(object_path(item), item)
        again = client.apply(object_path(item), item)
        # Some have a controller that writes their status; their generation counts changes of the rest.
        key = "generation" if "generation" in first["metadata"] else "resourceVersion"
        assert again["metadata"][key] == first["metadata"][key], object_path(item)
        assert lost(item, again) == []
