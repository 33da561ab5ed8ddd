"""Builder of Kueue's Workloads: a job's requests for the quota of a queue. Pure.

Kueue reads the pods' requests, node selectors and tolerations from a Workload, and decides by them whether the job may
start, and with the quota of which ResourceFlavor. Its type is documented in Kueue's reference, kueue.x-k8s.io/v1beta1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.building.pods import build_pod, scheduling_policy
from heterps_operator.kubernetes.names import (
    ANNOTATION_PROCESSES,
    ANNOTATION_REQUEST,
    job_labels,
    owner_reference,
    workload_name,
)
from heterps_operator.state.values import ProcessSpec, RequestQuota
from heterps_runtime.contract import Role

__all__ = ["LABEL_PRIORITY", "Priority", "build_workload"]

LABEL_PRIORITY = "kueue.x-k8s.io/priority-class"  # of a job: its WorkloadPriorityClass
_LABEL_JOB_UID = "kueue.x-k8s.io/job-uid"


@dataclass(frozen=True)
class Priority:
    """The priority of a job in its queue."""

    name: str  # of the class
    source: str  # group and kind of the class, as Kueue writes them
    value: int


def build_workload(
    job: Json, pools: Mapping[str, Json], request: RequestQuota, priority: Priority | None
) -> dict[str, Any]:
    """Build the Workload of a request.

    Args:
        job: the HeterPSJob.
        pools: its DevicePools with defaults, by name.
        request: the request.
        priority: of the job; None: that of a job without a class, 0.
    """
    metadata = job["metadata"]
    sets: dict[str, list[ProcessSpec]] = {}
    for process in request.processes:
        sets.setdefault(_set_name(process), []).append(process)
    spec: dict[str, Any] = {
        "queueName": str(scheduling_policy(job)["queue"]),
        "active": request.active,
        "podSets": [
            {"name": name, "count": len(members), "template": _template(job, pools, members[0])}
            for name, members in sets.items()
        ],
    }
    if priority is not None:
        spec |= {
            "priorityClassName": priority.name,
            "priorityClassSource": priority.source,
            "priority": priority.value,
        }
    names = {name: [process.name for process in members] for name, members in sets.items()}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(str(metadata["name"]), request.name),
            "namespace": str(metadata["namespace"]),
            "labels": {**job_labels(str(metadata["name"])), _LABEL_JOB_UID: str(metadata["uid"])},
            "annotations": {
                ANNOTATION_REQUEST: request.name,
                ANNOTATION_PROCESSES: json.dumps(names, separators=(",", ":")),
            },
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def _set_name(process: ProcessSpec) -> str:
    """Name of the pod set of a process: pods of one set are alike."""
    match process.role:
        case Role.COORDINATOR:
            return "coordinator"
        case Role.PS:
            return f"ps-{process.units}"  # servers that share a core request none
        case Role.WORKER:
            return f"stage-{process.stage}"
        case Role.PROFILE:
            return process.name


def _template(job: Json, pools: Mapping[str, Json], process: ProcessSpec) -> dict[str, Any]:
    """Return what Kueue reads of a pod."""
    pool = None if process.pool is None else pools[process.pool]
    pod = build_pod(job, pool, process, coordinator="http://coordinator", pools=pools.values())
    return {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
