"""Fake nodes: kwok simulates their kubelets, so that a thousand of them fit beside a real control plane.

Pods on these nodes are bound by the real scheduler and become Running; nothing runs in them. All their addresses lead
to the cluster's own network namespace, where a program may listen on them (`coordinators.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_operator.kubernetes.api import KubernetesApi
from tests.cluster.addresses import IPV4
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import Daemon

PODS = "10.200.0.0/16"
# These nodes have no renewed leases, and their status is as old as a real kubelet's may become: five minutes.
NODE_GRACE_SECONDS = 3600
_LABEL = {"heterps.test/kwok": "true"}
_NODES = "/api/v1/nodes"

# The templates are Go's. A node reports every five minutes, as kubelets do; pods run as soon as they are bound, and
# disappear as soon as they are deleted.
_STAGES = """\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-heartbeat}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: In, values: ["True"]}
  delay: {durationMilliseconds: 270000, jitterDurationMilliseconds: 330000}
  next:
    statusTemplate: |
      conditions:
      - type: Ready
        status: "True"
        reason: KubeletReady
        message: kubelet is posting ready status
        lastHeartbeatTime: {{ Now | Quote }}
        lastTransitionTime: {{ .metadata.creationTimestamp | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      phase: Running
      startTime: {{ $now | Quote }}
      conditions:
      {{ range ( list "Initialized" "PodReadyToStartContainers" "Ready" "ContainersReady" ) }}
      - {type: {{ . }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        imageID: ""
        containerID: containerd://0
        ready: true
        started: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
      {{ range PodIPsWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
      podIP: {{ . | Quote }}
      podIPs: [{ip: {{ . | Quote }}}]
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true}
"""


@dataclass(frozen=True)
class FakeNode:
    """A node simulated by kwok."""

    name: str
    labels: Mapping[str, str]
    capacity: Mapping[str, str]  # in addition to 110 pods

    def manifest(self) -> dict[str, Any]:
        """Return the node, as its kubelet would register it."""
        capacity = {"memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "110", **self.capacity}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {**_LABEL, "kubernetes.io/hostname": self.name, **self.labels}},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [ready],
                "addresses": [{"type": "InternalIP", "address": IPV4.host}, {"type": "Hostname", "address": self.name}],
            },
        }


def play(cluster: Cluster, api: KubernetesApi, nodes: Sequence[FakeNode], program: Path) -> Daemon:
    """Add nodes to a cluster, simulated by kwok for the lifetime of the cluster.

    Args:
        cluster: running cluster with `node_grace_seconds=NODE_GRACE_SECONDS`; the calling thread is in its network.
        api: its API server.
        nodes: nodes to add.
        program: path of kwok.
    """
    stages = cluster.place.folder / "kwok.yaml"
    stages.write_text(_STAGES)
    cluster.sandbox.run("ip", "route", "add", "local", PODS, "dev", "lo")
    [(label, value)] = _LABEL.items()
    daemon = cluster.daemons.start("kwok", [
        program,
        f"--kubeconfig={cluster.place.kubeconfig}",
        f"--config={stages}",
        f"--cidr={PODS}",
        f"--node-ip={IPV4.host}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={label}={value}",
        "--node-lease-duration-seconds=0",  # saves a hundred unused writes per second
    ])  # fmt: skip
    # Requests of one connection queue; more connections would not be faster on two cores.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda node: api.create(_NODES, node.manifest()), nodes))
    return daemon
