"""Whether a job under faults did what HeterPS promises, judged by what is in the cluster."""

from __future__ import annotations

import json
import time
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import job_path, job_state_path, object_path
from tests.chaos.cluster.bill import wrong_bill
from tests.chaos.cluster.job import Job
from tests.chaos.faults.schedule import Run
from tests.chaos.results.judgement import Judge

__all__ = ["bill_problems", "left_behind", "result_problems"]

Json = dict[str, Any]

_KINDS = (
    ("/api/v1", "pods"),
    ("/api/v1", "services"),
    ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/apis/heterps.io/v1alpha1", "heterpsjobs"),
    ("/apis/heterps.io/v1alpha1", "heterpsjobstates"),
)
_GONE_SECONDS = 120.0  # in which the garbage collector deletes what a job owned
_STILL_SECONDS = 0.5


def result_problems(job: Job, run: Run, judge: Judge) -> list[str]:
    """Return what is wrong with the phase and the model of a job that should have ended."""
    if job.phase != "Succeeded":
        return [f"it was {job.phase or 'without a phase'} after {run.limit_seconds:.0f} s"]
    return judge.wrong_file(job.real.folder / job.name / "model" / "model.safetensors", run)


def bill_problems(job: Job, api: KubernetesApi) -> list[str]:
    """Return what is wrong with the bill of an ended job."""
    state = api.get(job_state_path(job.namespace, job.name))
    if state is None:
        return ["the job's state is gone"]
    bill = json.loads(state["data"]["bill.json"])
    seconds = sum(int(line["unitMicroseconds"]) for line in bill["pools"]) / 1e6
    return wrong_bill(seconds, job.existence.bounds(time.time()))


def left_behind(job: Job, api: KubernetesApi) -> list[str]:
    """Delete the job, and return what it leaves behind."""
    api.delete(job_path(job.namespace, job.name))
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := _left(job, api)) and time.monotonic() < deadline:
        time.sleep(_STILL_SECONDS)
    return left


def _left(job: Job, api: KubernetesApi) -> list[str]:
    found: list[str] = []
    try:
        for group, kind in _KINDS:
            selector = "" if kind == "heterpsjobs" else f"heterps.io/job={job.name}"
            items, _ = api.list(f"{group}/namespaces/{job.namespace}/{kind}", selector)
            for item in items:
                finalizers = item["metadata"].get("finalizers")
                held = f", held by {', '.join(finalizers)}" if finalizers else ""
                found.append(f"{kind} {item['metadata']['name']} is left{held}")
        for pool in (job.real.pool, *job.real.more_pools):
            units = ((api.get(object_path(pool)) or {}).get("status") or {}).get("allocatedUnits", 0)
            if units:
                found.append(f"{units} units of pool {pool['metadata']['name']} are still held")
    except ApiError as error:
        found.append(f"the API server does not answer: {error}")
    return found
