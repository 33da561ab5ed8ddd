"""Objects as an API server returns them: a job, its pools, its pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from heterps_operator.kubernetes.building.pods import build_pod
from heterps_operator.kubernetes.names import owner_reference
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role

Json = dict[str, Any]

NOW = 1_700_000_000.0
COORDINATOR = ProcessSpec("coordinator", Role.COORDINATOR)
SERVER = ProcessSpec("ps-0", Role.PS, "cpu", 2, 2, index=0)
CPU_WORKER = ProcessSpec("worker-0-1", Role.WORKER, "cpu", 4, 4, stage=0, index=1)
GPU_WORKER = ProcessSpec("worker-1-0", Role.WORKER, "v100", 1, stage=1, index=0)
PROFILER = ProcessSpec("profile-v100", Role.PROFILE, "v100", 1)
SPECS = (COORDINATOR, SERVER, CPU_WORKER, GPU_WORKER, PROFILER)

POOLS: dict[str, Json] = {
    "cpu": {
        "metadata": {"name": "cpu"},
        "spec": {
            "deviceType": "CPU", "resourceName": "cpu", "torchDevice": "cpu", "unitsPerPod": 4, "maxUnits": 64,
            "pricePerUnitHour": "0.04",
        },
    },
    "v100": {
        "metadata": {"name": "v100"},
        "spec": {
            "deviceType": "GPU", "resourceName": "nvidia.com/gpu", "torchDevice": "cuda", "unitsPerPod": 1,
            "maxUnits": 8, "pricePerUnitHour": "2.42", "nodeSelector": {"node.example.com/gpu": "v100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    },
}  # fmt: skip


def make_job(**spec: Any) -> Json:
    """Return a HeterPSJob; `spec` adds fields to its spec."""
    return {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": "flights", "namespace": "ml", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": {
            "image": "registry.example.com/flights:1",
            "model": {"entrypoint": "flights.model:build"},
            "data": {"format": "parquet", "train": "s3://bucket/train"},
            "training": {"globalBatchSize": 4096},
            "pools": [{"name": "cpu"}, {"name": "v100"}],
            "parameterServer": {"replicas": 1, "memoryLimit": "8Gi"},
            **spec,
        },
    }


def owner(job: str, uid: str = "") -> Json:
    """Return an ownerReference to a job, whose uid is its name by default."""
    return owner_reference({"metadata": {"name": job, "uid": uid or job}})


def of_pool(job: Json, name: str, template: Any) -> None:
    """Give a job's pool a pod template."""
    next(pool for pool in job["spec"]["pools"] if pool["name"] == name)["podTemplate"] = template


def pod_of(spec: ProcessSpec, job: Json | None = None, **options: Any) -> Json:
    """Return the pod that is built for a process."""
    coordinator = None if spec.role == "coordinator" else "http://10.0.0.7:7400"
    pool = None if spec.pool is None else POOLS[spec.pool]
    return build_pod(job or make_job(), pool, spec, coordinator=coordinator, **options)


def container_of(pod: Json, name: str = "heterps") -> Json:
    """Return a container of a pod."""
    [container] = [c for c in pod["spec"]["containers"] if isinstance(c, dict) and c.get("name") == name]
    found: Json = container
    return found


def stamp(seconds: float) -> str:
    """Format a time as the API does."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def observed(
    spec: ProcessSpec = CPU_WORKER, *, created: float = NOW, deleted: float | None = None, **status: Any
) -> Json:
    """Return the pod as read back from the API server.

    Args:
        spec: the process.
        created: creation time.
        deleted: deadline of its deletion, if it was deleted.
        status: fields of the pod's status.
    """
    pod = pod_of(spec)
    pod["metadata"] |= {"uid": "aaaa", "creationTimestamp": stamp(created)}
    if deleted is not None:
        pod["metadata"] |= {"deletionTimestamp": stamp(deleted), "deletionGracePeriodSeconds": 30}
    pod["spec"]["nodeName"] = "node-7"
    pod["status"] = {"qosClass": "Guaranteed", **status}
    return pod


def running(since: float = NOW) -> list[Json]:
    """Container statuses of a running pod."""
    return [{"name": "heterps", "ready": True, "state": {"running": {"startedAt": stamp(since)}}}]


def terminated(code: int, reason: str = "Error", at: float = NOW + 60, **more: Any) -> list[Json]:
    """Container statuses of an ended pod."""
    end = {"exitCode": code, "reason": reason, "finishedAt": stamp(at), **more}
    return [{"name": "heterps", "ready": False, "state": {"terminated": end}}]


def waiting(reason: str, message: str = "", name: str = "heterps") -> list[Json]:
    """Container statuses of a pod that does not start."""
    return [{"name": name, "ready": False, "image": "registry.example.com/flights:1",
             "state": {"waiting": {"reason": reason, "message": message}}}]  # fmt: skip


def condition(kind: str, status: str, reason: str = "", message: str = "", at: float = NOW) -> Json:
    """A condition of a pod."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(at)}


def stranger(name: str, process: str | None, **metadata: Any) -> Json:
    annotations = {} if process is None else {"heterps.io/process": process}
    labels = {"heterps.io/job": "x"}
    head = {
        "name": name,
        "namespace": "elsewhere",
        "uid": name,
        "labels": labels,
        "annotations": annotations,
        **metadata,
    }
    return {"metadata": head, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}
