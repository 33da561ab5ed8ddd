"""Pods that bring code along, and credentials by reference."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.kubernetes.building.code import code_digest
from heterps_operator.state.values import ProcessSpec
from tests.heterps_operator.helpers.documents import (
    COORDINATOR,
    CPU_WORKER,
    GPU_WORKER,
    PROFILER,
    SERVER,
    SPECS,
    Json,
    container_of,
    make_job,
    pod_of,
)
from tests.heterps_operator.helpers.structure import check

MAP = {"configMap": {"name": "heterps-code-1", "sha256": "1" * 64}}
ARCHIVE = {"archive": {"uri": "s3://b/code.zip", "sha256": "1" * 64}}
GIT = {"git": {"repository": "https://h/r", "revision": "a" * 40, "secretName": "git"}}
CREDENTIALS = [{"secretName": "s3"}, {"secretName": "proxy"}]
SECRETS = [{"secretRef": {"name": "s3"}}, {"secretRef": {"name": "proxy"}}]


def init_of(pod: Json) -> Json:
    found: Json = pod["spec"]["initContainers"][0]
    assert found["name"] == "heterps-code"
    return found


def mounts(container: Json) -> dict[str, tuple[str, bool]]:
    return {m["mountPath"]: (m["name"], m.get("readOnly", False)) for m in container["volumeMounts"]}


def volume(pod: Json, name: str) -> Any:
    [found] = [item for item in pod["spec"]["volumes"] if item["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


@pytest.mark.parametrize("spec", [CPU_WORKER, GPU_WORKER, PROFILER], ids=lambda spec: spec.name)
@pytest.mark.parametrize("code", [MAP, ARCHIVE, GIT], ids=["configMap", "archive", "git"])
def test_who_imports_the_model_gets_its_code_first_and_read_only(spec: ProcessSpec, code: Json) -> None:
    pod = pod_of(spec, make_job(code=code, credentials=CREDENTIALS))
    check(pod)
    init, runtime = init_of(pod), container_of(pod)
    assert init["command"][:4] == ["heterps-runtime", "code", "--to", "/var/heterps-code"]
    assert mounts(init)["/var/heterps-code"] == ("heterps-code", False)
    assert mounts(runtime)["/var/heterps-code"] == ("heterps-code", True)
    assert volume(pod, "heterps-code") == {"emptyDir": {"sizeLimit": "600Mi"}}
    assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert mounts(init)["/etc/heterps"] == ("heterps-config", True)


@pytest.mark.parametrize("spec", [COORDINATOR, SERVER], ids=lambda spec: spec.name)
def test_who_imports_nothing_gets_no_code(spec: ProcessSpec) -> None:
    assert pod_of(spec, make_job(code=MAP)) == pod_of(spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_job_without_code_has_no_init_container(spec: ProcessSpec) -> None:
    assert "initContainers" not in pod_of(spec)["spec"]


def test_the_archive_of_a_config_map_is_mounted_where_only_the_init_container_sees_it() -> None:
    pod = pod_of(CPU_WORKER, make_job(code=MAP))
    assert init_of(pod)["command"][4:] == ["--archive", "/etc/heterps-code/code.zip"]
    assert volume(pod, "heterps-code-archive") == {
        "configMap": {"name": "heterps-code-1", "items": [{"key": "code.zip", "path": "code.zip"}]}
    }
    assert "/etc/heterps-code" not in mounts(container_of(pod))


def test_the_secret_of_a_repository_is_mounted_where_only_the_init_container_sees_it() -> None:
    pod = pod_of(CPU_WORKER, make_job(code=GIT))
    assert init_of(pod)["command"][4:] == ["--secret", "/etc/heterps-git"]
    assert volume(pod, "heterps-code-secret") == {"secret": {"secretName": "git"}}
    assert mounts(init_of(pod))["/etc/heterps-git"] == ("heterps-code-secret", True)
    assert "/etc/heterps-git" not in mounts(container_of(pod))
    public = pod_of(CPU_WORKER, make_job(code={"git": {**GIT["git"], "secretName": None}}))
    assert init_of(public)["command"][4:] == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_credentials_reach_the_runtime_of_every_role_before_those_of_templates(spec: ProcessSpec) -> None:
    own = {"secretRef": {"name": "own"}}
    containers = [{"name": "heterps", "envFrom": [own]}, {"name": "sidecar", "image": "proxy:1"}]
    template = {"spec": {"containers": containers, "initContainers": [{"name": "data", "image": "data:1"}]}}
    pod = pod_of(spec, make_job(credentials=CREDENTIALS, podTemplates={"all": template}))
    check(pod)
    assert container_of(pod)["envFrom"] == [*SECRETS, own]
    assert "envFrom" not in container_of(pod, "sidecar")
    assert all("envFrom" not in item for item in pod["spec"]["initContainers"])


def test_credentials_reach_the_init_container_only_for_an_archive() -> None:
    pods = [pod_of(CPU_WORKER, make_job(code=code, credentials=CREDENTIALS)) for code in (MAP, ARCHIVE, GIT)]
    assert [init_of(pod).get("envFrom") for pod in pods] == [None, SECRETS, None]


def test_the_init_container_runs_as_the_runtime_does_but_without_its_token_and_cards() -> None:
    hardened = {"runAsNonRoot": True, "readOnlyRootFilesystem": True}
    container = {
        "name": "heterps",
        "image": "registry.example.com/other:1",
        "imagePullPolicy": "Never",
        "securityContext": hardened,
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs"}],
        "resources": {"limits": {"memory": "4Gi"}},
    }
    job = make_job(code=ARCHIVE, podTemplates={"all": {"spec": {"containers": [container]}}})
    init = init_of(pod_of(GPU_WORKER, job))
    assert init["image"] == "registry.example.com/other:1"
    assert init["imagePullPolicy"] == "Never"
    assert init["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **hardened,
    }  # fmt: skip
    variables = {item["name"] for item in init["env"]}
    assert {"HTTPS_PROXY", "HETERPS_CONFIG"} <= variables
    assert not {"HETERPS_TOKEN", "HETERPS_COORDINATOR"} & variables
    assert mounts(init)["/etc/ssl/certs"] == ("ca", False)
    assert init["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "4Gi"}}
    assert init_of(pod_of(CPU_WORKER, job))["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}


def test_a_template_may_change_the_init_container_but_not_what_it_does() -> None:
    own = {
        "name": "heterps-code",
        "command": ["true"],
        "args": ["x"],
        "restartPolicy": "Always",
        "resources": {"limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "mine", "mountPath": "/var/heterps-code"}],
    }
    data = {"name": "data", "image": "data:1"}
    spec = {
        "initContainers": [data, own],
        "volumes": [{"name": "heterps-code", "hostPath": {"path": "/"}}],
        "containers": [{"name": "heterps", "volumeMounts": [{"name": "mine", "mountPath": "/var/heterps-code"}]}],
    }
    pod = pod_of(CPU_WORKER, make_job(code=MAP, podTemplates={"worker": {"spec": spec}}))
    check(pod)
    init = init_of(pod)
    assert pod["spec"]["initContainers"] == [init, data]
    assert init["resources"]["limits"] == {"cpu": "4", "memory": "1Gi"}
    assert init["command"][:2] == ["heterps-runtime", "code"]
    assert not {"args", "restartPolicy"} & set(init)
    assert mounts(init)["/var/heterps-code"] == ("heterps-code", False)
    assert mounts(container_of(pod))["/var/heterps-code"] == ("heterps-code", True)
    assert "emptyDir" in volume(pod, "heterps-code")


@pytest.mark.parametrize("value", ["x", {"a": 1}, 3, [None], [["x"]], [{"name": 3}]])
@pytest.mark.parametrize("field", ["initContainers", "volumes"])
def test_a_malformed_template_is_left_to_the_api_server(field: str, value: Any) -> None:
    template = {"spec": {field: value, "containers": [{"name": "heterps", "env": value, "volumeMounts": value}]}}
    pod = pod_of(CPU_WORKER, make_job(code=MAP, credentials=CREDENTIALS, podTemplates={"all": template}))
    assert init_of(pod)["command"][:2] == ["heterps-runtime", "code"]


def test_code_is_told_apart_by_its_contents_wherever_they_are_kept() -> None:
    digests = [code_digest(make_job(code=code)) for code in (MAP, ARCHIVE, GIT, {"git": {**GIT["git"], "path": "a"}})]
    assert digests == ["1" * 64, "1" * 64, f"{'a' * 40}:", f"{'a' * 40}:a"]
    assert code_digest(make_job()) is None
