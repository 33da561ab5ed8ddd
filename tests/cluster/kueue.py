"""Kueue's own manager in the test cluster: its program, its resources and its webhooks, from its Go module."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import building
from tests.cluster.building import KUBECTL, KUEUE, Say
from tests.cluster.errors import ClusterError
from tests.cluster.golang import environment
from tests.cluster.images import IMAGE
from tests.cluster.kubectl import Kubectl, wait_until

Json = dict[str, Any]

NAMESPACE = "kueue-system"
_MODULE = "sigs.k8s.io/kueue"
_GROUP = "kueue.x-k8s.io"
_START_SECONDS = 300
# Aggregated API servers: discovery fails while one does not answer, and with it the deletion of every namespace.
_LEFT_OUT = ("APIService",)
_PROGRAMS = "/programs"


def manifests() -> Path:
    """The objects of an installation, as its own kustomization makes them."""
    return building.folder_of(KUEUE.module) / "kueue.yaml"


def make_manifests(say: Say) -> None:
    """Render the objects of an installation, unless that was done.

    Raises:
        ClusterError: the sources cannot be found, or kubectl cannot render them.
    """
    if manifests().exists():
        return
    building.build([KUEUE, KUBECTL], say)
    command = ["go", "list", "-m", "-f", "{{.Dir}}", _MODULE]
    sources = _output(command, building.MODULES / KUEUE.module).strip()
    rendered = _output([str(building.path_of(KUBECTL)), "kustomize", f"{sources}/config/default"], building.ROOT)
    unfinished = manifests().with_suffix(".unfinished")
    unfinished.write_text(rendered)
    unfinished.replace(manifests())


def _output(command: Sequence[str], folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ClusterError(f"{' '.join(command)}: {ran.stderr[-500:]}")
    return ran.stdout


@contextmanager
def installed_kueue(admin: Kubectl) -> Iterator[None]:
    """Install Kueue, and remove it after the block."""
    items = _adapted(list(yaml.safe_load_all(manifests().read_text())))
    webhooks = [item for item in items if item["kind"].endswith("WebhookConfiguration")]
    others = [item for item in items if item not in webhooks]
    try:
        # A webhook without its server would refuse the rest.
        for some in (others, webhooks):
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": some})
            admin("apply", "--server-side", "--filename=-", text=text)
        deployment = (f"--namespace={NAMESPACE}", "deployment/kueue-controller-manager")
        ready = ("wait", "--for=condition=Available", *deployment, "--timeout=5s")
        wait_until(
            "Kueue's manager is ready",
            lambda: admin.try_to(*ready).code == 0,
            _START_SECONDS,
            more=lambda: admin.try_to("logs", *deployment, "--tail=30").output,
        )
        flavor = json.dumps({"apiVersion": f"{_GROUP}/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": "any"}})
        wait_until(
            "its webhooks answer",
            lambda: admin.try_to("apply", "--server-side", "--filename=-", text=flavor).code == 0,
            _START_SECONDS,
        )
        yield
    finally:
        kinds = {"Namespace", "CustomResourceDefinition", *(item["kind"] for item in webhooks)}
        names = [f"{item['kind']}/{item['metadata']['name']}" for item in webhooks]
        admin.try_to("delete", *names)
        admin.try_to("delete", "workloads,localqueues,clusterqueues,resourceflavors", "--all", "--all-namespaces")
        rest = [item for item in others if item["kind"] in kinds or not item["metadata"].get("namespace")]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": rest})
        admin.try_to("delete", "--ignore-not-found", "--wait=false", "--filename=-", text=text)


def queue(namespace: str, name: str, quota: dict[str, int | str], **spec: Any) -> tuple[Json, Json]:
    """Return a ClusterQueue with a quota, and a namespace's LocalQueue of the same name.

    Args:
        namespace: of the jobs.
        name: of both queues.
        quota: by resource.
        spec: adds fields to the spec of the ClusterQueue.
    """
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    flavor = {"name": "any", "resources": resources}
    cluster_queue = {
        "apiVersion": f"{_GROUP}/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceGroups": [{"coveredResources": list(quota), "flavors": [flavor]}],
            **spec,
        },
    }
    local_queue = {
        "apiVersion": f"{_GROUP}/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": name},
    }
    return cluster_queue, local_queue


def _adapted(items: list[Json]) -> list[Json]:
    """Let the manager run from the machine's program, and its webhooks concern Kueue's own objects only."""
    kept = [item for item in items if item["kind"] not in _LEFT_OUT]
    for item in kept:
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            [manager] = pod["containers"]
            pod["securityContext"] = {"runAsUser": 65532, "runAsNonRoot": True}
            pod["volumes"].append({"name": "programs", "hostPath": {"path": str(building.folder_of(KUEUE.module))}})
            manager["volumeMounts"].append({"name": "programs", "mountPath": _PROGRAMS, "readOnly": True})
            manager |= {"image": IMAGE, "imagePullPolicy": "Never", "command": [f"{_PROGRAMS}/{KUEUE.name}"]}
            manager["args"].append("--feature-gates=VisibilityOnDemand=false")
            manager["resources"] = {"requests": {"cpu": "10m"}}
            manager["readinessProbe"] |= {"initialDelaySeconds": 0, "periodSeconds": 1}
        elif item["kind"].endswith("WebhookConfiguration"):
            item["webhooks"] = [
                hook for hook in item["webhooks"] if all(rule["apiGroups"] == [_GROUP] for rule in hook["rules"])
            ]
    return kept
