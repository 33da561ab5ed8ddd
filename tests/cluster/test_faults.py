"""Whatever breaks: the job ends with the very model of a job that nothing happened to.

Training is `sync`, in which a sample that is lost, or applied twice, changes the model: equal models are the proof that
each was applied once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_operator.kubernetes.api import KubernetesApi
from tests.cluster.cluster import Cluster
from tests.cluster.jobs import FINAL, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE, Operator

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(900)

LEAST_DEATHS = 8  # a job takes some twenty actions to its end


@pytest.fixture(scope="module")
def namespace(admin: Kubectl, custom_resources: None) -> None:
    if admin.try_to("get", "namespace", NAMESPACE).code:
        admin("create", "namespace", NAMESPACE)


@pytest.fixture
def operator(admin: Kubectl, namespace: None, tmp_path: Path) -> Iterator[Operator]:
    with Operator(admin.kubeconfig, tmp_path, "--lease-seconds", "3") as running:
        yield running


@pytest.fixture
def make(kubectl: Kubectl, api: KubernetesApi, folder: Path) -> Iterator[Make]:
    made: list[ClusterJob] = []

    def job(name: str, **changes: Any) -> ClusterJob:
        spec = {"scheduling.stages": [{"pool": "", "lastLayer": "output", "units": 2}], **changes.pop("spec", {})}
        made.append(ClusterJob(kubectl, api, folder, name, spec=spec, pool={"maxUnits": 4}, **changes))
        made[-1].job["spec"]["scheduling"]["stages"][0]["pool"] = made[-1].pool_name
        return made[-1]

    yield job
    for item in made:
        kubectl.try_to("delete", "heterpsjob", item.name, "--ignore-not-found", "--wait=false")
        kubectl.try_to("delete", "nodepool", item.pool_name, "--ignore-not-found", "--wait=false")


def assert_undisturbed(job: ClusterJob, make: Make) -> None:
    """Its model is that of a job that nothing happens to, which one is trained now unless there was one already."""
    undisturbed = make("undisturbed")
    if not (undisturbed.folder / "undisturbed" / "model").exists():
        undisturbed.submit().wait_for_phase("Succeeded")
    expected, trained = undisturbed.model(), job.model()
    assert set(trained) == set(expected)
    for name, values in trained.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def processes_of(pod: Json) -> list[int]:
    """Processes of this machine that run in a pod of a node of it, by their control group."""
    uid = pod["metadata"]["uid"]
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            groups = path.read_text()
            if uid in groups or uid.replace("-", "_") in groups:
                command = (path.parent / "cmdline").read_bytes()
                if b"heterps" in command:
                    found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("role", ["worker", "ps", "coordinator"])
def test_a_process_that_is_killed_changes_nothing(
    role: str, make: Make, operator: Operator, own_cluster: Cluster
) -> None:
    job = make(f"killed-{role}").submit()
    job.wait_for_step(50)
    victim = job.pods(role)[0]
    pids = processes_of(victim)
    assert pids, f"no process of {victim['metadata']['name']}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    status = job.wait_for_phase("Succeeded")
    assert status["restarts"] == 1
    assert_undisturbed(job, make)


@pytest.mark.parametrize("role", ["worker", "ps", "coordinator"])
def test_a_pod_that_is_deleted_changes_nothing(role: str, make: Make, operator: Operator) -> None:
    job = make(f"deleted-{role}").submit()
    job.wait_for_step(50)
    victim = job.pods(role)[0]["metadata"]["name"]
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    job.wait_for_phase("Succeeded")
    assert_undisturbed(job, make)


def test_training_goes_on_while_no_operator_runs(make: Make, operator: Operator) -> None:
    job = make("alone").submit()
    job.wait_for_step(20)
    operator.kill()
    [coordinator] = job.pods("coordinator")
    wait_until("all steps are done", lambda: not job.pods("worker") or all(
        pod["status"]["phase"] == "Succeeded" for pod in job.pods("worker")
    ), 240, more=job.story)  # fmt: skip
    assert job.pods("coordinator")[0]["metadata"]["uid"] == coordinator["metadata"]["uid"]
    operator.start()
    job.wait_for_phase("Succeeded")
    assert_undisturbed(job, make)


def test_a_pod_that_was_deleted_while_no_operator_ran_is_missed(make: Make, operator: Operator) -> None:
    job = make("missed").submit()
    job.wait_for_step(50)
    operator.kill()
    victim = job.pods("ps")[0]["metadata"]["name"]
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    operator.start()
    job.wait_for_phase("Succeeded")
    assert_undisturbed(job, make)


def test_operators_that_die_after_a_few_actions_still_get_the_job_done(
    make: Make, admin: Kubectl, namespace: None, tmp_path: Path
) -> None:
    """Each dies at its first, second or third action: every other one before it carries it out, the others after it."""
    job = make("dying").submit()
    deaths = 0
    for attempt in range(120):
        moment, number = ("before", "after")[attempt % 2], attempt % 3 + 1
        program = (sys.executable, "-m", "tests.cluster.faulty_operator", moment, str(number))
        running = Operator(admin.kubeconfig, tmp_path, "--lease-seconds", "1", program=program)
        running.start()
        while True:
            try:
                running.wait_until_dead(1)
            except subprocess.TimeoutExpired:
                if job.status().get("phase") in FINAL:
                    running.stop()
                    break
            else:
                deaths += 1
                break
        if job.status().get("phase") in FINAL:
            break
    status = job.wait_for_phase("Succeeded", seconds=5)
    assert deaths >= LEAST_DEATHS
    assert status["restarts"] == 0
    with Operator(admin.kubeconfig, tmp_path):
        assert_undisturbed(job, make)
