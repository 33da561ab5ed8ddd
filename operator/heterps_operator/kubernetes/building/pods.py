"""Builder of a process's pod. Pure.

A pod is merged from layers: defaults of HeterPS, the job's templates (`spec.podTemplates.all`, then that of the role,
then `podTemplate` of the pool in `spec.pools`), and required settings of HeterPS. A template may add containers,
volumes, variables and constraints, and replace defaults; it cannot change what the control loop relies on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heterps_operator.api.admission import WORK_DIRECTORY
from heterps_operator.api.quantity import parse_quantity
from heterps_operator.control.environment import process_variables
from heterps_operator.documents import Json
from heterps_operator.kubernetes.building.code import add_code, brings_code
from heterps_operator.kubernetes.building.devices import container_claims, pod_claims
from heterps_operator.kubernetes.building.ports import container_ports, port_variables
from heterps_operator.kubernetes.building.templates import merge, named
from heterps_operator.kubernetes.names import (
    ANNOTATION_PLAN_REVISION,
    ANNOTATION_PROCESS,
    CONTAINER,
    COORDINATOR_PORT,
    METRICS_PORT,
    gang_name,
    host_name,
    job_selector,
    owner_reference,
    pod_labels,
    pod_name,
    run_config_name,
    service_name,
    token_secret_name,
)
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import ENV_CONFIG, ENV_COORDINATOR, ENV_TOKEN, PATH_HEALTH, Role

__all__ = ["CONFIG_FILE", "build_pod", "image_of", "scheduling_policy"]

CONFIG_FILE = "run.json"
_CONFIG_DIRECTORY = "/etc/heterps"
_COMMAND = "heterps-runtime"
_GRACE_SECONDS = 30  # for a worker to finish its step and leave
# A lost worker's work moves to others and a lost server's is repeated: the usual five minutes of waiting cost more.
_LOST_NODE_SECONDS = 60
_MEMBER_ROLES = frozenset({"ps", "worker"})
_TEMPLATES = {"coordinator": "coordinator", "ps": "parameterServer", "worker": "worker", "profile": "profiler"}


def build_pod(
    job: Json,
    pool: Json | None,
    spec: ProcessSpec,
    *,
    coordinator: str | None,
    plan_revision: int = 0,
    pools: Iterable[Json] = (),
) -> dict[str, Any]:
    """Build the pod that runs a process.

    Args:
        job: the HeterPSJob from the API server.
        pool: the DevicePool of `spec.pool` with its defaults; None for the coordinator.
        spec: the process.
        coordinator: its address; None for the coordinator itself.
        plan_revision: revision of the process's plan; 0: none yet.
        pools: all pools of the job; the coordinator avoids their nodes where possible, and others those with cards.
    """
    name = str(job["metadata"]["name"])
    template = _template(job, pool, spec.role)
    container = named((template.get("spec") or {}).get("containers"), CONTAINER)
    proposed = _proposed(job, pool, spec, container)
    affinity: dict[str, Any] = {}
    if elsewhere := _off_the_pools(pools) if pool is None else _off_the_cards(pool, pools):
        affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": elsewhere}
    if spec.role == Role.PS and (job["spec"].get("parameterServer") or {}).get("replication", 1) > 1:
        affinity["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [_apart(job_selector(name, "ps"))]
        }
    if affinity:
        proposed["spec"]["affinity"] = affinity
    pod: dict[str, Any] = merge(proposed, template)
    _drop_conflicts(pod, spec)
    labels, annotations = _gang(job, spec)
    shares_address = pod["spec"].get("hostNetwork") is True
    required = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name, spec),
            "namespace": str(job["metadata"]["namespace"]),
            "labels": {**labels, **pod_labels(name, spec)},
            "annotations": {
                **annotations,
                ANNOTATION_PROCESS: process_text(spec),
                ANNOTATION_PLAN_REVISION: str(plan_revision),
            },
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "restartPolicy": "Never",  # the control loop decides how to react to a death
            "hostname": host_name(spec.name),
            "subdomain": service_name(name),
            **_placement(pool),
            **pod_claims(name, pool, spec),
            "containers": [_container(name, pool, spec, coordinator, job, own_address=not shares_address)],
            "volumes": [{"name": "heterps-config", "configMap": {"name": run_config_name(name)}}],
        },
    }
    result: dict[str, Any] = merge(pod, required)
    containers = (item for item in result["spec"]["containers"] if isinstance(item, dict))
    runtime = next(item for item in containers if item.get("name") == CONTAINER)
    if credentials := job["spec"].get("credentials"):
        # In front, so that a template may still say otherwise.
        secrets = [{"secretRef": {"name": str(item["secretName"])}} for item in credentials]
        given = runtime.get("envFrom")
        runtime["envFrom"] = [*secrets, *(given if isinstance(given, list) else ())]
    if brings_code(job, spec.role):
        add_code(result, job, runtime, _COMMAND)
    return result


def image_of(job: Json, pool: Json | None, role: str = "worker") -> str:
    """Return the image of a role's pods on a pool; empty if the job names none."""
    template = _template(job, pool, role).get("spec") or {}
    return str(named(template.get("containers"), CONTAINER).get("image") or job["spec"].get("image") or "")


def scheduling_policy(job: Json) -> Mapping[str, Any]:
    """Return the job's `runPolicy.schedulingPolicy`."""
    return (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}


# --- layers -----------------------------------------------------------------------------------------------------------


def _template(job: Json, pool: Json | None, role: str) -> dict[str, Any]:
    """Return the user's template for a role: labels, annotations and the specification."""
    templates = job["spec"].get("podTemplates") or {}
    name = None if pool is None else pool["metadata"]["name"]
    of_pool = next((entry.get("podTemplate") for entry in job["spec"]["pools"] if entry["name"] == name), None)
    result: dict[str, Any] = {}
    for template in (templates.get("all"), templates.get(_TEMPLATES[role]), of_pool):
        if isinstance(template, Mapping):
            metadata = template.get("metadata")
            given = metadata if isinstance(metadata, Mapping) else {}
            kept = {key: given[key] for key in ("labels", "annotations") if key in given}
            specification = template.get("spec")
            layer = {"metadata": kept, "spec": specification if isinstance(specification, Mapping) else {}}
            result = merge(result, layer)
    return result


def _proposed(job: Json, pool: Json | None, spec: ProcessSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """Build the defaults, which a template may replace.

    Args:
        job: the HeterPSJob.
        pool: pool of the process.
        spec: the process.
        template: the runtime's container in the template.
    """
    policy = scheduling_policy(job)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "resources": {"requests": _proposed_requests(pool, spec, template)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # The pod's status keeps the last lines of a log, where they can be read without asking the node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "heterps-shm", "mountPath": "/dev/shm"},  # noqa: S108  # the data loader's shared memory
            {"name": "heterps-work", "mountPath": WORK_DIRECTORY},
        ],
    }
    if pool is None or pool["spec"]["deviceType"] != "GPU":
        # CUDA images request all devices by default, which would expose cards that nothing has reserved.
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    if job["spec"].get("image"):
        container["image"] = str(job["spec"]["image"])
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
    proposed: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"key": f"node.kubernetes.io/{state}", **lost} for state in ("not-ready", "unreachable")],
        "containers": [container],
        "volumes": [
            {"name": "heterps-shm", "emptyDir": {"medium": "Memory"}},
            {"name": "heterps-work", "emptyDir": {}},
        ],
    }
    if policy.get("priorityClassName"):
        proposed["priorityClassName"] = str(policy["priorityClassName"])
    if policy.get("schedulerName"):
        proposed["schedulerName"] = str(policy["schedulerName"])
    return {"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": CONTAINER}}, "spec": proposed}


def _off_the_pools(pools: Iterable[Json]) -> list[dict[str, Any]]:
    """Build node preferences: nodes of no pool first, then those of the cheapest pool, spot pools last.

    A coordinator needs little, but on a node of whole-core units it costs one unit, and an autoscaler cannot remove an
    otherwise idle accelerator node while it runs there.
    """
    choosing = [pool["spec"] for pool in pools if pool["spec"].get("nodeSelector")]
    highest = max((float(spec["pricePerUnitHour"]) for spec in choosing), default=0.0)

    def weight(spec: Mapping[str, Any]) -> int:
        # Half the weight for belonging to a pool at all: other scheduling preferences should not outweigh it.
        # An interrupted coordinator costs the job its work since the last checkpoint: the full weight.
        return 100 if spec.get("spot") or not highest else round(50 + 50 * float(spec["pricePerUnitHour"]) / highest)

    return [
        _not_on(key, value, weight(spec)) for spec in choosing for key, value in sorted(spec["nodeSelector"].items())
    ]


def _off_the_cards(pool: Json, pools: Iterable[Json]) -> list[dict[str, Any]]:
    """Build node preferences for a pod of cores: nodes without cards first.

    A card's process needs a core of its node. Pods of a CPU pool without a node selector would take these cores, too,
    and leave the card idle.
    """
    if pool["spec"]["deviceType"] != "CPU":
        return []
    own = (pool["spec"].get("nodeSelector") or {}).items()
    cards = [other["spec"].get("nodeSelector") or {} for other in pools if other["spec"]["deviceType"] != "CPU"]
    labels = sorted({label for selector in cards for label in selector.items()} - set(own))
    return [_not_on(key, value, 100) for key, value in labels]


def _apart(labels: Mapping[str, str]) -> dict[str, Any]:
    """Prefer nodes without pods of these labels: a node that is lost should not take two copies of a row with it."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(labels)}}
    return {"weight": 100, "podAffinityTerm": term}


def _not_on(key: str, value: str, weight: int) -> dict[str, Any]:
    """Prefer nodes without a label; weight: 1 to 100."""
    return {
        "weight": weight,
        "preference": {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]},
    }


def _proposed_requests(pool: Json | None, spec: ProcessSpec, template: Mapping[str, Any]) -> dict[str, str]:
    """Return default requests besides the pool's units."""
    if pool is None:
        requests = {"cpu": "100m", "memory": "256Mi"}
    elif pool["spec"]["deviceType"] == "CPU":
        requests = {} if spec.units else {"cpu": "100m"}  # a server that shares its core with others
    else:
        # A card idles while its process waits for a core to read samples, launch kernels or pull rows.
        requests = {"cpu": "1"}
    resources = template.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    # Where a template sets only a limit, the API server requests the same; a request above the limit would be refused.
    return {key: value for key, value in requests.items() if not (isinstance(limits, Mapping) and key in limits)}


def _drop_conflicts(pod: dict[str, Any], spec: ProcessSpec) -> None:
    """Remove fields of the runtime's container that would change the meaning of required settings."""
    containers = pod["spec"].get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == CONTAINER:
            for key in ("args", "restartPolicy", "restartPolicyRules"):
                container.pop(key, None)
            if spec.role == "coordinator":
                container.pop("readinessProbe", None)


def _placement(pool: Json | None) -> dict[str, Any]:
    """Return the node selector and tolerations of the pool's nodes."""
    if pool is None:
        return {}
    selector, tolerations = pool["spec"].get("nodeSelector"), pool["spec"].get("tolerations")
    placement: dict[str, Any] = {}
    if selector:
        placement["nodeSelector"] = dict(selector)
    if tolerations:
        placement["tolerations"] = list(tolerations)
    return placement


def _container(
    name: str, pool: Json | None, spec: ProcessSpec, coordinator: str | None, job: Json, *, own_address: bool
) -> dict[str, Any]:
    """Build the required settings of the runtime's container."""
    environment: list[dict[str, Any]] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": ENV_CONFIG, "value": f"{_CONFIG_DIRECTORY}/{CONFIG_FILE}"},
        {"name": ENV_TOKEN, "valueFrom": {"secretKeyRef": {"name": token_secret_name(name), "key": "token"}}},
    ]
    if coordinator is not None:
        environment.append({"name": ENV_COORDINATOR, "value": coordinator})
    ports = port_variables(job, spec, pool, own_address=own_address)
    environment += [{"name": key, "value": value} for key, value in (process_variables(spec) | ports).items()]
    command = [_COMMAND, *spec.arguments]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "command": command,
        "env": environment,
        "volumeMounts": [{"name": "heterps-config", "mountPath": _CONFIG_DIRECTORY, "readOnly": True}],
    }
    if declared := container_ports(job, spec, pool, own_address=own_address):
        container["ports"] = declared
    resources = _units(pool, spec)
    if (memory := _memory(job, pool, spec)) is not None:
        for kind in ("requests", "limits"):
            resources.setdefault(kind, {})["memory"] = memory
    if (disk := _disk(job, spec)) is not None:
        resources.setdefault("requests", {})["ephemeral-storage"] = disk
    if resources:
        container["resources"] = resources
    if spec.role in _MEMBER_ROLES:
        command += ["--host", "$(POD_IP)"]
    elif spec.role == "coordinator":
        command += ["--host", "$(POD_IP)", "--port", str(COORDINATOR_PORT), "--metrics-port", str(METRICS_PORT)]
        container["readinessProbe"] = {
            "httpGet": {"path": PATH_HEALTH, "port": METRICS_PORT},
            "periodSeconds": 1,  # the job waits for readiness
            "timeoutSeconds": 2,
        }
    return container


def _memory(job: Json, pool: Json | None, spec: ProcessSpec) -> str | None:
    """The memory of a server or worker; None: not limited.

    A profiler runs several processes in its pod, and the memory of a GPU pool is that of its cards.
    """
    limit = (job["spec"].get("parameterServer") or {}).get("memoryLimit")
    if spec.role == "ps" and limit is not None:
        return str(limit)
    each = None if pool is None or pool["spec"]["deviceType"] != "CPU" else pool["spec"].get("memoryPerUnit")
    if each is None or spec.role not in _MEMBER_ROLES or not spec.units:
        return None
    return str(int(parse_quantity(each) * spec.units))


def _disk(job: Json, spec: ProcessSpec) -> str | None:
    """The disk of its node that a server may fill with rows; None: it is not known, or another disk is used.

    It is not a limit: the kubelet does not see files without names, and the server keeps to `maxBytes` itself.
    """
    spill = (job["spec"].get("parameterServer") or {}).get("spill") or {}
    return str(spill["maxBytes"]) if spec.role == "ps" and "maxBytes" in spill and "directory" not in spill else None


def _units(pool: Json | None, spec: ProcessSpec) -> dict[str, Any]:
    """Request and limit the pool's units: the planner counts on exactly that number."""
    if pool is None or not spec.units:
        return {}
    if claims := container_claims(pool, spec):
        return {"claims": claims}
    units = {str(pool["spec"]["resourceName"]): str(spec.units)}
    return {"requests": dict(units), "limits": dict(units)}


def _gang(job: Json, spec: ProcessSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations that gang schedulers read.

    The coordinator and profilers belong to no gang: they run before a plan exists.
    """
    name = gang_name(str(job["metadata"]["name"]), spec.incarnation)
    match scheduling_policy(job).get("gang"):
        case "Volcano" if spec.role in _MEMBER_ROLES:
            return {}, {"scheduling.k8s.io/group-name": name}
        case "Coscheduling" if spec.role in _MEMBER_ROLES:
            return {"scheduling.x-k8s.io/pod-group": name}, {}
    return {}, {}
