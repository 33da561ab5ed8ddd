"""Pods: required settings of HeterPS, template overrides, and their merge."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_operator.kubernetes.building.pods import image_of
from heterps_operator.kubernetes.building.templates import merge
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import (
    COORDINATOR,
    CPU_WORKER,
    GPU_WORKER,
    POOLS,
    PROFILER,
    SERVER,
    SPECS,
    Json,
    container_of,
    make_job,
    of_pool,
    pod_of,
)
from tests.heterps_operator.helpers.structure import check


def environment(pod: Json) -> dict[str, Any]:
    """Return the variables of the runtime's container; fail on duplicates."""
    entries = container_of(pod)["env"]
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names)), names
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


def ports_of(pod: Json) -> dict[str, int]:
    """Return the declared ports of the runtime's container."""
    return {port["name"]: port["containerPort"] for port in container_of(pod).get("ports", ())}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_pod_has_the_structure_of_a_pod(spec: ProcessSpec) -> None:
    pod = pod_of(spec, plan_revision=3)
    check(pod)
    assert process_of(pod) == spec
    assert pod["metadata"]["annotations"]["heterps.io/plan-revision"] == "3"
    [owner] = pod["metadata"]["ownerReferences"]
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is True
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["subdomain"] == "flights"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container_of(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_coordinator_listens_where_others_find_it() -> None:
    pod = pod_of(COORDINATOR)
    container = container_of(pod)
    assert container["command"] == [
        "heterps-runtime", "coordinator", "--host", "$(POD_IP)", "--port", "7400", "--metrics-port", "7401",
    ]  # fmt: skip
    assert ports_of(pod) == {"http": 7400, "http-metrics": 7401, "tcp-messages": 7402}
    assert environment(pod)["HETERPS_MESSAGE_PORT"] == "7402"
    assert "HETERPS_METRICS_PORT" not in environment(pod), "it is an argument"
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 7401}
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert "HETERPS_COORDINATOR" not in environment(pod)
    assert "nodeSelector" not in pod["spec"]


def test_members_listen_on_declared_ports() -> None:
    members = {"http-metrics": 7401, "tcp-messages": 7402}
    for spec, ports in (
        (CPU_WORKER, members),
        (SERVER, members),
        (GPU_WORKER, {**members, "tcp-rendezvous": 7403}),
        (PROFILER, {}),
    ):
        pod = pod_of(spec)
        assert ports_of(pod) == ports, spec.name
        names = {"MESSAGE": "tcp-messages", "RENDEZVOUS": "tcp-rendezvous", "METRICS": "http-metrics"}
        given = {name: environment(pod).get(f"HETERPS_{key}_PORT") for key, name in names.items()}
        assert given == {name: str(ports[name]) if name in ports else None for name in names.values()}


def test_the_api_of_a_job_that_encrypts_is_https() -> None:
    job = make_job()
    job["spec"]["encryption"] = "Required"
    assert "https" in ports_of(pod_of(COORDINATOR, job))
    assert "http" not in ports_of(pod_of(COORDINATOR, job))


def test_members_on_the_network_of_their_node_listen_on_free_ports() -> None:
    """They share the node's address, so that a fixed port would allow one of them per node."""
    job = make_job()
    job["spec"]["podTemplates"] = {"all": {"spec": {"hostNetwork": True}}}
    for spec in (CPU_WORKER, SERVER, GPU_WORKER):
        pod = pod_of(spec, job)
        assert ports_of(pod) == {}
        assert not [name for name in environment(pod) if name.endswith("_PORT")]
    coordinator = pod_of(COORDINATOR, job)
    assert ports_of(coordinator) == {"http": 7400, "http-metrics": 7401}
    assert "HETERPS_MESSAGE_PORT" not in environment(coordinator)


def test_a_worker_gets_the_units_of_its_pool() -> None:
    pod = pod_of(CPU_WORKER)
    assert container_of(pod)["command"] == [
        "heterps-runtime", "worker", "--stage", "0", "--index", "1", "--pool", "cpu", "--host", "$(POD_IP)",
    ]  # fmt: skip
    assert container_of(pod)["resources"] == {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
    variables = environment(pod)
    assert variables["HETERPS_COORDINATOR"] == "http://10.0.0.7:7400"
    assert variables["HETERPS_TOKEN"] == {"secretKeyRef": {"name": "flights-token", "key": "token"}}
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "none"


def test_an_accelerator_comes_with_a_core_and_its_place() -> None:
    pod = pod_of(GPU_WORKER)
    assert container_of(pod)["resources"] == {
        "requests": {"cpu": "1", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    assert pod["spec"]["nodeSelector"] == {"node.example.com/gpu": "v100"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(pod)
    assert "--host" not in container_of(pod_of(PROFILER))["command"]


def test_a_server_is_held_to_its_memory() -> None:
    resources = container_of(pod_of(SERVER))["resources"]
    assert resources == {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}}
    shared = ProcessSpec("ps-3", Role.PS, "cpu", 0, index=3)
    assert container_of(pod_of(shared, make_job(parameterServer={})))["resources"] == {"requests": {"cpu": "100m"}}


def test_workers_and_servers_of_a_cpu_pool_are_held_to_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in POOLS:
        pool = {**POOLS[name], "spec": {**POOLS[name]["spec"], "memoryPerUnit": "1.5Gi"}}
        monkeypatch.setitem(POOLS, name, pool)
    cores = {"cpu": "4", "memory": str(6 << 30)}
    assert container_of(pod_of(CPU_WORKER))["resources"] == {"requests": cores, "limits": cores}
    server = container_of(pod_of(SERVER, make_job(parameterServer={})))["resources"]
    assert server["limits"] == {"cpu": "2", "memory": str(3 << 30)}
    assert container_of(pod_of(SERVER))["resources"]["limits"]["memory"] == "8Gi"  # the job says more about its servers
    profiler = ProcessSpec("profile-cpu", Role.PROFILE, "cpu", 4)
    assert "memory" not in container_of(pod_of(profiler))["resources"]["limits"]  # it runs several processes
    assert "memory" not in container_of(pod_of(GPU_WORKER))["resources"]["requests"]  # that of the pool is the card's


def test_servers_that_hold_copies_of_each_others_rows_prefer_nodes_of_their_own() -> None:
    replicated = make_job(parameterServer={"replication": 2})
    [apart] = pod_of(SERVER, replicated)["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    server = pod_of(SERVER, replicated)
    assert apart["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
    worker = pod_of(CPU_WORKER, replicated)
    assert not apart["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    for spec, job in ((CPU_WORKER, replicated), (SERVER, make_job(parameterServer={"replication": 1}))):
        assert "podAntiAffinity" not in pod_of(spec, job)["spec"].get("affinity", {})


def test_a_server_requests_the_nodes_disk_that_it_may_fill() -> None:
    spill = {"memory": "4Gi", "maxBytes": "100Gi"}
    servers = make_job(parameterServer={"spill": spill})
    resources = container_of(pod_of(SERVER, servers))["resources"]
    assert resources["requests"]["ephemeral-storage"] == "100Gi"
    assert "ephemeral-storage" not in resources["limits"]
    assert "ephemeral-storage" not in container_of(pod_of(CPU_WORKER, servers))["resources"]["requests"]
    other = make_job(parameterServer={"spill": {**spill, "directory": "/nvme"}})  # that of a volume
    assert "ephemeral-storage" not in container_of(pod_of(SERVER, other))["resources"]["requests"]


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_template_adds_and_replaces_what_is_only_proposed() -> None:
    template = {
        "metadata": {"labels": {"team": "ads"}, "annotations": {"a": "b"}, "name": "mine", "finalizers": ["x/y"]},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "serviceAccountName": "reader",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {
                    "name": "heterps",
                    "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
                    "resources": {"limits": {"memory": "4Gi"}},
                    "volumeMounts": [{"name": "disk", "mountPath": "/var/heterps"}],
                },
                {"name": "sidecar", "image": "proxy:1"},
            ],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}],
        },
    }
    pod = pod_of(GPU_WORKER, make_job(podTemplates={"all": template}))
    check(pod)
    metadata, container = pod["metadata"], container_of(pod)
    assert metadata["labels"]["team"] == "ads"
    assert metadata["name"] == "flights-worker-1-0-1-1"
    assert "finalizers" not in metadata
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    assert pod["spec"]["serviceAccountName"] == "reader"
    assert [t["key"] for t in pod["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "spot", "nvidia.com/gpu",
    ]  # fmt: skip
    assert environment(pod)["AWS_REGION"] == "eu-west-1"
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": "1"}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {"/dev/shm": "heterps-shm", "/var/heterps": "disk", "/etc/heterps": "heterps-config"}
    assert container_of(pod, "sidecar")["image"] == "proxy:1"


def test_a_template_cannot_change_what_the_control_loop_relies_on() -> None:
    template = {
        "metadata": {"labels": {"heterps.io/job": "other"}, "annotations": {"heterps.io/process": "{}"}},
        "spec": {
            "restartPolicy": "Always",
            "hostname": "me",
            "subdomain": "elsewhere",
            "nodeSelector": {"node.example.com/gpu": "a100", "zone": "b"},
            "containers": [{
                "name": "heterps", "command": ["sh"], "args": ["-c", "exit"], "restartPolicy": "Always",
                "env": [{"name": "HETERPS_TOKEN", "value": "known"}, {"name": "HETERPS_TOKEN", "value": "twice"}],
                "resources": {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}},
                "volumeMounts": [{"name": "mine", "mountPath": "/etc/heterps/"}],
            }],
            "volumes": [{"name": "heterps-config", "emptyDir": {}}],
        },
    }  # fmt: skip
    pod = pod_of(GPU_WORKER, make_job(podTemplates={"all": template}))
    check(pod)
    container = container_of(pod)
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["hostname"] == "worker-1-0"
    assert pod["spec"]["subdomain"] == "flights"
    assert pod["spec"]["nodeSelector"] == {"node.example.com/gpu": "v100", "zone": "b"}
    assert pod["metadata"]["labels"]["heterps.io/job"] == "flights"
    assert process_of(pod) == GPU_WORKER
    assert container["command"][0] == "heterps-runtime"
    assert not {"args", "restartPolicy"} & container.keys()
    assert environment(pod)["HETERPS_TOKEN"] == {"secretKeyRef": {"name": "flights-token", "key": "token"}}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/etc/heterps")]
    assert mounts == [{"name": "heterps-config", "mountPath": "/etc/heterps", "readOnly": True}]
    assert {"name": "heterps-config", "configMap": {"name": "flights-run"}} in pod["spec"]["volumes"]


def test_templates_are_merged_from_all_to_role_to_pool() -> None:
    def image(name: str) -> Json:
        return {"spec": {"containers": [{"name": "heterps", "image": name}]}}

    job = make_job(podTemplates={"all": image("all:1"), "parameterServer": image("ps:1"), "worker": image("w:1")})
    of_pool(job, "v100", image("cuda:1"))
    images = {spec.name: container_of(pod_of(spec, job))["image"] for spec in SPECS}
    assert images == {
        "coordinator": "all:1", "ps-0": "ps:1", "worker-0-1": "w:1", "worker-1-0": "cuda:1", "profile-v100": "cuda:1",
    }  # fmt: skip
    assert image_of(job, POOLS["v100"]) == "cuda:1"
    assert image_of(make_job(), POOLS["cpu"]) == "registry.example.com/flights:1"
    assert image_of(make_job(image=None), POOLS["cpu"]) == ""


def test_a_limit_of_a_template_leaves_no_larger_request() -> None:
    template = {"spec": {"containers": [{"name": "heterps", "resources": {"limits": {"cpu": "500m"}}}]}}
    job = make_job(podTemplates={"worker": template, "coordinator": template})
    assert container_of(pod_of(GPU_WORKER, job))["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert container_of(pod_of(COORDINATOR, job))["resources"]["requests"] == {"memory": "256Mi"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["heterps", "HETERPS_TOKEN", "/etc/heterps", "x"]),
    lambda children: st.lists(children, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["name", "spec", "containers", "env", "volumes", "volumeMounts", "mountPath", "resources", "limits",
             "metadata", "labels", "annotations", "tolerations", "command", "args", "nodeSelector", "value"]
        ),
        children,
        max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


def _holds(required: Any, found: Any) -> bool:
    """Whether one document contains everything of another; lists of named objects may hold more."""
    if isinstance(required, dict):
        return isinstance(found, dict) and all(key in found and _holds(required[key], found[key]) for key in required)
    if isinstance(required, list) and required and isinstance(required[0], dict):
        return isinstance(found, list) and all(any(_holds(item, other) for other in found) for item in required)
    return bool(required == found)


@settings(max_examples=60, deadline=None)
@given(template=st.fixed_dictionaries({"spec": _json, "metadata": _json}), role=_json, which=st.sampled_from(SPECS))
def test_no_template_takes_anything_away_that_heterps_must_set(template: Json, role: Any, which: ProcessSpec) -> None:
    job = make_job(podTemplates={"all": template, "worker": role, "coordinator": role})
    of_pool(job, "cpu", role)
    before = copy.deepcopy(job)
    pod, plain = pod_of(which, job), pod_of(which)
    assert job == before
    json.dumps(pod)
    container, expected = container_of(pod), container_of(plain)
    assert _holds(plain["metadata"]["labels"], pod["metadata"]["labels"])
    own = {key: value for key, value in plain["metadata"]["annotations"].items() if key.startswith("heterps.io/")}
    assert _holds(own, pod["metadata"]["annotations"])
    for key in ("name", "namespace", "ownerReferences"):
        assert pod["metadata"][key] == plain["metadata"][key]
    for key in ("restartPolicy", "hostname", "subdomain", "nodeSelector"):
        assert key not in plain["spec"] or _holds(plain["spec"][key], pod["spec"][key])
    assert container["command"] == expected["command"]
    assert "args" not in container
    assert container.get("readinessProbe") == expected.get("readinessProbe")
    required = {name: value for name, value in environment(plain).items() if name != "NVIDIA_VISIBLE_DEVICES"}
    assert _holds(required, environment(pod))
    assert {"name": "heterps-config", "mountPath": "/etc/heterps", "readOnly": True} in container["volumeMounts"]
    assert {"name": "heterps-config", "configMap": {"name": "flights-run"}} in pod["spec"]["volumes"]
    if which.units:
        assert _holds({"limits": expected["resources"]["limits"]}, container["resources"])


@settings(max_examples=60, deadline=None)
@given(_json, _json)
def test_merging_changes_neither_layer_and_the_upper_one_wins(lower: Any, upper: Any) -> None:
    before = copy.deepcopy((lower, upper))
    merged = merge(lower, upper)
    assert (lower, upper) == before
    assert not _containers(merged) & (_containers(lower) | _containers(upper)), "nothing is shared"
    if isinstance(upper, dict):
        plain = {key: value for key, value in upper.items() if not isinstance(value, dict | list | None)}
        assert plain.items() <= {key: value for key, value in merged.items() if key in plain}.items()
        assert not any(key in merged for key, value in upper.items() if value is None)


def _containers(value: Any) -> set[int]:
    """The identities of all mappings and lists of a document."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return set() if items is None else {id(value)}.union(*map(_containers, items))


# --- gangs ----------------------------------------------------------------------------------------------------------


def test_gang_schedulers_know_members_by_their_group() -> None:
    volcano = make_job(runPolicy={"schedulingPolicy": {"gang": "Volcano", "schedulerName": "volcano"}})
    assert pod_of(SERVER, volcano)["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "flights-1"
    assert pod_of(SERVER, volcano)["spec"]["schedulerName"] == "volcano"
    assert "scheduling.k8s.io/group-name" not in pod_of(PROFILER, volcano)["metadata"]["annotations"]
    policy = {"gang": "Coscheduling", "schedulerName": "mine"}
    coscheduling = make_job(runPolicy={"schedulingPolicy": policy})
    assert pod_of(SERVER, coscheduling)["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "flights-1"
    assert pod_of(SERVER, coscheduling)["spec"]["schedulerName"] == "mine"
