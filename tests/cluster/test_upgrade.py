"""`helm upgrade` and `helm rollback` of the operator while jobs train: they do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.faults import (
    assert_each_pod_was_made_once,
    assert_every_sample_counted,
    counting_job,
    held,
    kill_pod,
    only_pod,
    small_job,
    wait_for_successor,
)
from tests.cluster.helm import CHART, INSTALLED, Helm, Installed, installed_chart, operator_values
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.releases import releases, unpack
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

WAIT = ("--wait", "--timeout=600s")
NODE = {"kubernetes.io/hostname": "cpu-0"}  # of all pods without units, so that the other nodes have room for the rest


@pytest.fixture(scope="module", params=releases())
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier release."""
    folder = tmp_path_factory.mktemp("release")
    folder.chmod(0o755)
    return unpack(str(request.param), folder)


def values_file(folder: Path, release: Path | None) -> str:
    """Write the values with which the chart runs a release, and return the option for them."""
    path = folder / f"{'present' if release is None else release.name}.yaml"
    path.write_text(yaml.safe_dump({**operator_values(release), "nodeSelector": NODE}))
    return f"--values={path}"


@pytest.fixture
def installed(release: Path, custom_resources: None, helm: Helm, admin: Kubectl, tmp_path: Path) -> Iterator[Installed]:
    """The release is installed with its own chart."""
    with installed_chart(
        helm, admin, release / "helm" / "heterps", values_file(tmp_path, release), *WAIT
    ) as on_cluster:
        yield on_cluster
        print(admin.try_to("logs", "deployment/heterps", f"--namespace={INSTALLED}").output)  # noqa: T201


def folder_of_operator(admin: Kubectl) -> Path:
    """Return the folder from which the operator's pod runs."""
    program = "import heterps_operator; print(heterps_operator.__file__)"
    found = admin("exec", "deployment/heterps", f"--namespace={INSTALLED}", "--", "python", "-c", program)
    return Path(found.strip()).parents[2]


def memory_of(job: ClusterJob) -> Json:
    """Return what no operator may lose of a job."""
    status = job.status()
    return {
        "pods": {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()},
        "plan": status["plan"]["revision"],
        "restarts": status["restarts"],
        "startTime": status["startTime"],
    }


def wait_for_turn(job: ClusterJob) -> None:
    """Wait until an operator has accounted for a job that trains."""
    before = float(job.status()["cost"]["total"])
    wait_until("its bill grows", lambda: float(job.status()["cost"]["total"]) > before, 120, more=job.story)


def replace(job: ClusterJob, role: str) -> None:
    """Kill a process of a job, and wait until the job trains with another one."""
    victim = only_pod(job, role)
    kill_pod(victim)
    wait_for_successor(job, role, victim)
    job.wait_for_step(job.step() + 1)


def test_running_jobs_do_not_notice_an_upgrade_or_a_rollback(
    release: Path, installed: Installed, make_alone: Make, admin: Kubectl, tmp_path: Path, expected_model: Json
) -> None:
    steady = small_job(make_alone, "steady")
    struck = counting_job(make_alone, "struck", "hybrid")
    for job in (steady, struck):
        job.job["spec"]["podTemplates"]["coordinator"] = {"spec": {"nodeSelector": NODE}}
    assert folder_of_operator(admin) == release
    with held(steady, struck):
        for job in (steady, struck):
            job.submit()
        for job in (steady, struck):
            job.wait_for_step(2)
            wait_for_turn(job)
        before = {job.name: memory_of(job) for job in (steady, struck)}

        installed("upgrade", "heterps", str(CHART), values_file(tmp_path, None), *WAIT)
        assert folder_of_operator(admin) != release
        for job in (steady, struck):
            wait_for_turn(job)
            assert memory_of(job) == before[job.name]
        replace(struck, "worker")
        after = memory_of(struck)
        assert after["restarts"] == 1

        installed("rollback", "heterps", "1", *WAIT)
        assert folder_of_operator(admin) == release
        for job, memory in ((steady, before[steady.name]), (struck, after)):
            wait_for_turn(job)
            assert memory_of(job) == memory
        replace(struck, "ps")
    for job, restarts in ((steady, 0), (struck, 2)):
        assert job.wait_for_phase("Succeeded")["restarts"] == restarts
    assert_each_pod_was_made_once(steady)
    assert_same_model(steady.model(), expected_model)
    assert_every_sample_counted(struck)
