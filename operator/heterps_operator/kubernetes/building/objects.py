"""Builders of a job's objects other than pods. Pure.

All of them are applied (server-side), which changes nothing that is already right; only the token is created once.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from heterps_operator.api.job import RunPolicy
from heterps_operator.api.quantity import parse_quantity
from heterps_operator.documents import Json
from heterps_operator.kubernetes.building.devices import claim_spec
from heterps_operator.kubernetes.building.pods import CONFIG_FILE, build_pod, scheduling_policy
from heterps_operator.kubernetes.building.ports import service_ports
from heterps_operator.kubernetes.names import (
    ANNOTATION_PLAN_REVISION,
    COORDINATOR_PORT,
    DEVICES_VERSION,
    LABEL_ROLE,
    LABEL_STAGE,
    METRICS_PORT,
    budget_name,
    claim_template_name,
    gang_name,
    job_labels,
    job_selector,
    owner_reference,
    plan_config_name,
    run_config_name,
    service_name,
    token_secret_name,
)
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role, ps_name, worker_name

__all__ = [
    "PLAN_FILE",
    "claim_templates",
    "disruption_budgets",
    "is_same_plan",
    "network_policy",
    "outdated_plans",
    "plan_config",
    "pod_groups",
    "run_config",
    "service",
    "token_secret",
]

PLAN_FILE = "plan.json"
_KEPT_PLANS = 10


def service(job: Json) -> dict[str, Any]:
    """Build the headless Service that gives every pod its DNS name, ready or not: members look each other up before."""
    name = str(job["metadata"]["name"])
    return _object(
        job,
        "v1",
        "Service",
        service_name(name),
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": job_selector(name),
            "ports": service_ports(job),
        },
    )


def run_config(job: Json, configuration: Json) -> dict[str, Any]:
    """Build the ConfigMap of the run configuration, which every pod mounts.

    Args:
        job: the HeterPSJob.
        configuration: document that `heterps_runtime.config` reads.
    """
    name = run_config_name(str(job["metadata"]["name"]))
    return _object(job, "v1", "ConfigMap", name, data={CONFIG_FILE: _text(configuration)})


def token_secret(job: Json, token: str) -> dict[str, Any]:
    """Build the Secret that authenticates the job's processes; created once, as running pods keep their copy."""
    name = token_secret_name(str(job["metadata"]["name"]))
    data = {"token": base64.b64encode(token.encode()).decode()}
    return _object(job, "v1", "Secret", name, type="Opaque", immutable=True, data=data)


def claim_templates(job: Json, pools: Iterable[Json]) -> tuple[dict[str, Any], ...]:
    """Build the ResourceClaimTemplates of the job's pools that have a DeviceClass: one claim is one unit.

    Args:
        job: the HeterPSJob.
        pools: its DevicePools.
    """
    templates = []
    for pool in pools:
        if device_class := pool["spec"].get("deviceClassName"):
            pool_name, spec = str(pool["metadata"]["name"]), {"spec": claim_spec(str(device_class))}
            name = claim_template_name(str(job["metadata"]["name"]), pool_name, str(device_class))
            templates.append(_object(job, DEVICES_VERSION, "ResourceClaimTemplate", name, spec=spec))
    return tuple(templates)


def plan_config(job: Json, revision: int, document: Json) -> dict[str, Any]:
    """Build the ConfigMap of one plan revision; it never changes, as a new plan is a new revision."""
    name = plan_config_name(str(job["metadata"]["name"]), revision)
    item = _object(job, "v1", "ConfigMap", name, immutable=True, data={PLAN_FILE: _text(document)})
    item["metadata"]["annotations"] = {ANNOTATION_PLAN_REVISION: str(revision)}
    return item


def is_same_plan(found: Json, item: Json) -> bool:
    """Whether two ConfigMaps hold one plan, as far as this version reads it: others may write more or fewer fields."""
    try:
        plans = [JobPlan.from_json(json.loads(body["data"][PLAN_FILE])) for body in (found, item)]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return False
    one, other = (replace(plan, document={}) for plan in plans)
    return one == other


def outdated_plans(revisions: Iterable[int], keep: int = _KEPT_PLANS) -> tuple[int, ...]:
    """Return the plan revisions whose ConfigMaps must be deleted: all except the newest."""
    ordered = sorted(set(revisions))
    return tuple(ordered[: max(0, len(ordered) - keep)])


def disruption_budgets(job: Json, plan: JobPlan, policy: RunPolicy) -> tuple[dict[str, Any], ...]:
    """Build the limits on evictions, by `kubectl drain` for example.

    A job that moves (`cordonPolicy`) leaves a cordoned node by itself, so no pod of it may be evicted: an eviction
    before that could cost the checkpoint. Of a job that stays:

    - Coordinator and servers: never, as the whole job would return to the last checkpoint.
    - Workers of a stage: one at a time, as its part of the batch is divided among the others. The only worker
      of a stage may be evicted; its replacement costs a few steps.

    The limits are numbers of pods, not `maxUnavailable`: that needs a controller with a scale, and a HeterPSJob has
    pods of several kinds. Budgets that are disabled exist nevertheless, in place of those of earlier settings.

    Args:
        job: the HeterPSJob.
        plan: its current plan.
        policy: of the job.
    """
    name = str(job["metadata"]["name"])
    protected = [
        ("coordinator", job_selector(name, "coordinator"), 1),
        ("ps", job_selector(name, "ps"), plan.servers.replicas),
    ]
    evictable = 0 if policy.cordon_policy == "Move" else 1
    for number, stage in enumerate(plan.stages):
        selector = {**job_selector(name, "worker"), LABEL_STAGE: str(number)}
        protected.append((f"stage-{number}", selector, stage.pods - evictable))
    enabled = policy.disruption_budgets == "Enabled"
    return tuple(_budget(job, kind, selector, least if enabled else 0) for kind, selector, least in protected)


def network_policy(job: Json, operator_namespace: str, scrapers: Sequence[Json]) -> dict[str, Any]:
    """Build the ingress rules of the job's pods: each other; the operator, on the coordinator's API; Prometheus.

    Among the job's own pods all ports are open: NCCL and gloo choose theirs themselves, and the user's containers may
    have some. Egress stays open: data and checkpoints may be anywhere.

    Args:
        job: the HeterPSJob.
        operator_namespace: namespace whose pods reach the coordinator.
        scrapers: NetworkPolicyPeers that read its pods' metrics; none: everyone, as in a NetworkPolicy.
    """
    name = str(job["metadata"]["name"])
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    readers = {"from": [dict(peer) for peer in scrapers]} if scrapers else {}  # the API server drops an empty list
    return _object(
        job,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        name,
        spec={
            "podSelector": {"matchLabels": job_selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": job_selector(name)}}]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": COORDINATOR_PORT}]},
                {**readers, "ports": [{"protocol": "TCP", "port": METRICS_PORT}]},
            ],
        },
    )


def pod_groups(job: Json, plan: JobPlan, incarnation: int, pools: Mapping[str, Json]) -> tuple[dict[str, Any], ...]:
    """Build the PodGroup of a plan's members for gang schedulers; empty unless the job asks for one.

    Args:
        job: the HeterPSJob.
        plan: the members' plan; the coordinator runs before them.
        incarnation: incarnation of the job; after a full restart all members are scheduled together again.
        pools: the DevicePools with defaults, by name.
    """
    policy, name = scheduling_policy(job), gang_name(str(job["metadata"]["name"]), incarnation)
    members = plan.servers.replicas + sum(stage.pods for stage in plan.stages)
    group: dict[str, Any] = {"minMember": members, "minResources": _resources(job, plan, pools)}
    match policy.get("gang"):
        case "Volcano":
            group |= {key: str(policy[key]) for key in ("queue", "priorityClassName") if policy.get(key)}
            return (_object(job, "scheduling.volcano.sh/v1beta1", "PodGroup", name, spec=group),)
        case "Coscheduling":
            return (_object(job, "scheduling.x-k8s.io/v1alpha1", "PodGroup", name, spec=group),)
    return ()


# --- parts ------------------------------------------------------------------------------------------------------------


def _object(job: Json, version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": str(job["metadata"]["namespace"]),
        "labels": job_labels(str(job["metadata"]["name"])),
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def _budget(job: Json, members: str, selector: Mapping[str, str], available: int) -> dict[str, Any]:
    item = _object(
        job,
        "policy/v1",
        "PodDisruptionBudget",
        budget_name(str(job["metadata"]["name"]), members),
        spec={
            "minAvailable": available,
            "selector": {"matchLabels": dict(selector)},
            # A pod that never became ready protects nothing, and must not block a drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
    item["metadata"]["labels"][LABEL_ROLE] = selector[LABEL_ROLE]
    return item


def _resources(job: Json, plan: JobPlan, pools: Mapping[str, Json]) -> dict[str, str]:
    """Sum of the members' requests, read from their pods, as templates add to it."""
    total: dict[str, Decimal] = {}
    for spec, count in _kinds(plan, pools):
        pod = build_pod(job, pools[str(spec.pool)], spec, coordinator="http://coordinator")
        for resource, amount in _requests(pod).items():
            total[resource] = total.get(resource, Decimal(0)) + count * amount
    return {resource: _quantity(amount) for resource, amount in sorted(total.items())}


def _requests(pod: Json) -> dict[str, Decimal]:
    """Return a pod's requests; malformed parts of a template, which the API server will refuse, count as zero."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") if isinstance(container, Mapping) else None
        parts = [resources.get(key) for key in ("limits", "requests")] if isinstance(resources, Mapping) else []
        requests = {key: value for part in parts if isinstance(part, Mapping) for key, value in part.items()}
        for resource, quantity in requests.items():
            with contextlib.suppress(ValueError):
                total[resource] = total.get(resource, Decimal(0)) + parse_quantity(quantity)
    return total


def _kinds(plan: JobPlan, pools: Mapping[str, Json]) -> list[tuple[ProcessSpec, int]]:
    """Return one process of each kind and their number."""
    kinds = [
        (ProcessSpec(ps_name(0), Role.PS, plan.servers.pool, units), count)
        for units, count in Counter(plan.server_units).items()
    ]
    for number, stage in enumerate(plan.stages):
        per_pod = int(pools[stage.pool]["spec"].get("unitsPerPod", 1))
        spec = ProcessSpec(worker_name(number, 0), Role.WORKER, pool=stage.pool, units=per_pod)
        kinds.append((spec, stage.pods))
    return kinds


def _quantity(amount: Decimal) -> str:
    """Format an amount as a quantity: whole numbers, or thousandths."""
    return str(int(amount)) if amount == int(amount) else f"{int((amount * 1000).to_integral_value())}m"


def _text(document: Json) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True)
