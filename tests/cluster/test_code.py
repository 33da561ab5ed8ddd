"""Jobs whose model is in no image and on no volume: `heterps submit --code`, in real pods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.client.code import bring_code
from tests.cluster.building import ROOT
from tests.cluster.helm import kubeconfig_of
from tests.cluster.jobs import SHARED, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

MODULE = "brought_along"
READ_ONLY = {"readOnlyRootFilesystem": True}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with the model of the small job under another name, and the cache of a data set, which stays out."""
    folder = tmp_path / "code"
    (folder / ".heterps" / "cache").mkdir(parents=True)
    (folder / ".heterps" / "cache" / "data.npy").write_bytes(os.urandom(2 << 20))
    source = ROOT / "tests" / "heterps_operator" / "helpers" / "small_model.py"
    (folder / f"{MODULE}.py").write_bytes(source.read_bytes())
    return folder


def without_the_model(job: ClusterJob) -> ClusterJob:
    """Let a job import a module that its pods do not have, on a root file system that is read-only."""
    job.job["spec"]["model"]["entrypoint"] = f"{MODULE}:build"
    [container] = job.job["spec"]["podTemplates"]["all"]["spec"]["containers"]
    container["env"] = [item for item in container["env"] if item["name"] != "PYTHONPATH"]
    container["securityContext"] = READ_ONLY
    return job


def heterps(kubeconfig: Path, *arguments: str) -> str:
    """Run the command; return what it prints."""
    command = [sys.executable, "-m", "heterps_operator", *arguments, f"--kubeconfig={kubeconfig}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def config_map(kubectl: Kubectl, name: str) -> Json | None:
    answer = kubectl.try_to("get", "configmap", name, "--output=json")
    found: Json | None = json.loads(answer.output) if answer.code == 0 else None
    return found


def test_a_folder_that_is_submitted_is_all_that_a_job_needs(
    make: Make, admin: Kubectl, kubectl: Kubectl, code: Path, tmp_path: Path
) -> None:
    """Two jobs with the same code share its ConfigMap, which is deleted with the last of them."""
    # The log of a pod is read that a job's end would delete if it still runs.
    first = without_the_model(make("brought", spec={"runPolicy.cleanPodPolicy": "None"}))
    second = without_the_model(make("again", spec={"runPolicy.suspend": True}))  # it only has to exist
    # The rights that the chart's role for users grants, and no others.
    text = (ROOT / "helm" / "heterps" / "templates" / "userroles.yaml").read_text()
    plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
    _, editor, _ = yaml.safe_load_all(plain)
    kubectl.apply({**editor, "kind": "Role", "metadata": {"name": "editor"}}, first.pool)
    kubectl("create", "serviceaccount", "ann")
    kubectl("create", "rolebinding", "ann", "--role=editor", f"--serviceaccount={kubectl.namespace}:ann")
    assert kubectl.namespace is not None
    person = kubeconfig_of(admin, tmp_path, "ann", kubectl.namespace)
    files = []
    for job in (first, second):
        files.append(tmp_path / f"{job.name}.yaml")
        files[-1].write_text(yaml.safe_dump_all([job.pool, job.job]))
        job.job["spec"]["code"] = bring_code(code, SHARED).spec
    first.keep_profile()
    out = heterps(person, "submit", str(files[0]), "--code", str(code))
    name = first.job["spec"]["code"]["configMap"]["name"]
    assert f"ConfigMap {name}: created" in out
    assert f"ConfigMap {name}: unchanged" in heterps(person, "submit", str(files[1]), "--code", str(code))
    first.wait_for_phase("Succeeded")
    assert "tables.carrier.weight" in first.model()
    [worker] = first.pods("worker")
    [init] = worker["spec"]["initContainers"]
    assert init["securityContext"]["readOnlyRootFilesystem"] is True
    said = kubectl("logs", worker["metadata"]["name"], "--container=heterps-code")
    assert f"code: 1 file(s) from ConfigMap {name}" in said
    kept = config_map(kubectl, name)
    assert kept is not None
    assert {owner["name"] for owner in kept["metadata"]["ownerReferences"]} == {"brought", "again"}
    first.delete()
    wait_until(
        "one of its owners is gone",
        lambda: len((config_map(kubectl, name) or kept)["metadata"]["ownerReferences"]) == 1,
        60,
    )
    second.delete()
    wait_until("the code is gone", lambda: config_map(kubectl, name) is None, 60)


def test_damaged_code_fails_the_job_with_the_reason(make: Make, kubectl: Kubectl, code: Path) -> None:
    brought = bring_code(code, SHARED)
    assert brought.packed is not None
    job = without_the_model(make("damaged", spec={"code": brought.spec, "runPolicy.backoffLimit": 0}))
    damaged = brought.packed.data[:-30] + bytes(30)
    kubectl.apply({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": brought.spec["configMap"]["name"]},
        "binaryData": {"code.zip": b64encode(damaged).decode()},
    })  # fmt: skip
    job.submit()
    status = job.wait_for_phase("Failed")
    assert job.condition("Failed")["reason"] == "BadInput"
    assert "init container heterps-code ended with exit code 2" in status["message"]
    assert f"but the job names {brought.packed.sha256}: it is damaged or was replaced" in status["message"]
    assert "submit the code again (heterps submit --code)" in status["message"]
