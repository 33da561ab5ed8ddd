"""Names, labels and addresses of a job's objects, defined only here. Pure.

Every object of a job is owned by its HeterPSJob (ownerReferences), so that the cluster garbage-collects it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import API_GROUP, API_VERSION

__all__ = [
    "ANNOTATION_IMAGE",
    "ANNOTATION_LAST_USED",
    "ANNOTATION_PLAN_REVISION",
    "ANNOTATION_PROCESS",
    "ANNOTATION_PROCESSES",
    "ANNOTATION_REQUEST",
    "CODE_CONTAINER",
    "CONTAINER",
    "COORDINATOR_PORT",
    "DEVICES_VERSION",
    "LABEL_INDEX",
    "LABEL_JOB",
    "LABEL_POOL",
    "LABEL_PROCESS",
    "LABEL_ROLE",
    "LABEL_STAGE",
    "MESSAGE_PORT",
    "METRICS_PORT",
    "PRIORITY_CLASSES",
    "RENDEZVOUS_PORT",
    "budget_name",
    "claim_template_name",
    "code_config_name",
    "code_labels",
    "config_map_path",
    "config_maps_path",
    "coordinator_address",
    "events_path",
    "gang_name",
    "host_name",
    "is_code_of",
    "is_of_name",
    "is_owned",
    "job_labels",
    "job_owner",
    "job_path",
    "job_selector",
    "job_state_path",
    "job_states_path",
    "job_status_path",
    "jobs_path",
    "label_selector",
    "object_path",
    "owner_reference",
    "plan_config_name",
    "pod_labels",
    "pod_name",
    "pod_path",
    "pods_path",
    "profile_config_name",
    "run_config_name",
    "secret_path",
    "secrets_path",
    "service_name",
    "token_secret_name",
    "workload_name",
    "workload_path",
    "workloads_path",
]

CONTAINER = "heterps"  # name of the runtime's container in every pod
CODE_CONTAINER = "heterps-code"  # name of the init container that brings the job's code
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
DEVICES_VERSION = "resource.k8s.io/v1"  # dynamic resource allocation: served by Kubernetes 1.34 and later
COORDINATOR_PORT = 7400
METRICS_PORT = 7401  # of a process's metrics, and of a coordinator's health; never encrypted
MESSAGE_PORT = 7402  # of ZeroMQ
RENDEZVOUS_PORT = 7403  # of workers that all-reduce

LABEL_JOB = f"{API_GROUP}/job"
LABEL_ROLE = f"{API_GROUP}/role"
LABEL_PROCESS = f"{API_GROUP}/process"
LABEL_POOL = f"{API_GROUP}/pool"
LABEL_STAGE = f"{API_GROUP}/stage"
LABEL_INDEX = f"{API_GROUP}/index"
ANNOTATION_PROCESS = f"{API_GROUP}/process"
ANNOTATION_IMAGE = f"{API_GROUP}/image-id"  # with which a profile was measured, as the kubelet reported it
ANNOTATION_LAST_USED = f"{API_GROUP}/last-used"  # of a profile
ANNOTATION_PLAN_REVISION = f"{API_GROUP}/plan-revision"
ANNOTATION_REQUEST = f"{API_GROUP}/request"  # name of the request for quota that a Workload is
ANNOTATION_PROCESSES = f"{API_GROUP}/processes"  # names of its processes, by pod set

_LONGEST_LABEL = 63  # characters of a DNS label and of a label's value
_DIGITS = 6  # of the digest that replaces truncated characters
_LABEL_COMPONENT, _CODE = "app.kubernetes.io/component", "code"
_CODE_DIGITS = 32  # of the digest of code; the rest is compared in the pods
_PLURALS = {
    "ConfigMap": "configmaps",
    "HeterPSJob": "heterpsjobs",
    "NetworkPolicy": "networkpolicies",
    "DevicePool": "devicepools",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "Secret": "secrets",
    "Service": "services",
    "Workload": "workloads",
}


# --- names ------------------------------------------------------------------------------------------------------------


def pod_name(job: str, spec: ProcessSpec) -> str:
    """Name of a process's pod, `JOB-PROCESS-INCARNATION-ATTEMPT`: the same for the same process, at most 63 characters.

    Args:
        job: name of the job, at most 40 characters.
        spec: the process.
    """
    tail = f"-{spec.incarnation}-{spec.attempt}"
    return f"{job}-{_label(spec.name, _LONGEST_LABEL - len(job) - 1 - len(tail))}{tail}"


def host_name(process: str) -> str:
    """Host name of a process in the job's domain; also its value as a label."""
    return _label(process, _LONGEST_LABEL)


def service_name(job: str) -> str:
    """Headless Service of a job; its name is the pods' domain."""
    return job


def run_config_name(job: str) -> str:
    """ConfigMap of the run configuration."""
    return f"{job}-run"


def token_secret_name(job: str) -> str:
    """Secret of the token that authenticates the job's processes."""
    return f"{job}-token"


def plan_config_name(job: str, revision: int) -> str:
    """ConfigMap of one revision of the plan."""
    return f"{job}-plan-{revision}"


def profile_config_name(pool: str, digest: str) -> str:
    """ConfigMap of a pool's measured profile."""
    prefix, suffix = "heterps-profile-", f"-{digest}"
    return prefix + _label(pool, _LONGEST_LABEL - len(prefix) - len(suffix)) + suffix


def code_config_name(sha256: str) -> str:
    """ConfigMap of packed code; jobs with the same code share it."""
    return f"heterps-code-{sha256[:_CODE_DIGITS]}"


def budget_name(job: str, members: str) -> str:
    """PodDisruptionBudget of a group of members: `coordinator`, `ps`, `stage-0`."""
    return f"{job}-{members}"


def claim_template_name(job: str, pool: str, device_class: str) -> str:
    """ResourceClaimTemplate of a job's units of a pool; it cannot be changed, so another class has another one."""
    return f"{job}-{_label(f'{pool}/{device_class}', _LONGEST_LABEL - len(job) - 1)}"


def gang_name(job: str, incarnation: int) -> str:
    """Group of pods that a scheduler starts together; a full restart starts a new group."""
    return f"{job}-{incarnation}"


def workload_name(job: str, request: str) -> str:
    """Kueue's Workload of a request for quota."""
    return f"{job}-{request}"


def coordinator_address(job: Json, ip: str) -> str:
    """`http://IP:PORT` of a coordinator, or `https://IP:PORT` if the job encrypts."""
    host = f"[{ip}]" if ":" in ip else ip
    scheme = "https" if job["spec"].get("encryption") == "Required" else "http"
    return f"{scheme}://{host}:{COORDINATOR_PORT}"


@functools.lru_cache(maxsize=16_384)  # every turn needs the names of all pods of its job
def _label(text: str, length: int) -> str:
    """Return a text as a DNS label of limited length; changed texts get digits of their digest to stay distinct."""
    plain = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")
    if plain == text and len(text) <= length:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    head = plain[: max(0, length - _DIGITS - 1)].rstrip("-")
    return f"{head}-{digest}" if head else digest[:length]


# --- labels and owners ------------------------------------------------------------------------------------------------


def job_labels(job: str) -> dict[str, str]:
    """Labels of every object of a job."""
    return {
        "app.kubernetes.io/name": "heterps",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/part-of": "heterps",
        "app.kubernetes.io/managed-by": "heterps",
        LABEL_JOB: job,
    }


def job_selector(job: str, role: str | None = None) -> dict[str, str]:
    """Labels that select a job's pods, all or of one role."""
    return {LABEL_JOB: job} | ({} if role is None else {LABEL_ROLE: role})


def label_selector(labels: Mapping[str, str]) -> str:
    """Format labels as a selector, `a=1,b=2`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def pod_labels(job: str, spec: ProcessSpec) -> dict[str, str]:
    """Labels of a process's pod, without those that do not apply to its role."""
    labels = {
        **job_labels(job),
        "app.kubernetes.io/component": spec.role.value,
        LABEL_ROLE: spec.role.value,
        LABEL_PROCESS: host_name(spec.name),
    }
    if spec.pool is not None:
        labels[LABEL_POOL] = spec.pool
    for label, number in ((LABEL_STAGE, spec.stage), (LABEL_INDEX, spec.index)):
        if number is not None:
            labels[label] = str(number)
    return labels


def owner_reference(job: Json) -> dict[str, Any]:
    """Return the ownerReference to a job.

    Args:
        job: the HeterPSJob from the API server.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "HeterPSJob",
        "name": str(job["metadata"]["name"]),
        "uid": str(job["metadata"]["uid"]),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def job_owner(item: Json) -> tuple[str, str] | None:
    """Return name and uid of the HeterPSJob in an object's ownerReferences, or None.

    Labels prove nothing, as any client may write them. Nor does the reference, until a job with that uid exists.
    """
    for owner in item["metadata"].get("ownerReferences") or ():
        group = str(owner.get("apiVersion")).partition("/")[0]
        if owner.get("controller") is True and owner.get("kind") == "HeterPSJob" and group == API_GROUP:
            return str(owner.get("name") or ""), str(owner.get("uid") or "")
    return None


def is_of_name(item: Json, name: str) -> bool:
    """Whether an object belongs to a job of that name, the current or an earlier one."""
    owner = job_owner(item)
    return owner is not None and owner[0] == name


def is_owned(item: Json, job: Json) -> bool:
    """Whether an object belongs to this very job, not to another owner or an earlier job of the same name."""
    owner = job_owner(item)
    return owner is not None and owner[1] == str(job["metadata"]["uid"])


def code_labels() -> dict[str, str]:
    """Labels of a ConfigMap with code, which several jobs may own."""
    return {
        "app.kubernetes.io/name": "heterps",
        _LABEL_COMPONENT: _CODE,
        "app.kubernetes.io/part-of": "heterps",
        "app.kubernetes.io/managed-by": "heterps",
    }


def is_code_of(item: Json, job: Json) -> bool:
    """Whether an object is code that `heterps submit` keeps for this job and for no other one."""
    metadata = item["metadata"]
    owners = [str(owner.get("uid")) for owner in metadata.get("ownerReferences") or ()]
    return (metadata.get("labels") or {}).get(_LABEL_COMPONENT) == _CODE and owners == [str(job["metadata"]["uid"])]


# --- paths of the API -------------------------------------------------------------------------------------------------


def object_path(item: Mapping[str, Any]) -> str:
    """Path of an object for apply or replace, from its apiVersion, kind, namespace and name."""
    version, kind, metadata = str(item["apiVersion"]), str(item["kind"]), item["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{namespace}/{_PLURALS[kind]}/{metadata['name']}"


def pods_path(namespace: str | None = None) -> str:
    """Pods of a namespace, or of all namespaces."""
    return _core("pods", namespace)


def pod_path(namespace: str, name: str) -> str:
    """One pod."""
    return f"{_core('pods', namespace)}/{name}"


def config_maps_path(namespace: str | None = None) -> str:
    """ConfigMaps of a namespace, or of all namespaces."""
    return _core("configmaps", namespace)


def config_map_path(namespace: str, name: str) -> str:
    """One ConfigMap."""
    return f"{_core('configmaps', namespace)}/{name}"


def secrets_path(namespace: str) -> str:
    """Secrets of a namespace."""
    return _core("secrets", namespace)


def secret_path(namespace: str, name: str) -> str:
    """One Secret."""
    return f"{_core('secrets', namespace)}/{name}"


def events_path(namespace: str | None = None) -> str:
    """Events of a namespace, or of all namespaces."""
    return _core("events", namespace)


def jobs_path(namespace: str | None = None) -> str:
    """HeterPSJobs of a namespace, or of all namespaces."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{where}/heterpsjobs"


def job_path(namespace: str, name: str) -> str:
    """One HeterPSJob."""
    return f"{jobs_path(namespace)}/{name}"


def job_status_path(namespace: str, name: str) -> str:
    """The status of a HeterPSJob."""
    return f"{job_path(namespace, name)}/status"


def job_states_path(namespace: str) -> str:
    """HeterPSJobStates of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/heterpsjobstates"


def job_state_path(namespace: str, job: str) -> str:
    """The HeterPSJobState of a job; it has the job's name."""
    return f"{job_states_path(namespace)}/{job}"


def workloads_path(namespace: str) -> str:
    """Kueue's Workloads of a namespace."""
    return f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/workloads"


def workload_path(namespace: str, job: str, request: str) -> str:
    """The Workload of one of a job's requests for quota."""
    return f"{workloads_path(namespace)}/{workload_name(job, request)}"


def _core(plural: str, namespace: str | None) -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/api/v1{where}/{plural}"
