"""An operator without any right in the cluster as a whole: installed, used and upgraded by users of one namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.kubernetes.api import KubernetesApi
from tests.cluster.building import ROOT
from tests.cluster.faults import MODEL, held
from tests.cluster.helm import CHART, Helm, kubeconfig_of, operator_values
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Answer, Kubectl, wait_until
from tests.cluster.test_chart import refused

Json = dict[str, Any]

ROLES = "heterps-roles"  # release of the administrator


@pytest.fixture
def administrator(helm: Helm, admin: Kubectl, custom_resources: None, kubectl: Kubectl) -> Iterator[None]:
    """What an administrator does once, without the custom resources, which are there."""
    options = ("--set=scope=cluster", "--set=crds.enabled=false", "--set=admissionPolicy=false")
    place = f"--namespace={kubectl.namespace}"
    installed = helm("install", ROLES, str(CHART), place, *options, kubeconfig=admin.kubeconfig)
    assert installed.code == 0, installed.errors
    yield
    helm("uninstall", ROLES, place, kubeconfig=admin.kubeconfig)


def person(admin: Kubectl, kubectl: Kubectl, folder: Path, name: str, *roles: str) -> Path:
    """Return the kubeconfig of a new user with these ClusterRoles in the namespace, and no other right."""
    assert kubectl.namespace is not None
    kubectl("create", "serviceaccount", name)
    for role in roles:
        account = f"--serviceaccount={kubectl.namespace}:{name}"
        kubectl("create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}", account)
    return kubeconfig_of(admin, folder, name, kubectl.namespace)


@pytest.mark.timeout(600)
def test_users_of_a_namespace_install_an_operator_and_train_with_it(
    administrator: None, helm: Helm, admin: Kubectl, kubectl: Kubectl, api: KubernetesApi, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    place = f"--namespace={kubectl.namespace}"
    lead = person(admin, kubectl, tmp_path, "lead", "admin", f"{ROLES}-operator")
    user = person(admin, kubectl, tmp_path, "user", "edit")
    job = ClusterJob(kubectl, api, tmp_path / "shared", "told", spec={"model.entrypoint": MODEL})
    job.job["spec"]["scheduling"]["stages"][0]["units"] = 2
    name, pool = job.pool_name, job.pool["spec"]
    file, values = tmp_path / "job.yaml", tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(job.job))

    def chart(command: str, max_units: int) -> None:
        pools = {name: {**pool, "maxUnits": max_units}}
        values.write_text(yaml.safe_dump({**operator_values(), "scope": "namespace", "pools": pools}))
        wait = ("--wait", "--timeout=300s")
        done = helm(command, "heterps", str(CHART), place, f"--values={values}", *wait, kubeconfig=lead)
        assert done.code == 0, done.errors

    def heterps(*arguments: str) -> Answer:
        ran = subprocess.run(
            [sys.executable, "-m", "heterps_operator", *arguments],
            env={**os.environ, "KUBECONFIG": str(user), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    chart("install", max_units=1)
    job.pool["spec"]["maxUnits"] = 3  # as the profile of its later plan says
    job.keep_profile()
    [operator] = kubectl.items("pods", "--selector=app.kubernetes.io/component=operator")
    try:
        # Pools that the chart does not have, or not enough of.
        kubectl.apply({**job.job, "metadata": {"name": "lost"}, "spec": {
            **job.job["spec"], "pools": [{"name": "nowhere"}], "scheduling": {},
        }})  # fmt: skip
        lost = ClusterJob(kubectl, api, tmp_path / "shared", "lost")
        message = lost.wait_for_condition("Planned", "False", "PoolNotFound", 30)["message"]
        assert "there is no DevicePool nowhere in `pools` of the operator's chart; add it there" in message
        assert f"(there is {name})" in message
        submitted = heterps("submit", str(file))
        assert submitted.code == 0, submitted.errors
        assert "HeterPSJob told: created" in submitted.output
        assert "the limit is 1" in job.wait_for_condition("Planned", "False", "InvalidSpec", 30)["message"]
        with held(job):
            chart("upgrade", max_units=3)  # two workers and a server
            job.wait_for_phase("Running")
            job.wait_for_step(2)
            chart("upgrade", max_units=4)
            log = ("logs", operator["metadata"]["name"])
            wait_until("the change is seen", lambda: kubectl(*log).count("the pools are") == 3, 60)
            step = job.step()
            job.wait_for_step(step + 1)
            seen = {command: heterps(command, "told") for command in ("top", "explain", "status", "logs")}
        status = job.wait_for_phase("Succeeded")
        report = heterps("report", "told", "--html", str(tmp_path / "told.html"))
        story = kubectl(*log)
        [same] = kubectl.items("pods", "--selector=app.kubernetes.io/component=operator")
    finally:
        print(kubectl.try_to("logs", "--selector=app.kubernetes.io/component=operator").output)  # noqa: T201
        helm("uninstall", "heterps", place, kubeconfig=lead)
    assert {command: answer.code for command, answer in seen.items()} == dict.fromkeys(seen, 0), seen
    assert "the cheapest plan of each other kind" in seen["explain"].output
    assert report.code == 0, report.errors
    assert "What speed costs" in (tmp_path / "told.html").read_text()
    assert status["restarts"] == 0
    # Neither upgrade replaced the operator, and it asked for nothing that it may not have.
    assert same["metadata"]["uid"] == operator["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    for word in ("forbidden", "Traceback", "ERROR"):
        assert word not in story, story
    account = f"system:serviceaccount:{kubectl.namespace}:heterps"
    cluster_wide = [(verb, kind) for verb in ("list", "watch") for kind in ("nodes", "devicepools.heterps.io")]
    assert len(refused(admin, cluster_wide, "", account)) == len(cluster_wide)
