"""Invalid manifests: refused by the API server with the field, or reported on the job with the field and the fix.

All at once, with one operator, which must complete a valid job meanwhile.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from heterps_runtime.contract import API_VERSION
from tests.cluster.api_server import ApiServer, collection
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import Operator
from tests.cluster.pods import shell_pod
from tests.heterps_operator.api.mutations import FULL, mutations
from tests.heterps_operator.api.samples import changed

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PATIENCE_SECONDS = 400
STRICT = "fieldValidation=Strict"
CONTAINER = "podTemplates.all.spec.containers.0"
STAGE = {"pool": "POOL", "lastLayer": "output", "units": 1}
TEMPLATE = "spec.podTemplates"


@dataclass(frozen=True)
class Wrong:
    """A manifest that the API server accepts and HeterPS cannot execute.

    Attributes:
        spec: invalid fields of the spec; `...` for a missing one.
        condition: the reporting condition, by type and reason.
        words: expected words in its message, including the field.
    """

    spec: Json
    condition: tuple[str, str]
    words: tuple[str, ...]


def refused_pod(spec: Json, *words: str) -> Wrong:
    return Wrong(spec, ("PodsReady", "InvalidPod"), (*words, TEMPLATE))


INVALID = ("Planned", "InvalidSpec")
FAILED_PLAN = ("Failed", "PlannerFailed")
FAILING = {"name": "failing", "image": "heterps.test/base:1", "imagePullPolicy": "Never", "command": ["false"]}
WRONG: dict[str, Wrong] = {
    # Required only for jobs in pods.
    "no-image": Wrong({"image": ...}, INVALID, ("spec.image: must be set",)),
    "no-checkpoint": Wrong({"checkpoint.path": ...}, INVALID, ("spec.checkpoint.path: must be set",)),
    "relative-checkpoint": Wrong({"checkpoint.path": "here"}, INVALID, ("spec.checkpoint.path", '"here"')),
    "relative-data": Wrong({"data.train": "./data"}, INVALID, ("spec.data.train", "s3://bucket/folder")),
    "relative-test": Wrong({"data.evaluation": "größe"}, INVALID, ("spec.data.evaluation", "größe")),
    # Must match the pools.
    "no-pool": Wrong({"pools": [{"name": "nowhere-near"}], "scheduling": {}}, ("Planned", "PoolNotFound"),
                     ("spec.pools: there is no DevicePool nowhere-near",)),
    "longest-pool-name": Wrong({"pools": [{"name": "p" * 63}], "scheduling": {}}, ("Planned", "PoolNotFound"),
                               ("spec.pools", "p" * 63)),
    "more-than-the-pool": Wrong({"pools": [{"name": "PAIRS", "maxUnits": 5}], "scheduling": {}}, INVALID,
                                ("spec.pools[0].maxUnits: must not be greater than the pool's own maxUnits, 4",)),
    "less-than-a-pod": Wrong({"pools": [{"name": "PAIRS", "maxUnits": 1}], "scheduling": {}}, INVALID,
                             ("spec.pools[0].maxUnits: must hold one pod",)),
    "odd-units": Wrong({"pools": [{"name": "PAIRS"}], "scheduling.stages": [{**STAGE, "pool": "PAIRS", "units": 3}]},
                       INVALID, ("spec.scheduling.stages[0].units: must be a multiple",)),
    "too-many-units": Wrong(
        {"pools": [{"name": "PAIRS"}], "scheduling.stages": [{**STAGE, "pool": "PAIRS", "units": 6}]},
        INVALID, ("spec.scheduling.stages[0].units: the stages so far need 6",)),
    "no-nodes": Wrong({"pools": [{"name": "EMPTY"}], "scheduling": {}}, ("Profiled", "WaitingForCapacity"),
                      ("0 of 8 of cpu-", "-empty are free")),
    # Known only from the measured model.
    "unknown-layer": Wrong({"scheduling.stages": [{**STAGE, "lastLayer": "nonsense"}]}, FAILED_PLAN,
                           ("scheduling.stages[0].lastLayer", "nonsense")),
    "not-all-layers": Wrong({"scheduling.stages": [{**STAGE, "lastLayer": "linear"}]}, FAILED_PLAN,
                            ("scheduling.stages[0].lastLayer", "linear")),
    "backwards": Wrong({"scheduling.stages": [STAGE, {**STAGE, "lastLayer": "tables"}]}, FAILED_PLAN,
                       ("scheduling.stages[1]",)),
    "highest-floor": Wrong({"scheduling": {}, "objective.minSamplesPerSecond": 2_000_000_000},
                           ("Failed", "ThroughputFloorUnreachable"), ("minSamplesPerSecond",)),
    "smallest-budget": Wrong({"scheduling": {}, "objective.maxCostPerHour": "0.000001"},
                             ("Failed", "CostCeilingExceeded"), ("maxCostPerHour",)),
    # The API server's messages about a pod.
    "misspelt": refused_pod({"podTemplates.all.spec.nodeSelectr": {"a": "b"}}, 'unknown field "spec.nodeSelectr"'),
    "misspelt-inside": refused_pod({f"{CONTAINER}.imagePullPolice": "Never"}, "imagePullPolice"),
    "no-containers": Wrong({"podTemplates.all.spec.containers": "heterps"}, ("PodsReady", "InvalidPod"),
                           ("image: Required value", "spec.image")),
    "nameless-container": refused_pod({"podTemplates.all.spec.containers": [{"image": "a:1"}]}, "name: Required value"),
    "bad-variable": refused_pod({f"{CONTAINER}.env.0": {"name": "a=b", "value": "c"}}, "env[", "a=b"),
    "number-for-text": refused_pod({f"{CONTAINER}.env.0": {"name": "A", "value": 1}}, "env.value"),
    "bad-volume": refused_pod({"podTemplates.all.spec.volumes.0.name": "UPPER"}, "volumes[", "UPPER"),
    "no-such-volume": refused_pod({f"{CONTAINER}.volumeMounts.0.name": "nothing"}, "volumeMounts[", "Not found"),
    "no-quantity": refused_pod({f"{CONTAINER}.resources.limits.cpu": "lots"}, "quantities must match"),
    "above-the-limit": refused_pod({f"{CONTAINER}.resources.requests.cpu": "1e3"}, "requests", "cpu limit"),
    "huge-annotation": refused_pod({"podTemplates.all.metadata": {"annotations": {"note": "x" * 300_000}}},
                                   "metadata.annotations: Too long"),
    "unicode-label": refused_pod({"podTemplates.all.metadata": {"labels": {"team": "größe"}}}, "metadata.labels"),
    "bad-label-key": refused_pod({"podTemplates.all.metadata": {"labels": {"a b": "c"}}}, "metadata.labels", "a b"),
    "no-deadline": refused_pod({"podTemplates.all.spec.activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
    "no-account": refused_pod({"podTemplates.all.spec.serviceAccountName": "nobody"}, "serviceAccountName"),
    "no-runtime-class": refused_pod({"podTemplates.all.spec.runtimeClassName": "none"}, "runtimeClassName"),
    "no-priority": Wrong({"runPolicy.schedulingPolicy": {"priorityClassName": "none"}}, ("PodsReady", "InvalidPod"),
                         ("runPolicy.schedulingPolicy.priorityClassName",)),
    "spaces-in-image": Wrong({"image": " a:1 "}, ("PodsReady", "InvalidPod"), ("image: Invalid value",)),
    "too-large": Wrong({"podTemplates.all.metadata": {"annotations": {"note": "x" * 1_100_000}}},
                       ("Planned", "TooLarge"), ("ConfigMap too-large-run", "templates")),
    # Messages of a node or the scheduler about a pod.
    "upper-case-image": Wrong({"image": "UPPER/Case:1"}, ("PodsReady", "InvalidImageName"), ("spec.image",)),
    "no-such-image": Wrong({"image": "heterps.test/none:1"}, ("PodsReady", "ErrImageNeverPull"), ("none:1",)),
    "no-registry": Wrong({"image": "registry.test/none:1", f"{CONTAINER}.imagePullPolicy": "Always"},
                         ("PodsReady", "ImagePullBackOff"), ("registry.test/none:1",)),
    "no-secret": Wrong({f"{CONTAINER}.envFrom": [{"secretRef": {"name": "none"}}]},
                       ("PodsReady", "CreateContainerConfigError"), ('secret "none" not found', TEMPLATE)),
    "a-thousand-cores": Wrong({f"{CONTAINER}.resources": {"requests": {"cpu": "1e3"}, "limits": {"cpu": "1e3"}}},
                              ("PodsReady", "Unschedulable"), ("Insufficient cpu",)),
    "no-claim": Wrong({"podTemplates.all.spec.volumes.0": {"name": "machine-0", "persistentVolumeClaim": {
        "claimName": "none"}}}, ("PodsReady", "Unschedulable"), ("none", TEMPLATE)),
    "no-node": Wrong({"podTemplates.all.spec.nodeSelector": {"a": "b"}}, ("PodsReady", "Unschedulable"),
                     ("a=b", TEMPLATE)),
    "no-scheduler": Wrong({"runPolicy.schedulingPolicy": {"schedulerName": "nobody"}}, ("PodsReady", "NotScheduled"),
                          ("nobody", "runPolicy.schedulingPolicy")),
    "failing-init": Wrong({"podTemplates.all.spec.initContainers": [FAILING], "runPolicy.backoffLimit": 0},
                          ("Failed", "BackoffLimitExceeded"), ("coordinator", "runPolicy.backoffLimit")),
    "too-short": Wrong({"podTemplates.all.spec.nodeSelector": {"a": "b"}, "runPolicy.activeDeadlineSeconds": 1},
                       ("Failed", "ActiveDeadlineExceeded"), ("runPolicy.activeDeadlineSeconds",)),
    "given-up": Wrong({"podTemplates.all.spec.nodeSelector": {"a": "b"}, "runPolicy.startDeadlineSeconds": 1},
                      ("Failed", "StartDeadlineExceeded"), ("runPolicy.startDeadlineSeconds",)),
    # Found by the runtime.
    "no-module": Wrong({"model.entrypoint": "nothing.of:the_kind"}, ("Failed", "EntrypointError"),
                       ("model.entrypoint",)),
}  # fmt: skip
# Names of existing objects of other owners.
TAKEN = ("Secret token", "HeterPSJobState", "ConfigMap run", "Service", "NetworkPolicy", "Pod coordinator-1-1")
# Fields of a pod, which may have any type in a template.
FIELDS = ("affinity", "dnsPolicy", "hostAliases", "hostNetwork", "imagePullSecrets", "initContainers", "priority",
          "runtimeClassName", "securityContext", "topologySpreadConstraints")  # fmt: skip
VALUES: tuple[Any, ...] = (17, "text", [True], {"a": {"b": 1}}, [[]], 1.5)
FITTING: dict[str, type] = {"affinity": dict, "dnsPolicy": str, "priority": int, "runtimeClassName": str,
                            "securityContext": dict}  # fmt: skip


def not_told(expected: dict[str, Wrong], jobs: list[Json]) -> list[str]:
    """Return jobs that do not report the expected problem, with their actual report."""
    known = {item["metadata"]["name"]: item.get("status") or {} for item in jobs}
    found = []
    for name, wrong in expected.items():
        kind, reason = wrong.condition
        condition: Json = next((c for c in known[name].get("conditions") or () if c["type"] == kind), {})
        message = str(condition.get("message"))
        if condition.get("reason") != reason or any(word not in message for word in wrong.words):
            found.append(f"{name}: {condition.get('reason')}: {message[:700]}")
    return found


def generated() -> dict[str, Wrong]:
    """Return templates with a value of another type in a field of a pod."""
    draw = random.Random(5)
    result = {}
    for number, name in enumerate(FIELDS):
        wrong = [value for value in VALUES if type(value) is not FITTING.get(name)]
        template = {f"podTemplates.all.spec.{name}": draw.choice(wrong)}
        result[f"generated-{number}"] = refused_pod(template, name)
    return result


def taken(name: str, what: str) -> Json:
    """Return another owner's object with the name of one of a job's objects."""
    kind, _, suffix = what.partition(" ")
    metadata = {"name": f"{name}-{suffix}" if suffix else name}
    match kind:
        case "Pod":
            return shell_pod(metadata["name"], "sleep 1", nodeSelector={"no-node": "has"})
        case "Service":
            return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
        case "NetworkPolicy":
            return {"apiVersion": "networking.k8s.io/v1", "kind": kind, "metadata": metadata,
                    "spec": {"podSelector": {"matchLabels": {"no-node": "has"}}}}  # fmt: skip
        case "HeterPSJobState":
            return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "data": {}}
        case _:
            return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def with_names(value: Any, names: Json) -> Any:
    """Return a document with placeholders replaced by names."""
    match value:
        case dict():
            return {key: with_names(item, names) for key, item in value.items()}
        case list():
            return [with_names(item, names) for item in value]
        case str():
            return names.get(value, value)
    return value


def test_wrong_manifests_are_told_and_a_good_job_gets_on(
    make: Make, server: ApiServer, operator: Operator, kubectl: Kubectl
) -> None:
    assert kubectl.namespace is not None
    good = make("good")
    names = {"POOL": f"{good.pool_name}-wide", "PAIRS": f"{good.pool_name}-pairs", "EMPTY": f"{good.pool_name}-empty"}
    # Invalid jobs do not compete with the valid one: they have a pool with room for all of them.
    base = make("base")
    base.pool = changed(base.pool, "metadata.name", names["POOL"])
    base.pool["spec"]["autoscaled"] = True
    base.pool["spec"]["maxUnits"] = 100_000
    base.pool_name = names["POOL"]
    base.job["spec"] |= {
        "pools": [{"name": names["POOL"]}],
        "scheduling": {"stages": [{**STAGE, "pool": names["POOL"]}]},
    }
    pairs = changed(changed(base.pool, "metadata.name", names["PAIRS"]), "spec.unitsPerPod", 2)
    empty = changed(changed(base.pool, "metadata.name", names["EMPTY"]), "spec.nodeSelector", {"no-node": "has"})
    empty["spec"]["autoscaled"] = False
    kubectl.apply(base.pool, changed(pairs, "spec.maxUnits", 4), changed(empty, "spec.maxUnits", 8))
    planned = {
        name for name, wrong in WRONG.items() if wrong.condition[0] == "Failed" and "scheduling" in str(wrong.spec)
    }
    base.keep_profile()

    # Refused at once, each with its field.
    malformed = [item for manifest in FULL for item in list(mutations(manifest))[::12]]
    handmade = {
        name: changed(base.job, "metadata.name", name)
        for name in ("Upper", "a" * 41, "größe", "with.dot", "-dash", "1st", "under_score", "")
    }
    replies = [
        (item.field, server.ask("POST", f"{collection(item.manifest, kubectl.namespace)}?{STRICT}", item.manifest))
        for item in malformed
    ]
    replies += [("name", server.ask("POST", collection(item, kubectl.namespace), item)) for item in handmade.values()]
    assert [(where, reply.message) for where, reply in replies if not reply.refused or where not in reply.message] == []

    # Accepted, but invalid.
    wrongs = {**WRONG, **generated()}
    for number, what in enumerate(TAKEN):
        kubectl.apply(taken(f"taken-{number}", what))
        kind = ("PodsReady" if what.startswith("Pod ") else "Planned", "NameTaken")
        wrongs[f"taken-{number}"] = Wrong(
            {}, kind, ("already exists and does not belong to this job", f"taken-{number}")
        )
    for name, wrong in wrongs.items():
        job = changed(copy.deepcopy(base.job), "metadata.name", name)
        if name not in planned:  # no profile is known, so that a pod is needed at once
            job = changed(job, "spec.model.arguments", {"other": name})
        for path, value in with_names(wrong.spec, names).items():
            job = changed(job, f"spec.{path}", value)
        reply = server.ask("POST", collection(job, kubectl.namespace), job)
        assert reply.code == 201, f"{name}: {reply.message}"
    assert len(replies) + len(wrongs) >= 60

    # A valid job after them is not delayed.
    good.submit()
    path = collection(base.job, kubectl.namespace)
    wait_until(
        "every job says what is wrong with it",
        lambda: not not_told(wrongs, server.ask("GET", path).body["items"]),
        PATIENCE_SECONDS,
        more=lambda: "\n".join(not_told(wrongs, server.ask("GET", path).body["items"])),
    )
    status = good.wait_for_phase("Succeeded", seconds=PATIENCE_SECONDS)
    assert status["restarts"] == 0
    events = {(e["involvedObject"]["name"], e["reason"]) for e in kubectl.items("events") if e["type"] == "Warning"}
    assert {(name, wrong.condition[1]) for name, wrong in wrongs.items()} - events == set()
    assert "Traceback" not in operator.story()
    kubectl("delete", "devicepools", *names.values(), "--wait=false")
