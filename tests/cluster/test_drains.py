"""Nodes are drained: jobs leave them in time, and lose no committed step."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError, connect
from heterps_operator.kubernetes.names import LABEL_JOB
from heterps_operator.loop.coordinator_client import CoordinatorError
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import need_cluster_made_here
from tests.cluster.errors import ClusterError
from tests.cluster.faults import LASTING, assert_every_sample_counted, counting_job, held, hold_anew, only_pod
from tests.cluster.helm import Helm, grant, install_custom_resources, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.nodes import Node
from tests.cluster.operators import NAMESPACE, Operator

pytestmark = [pytest.mark.timeout(2400), pytest.mark.slow]

# Of two cores each. Without one of them, ten cores are left for six units and three coordinators.
NODES = tuple(Node(f"cpu-{number}") for number in range(6))

DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s")


@pytest.fixture
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of this test alone."""
    need_cluster_made_here(pytestconfig)
    with Cluster(NODES, name=f"{os.getpid()}-d") as running, running.entered():
        yield running


@pytest.fixture
def jobs(cluster: Cluster, helm: Helm, tmp_path: Path) -> Iterator[list[ClusterJob]]:
    """Three jobs of each consistency, and an operator with the chart's rights."""
    admin = cluster.kubectl
    install_custom_resources(admin)
    for name in (NAMESPACE, "ml"):
        admin("create", "namespace", name)
    kubectl = Kubectl(admin.kubeconfig, admin.cache, "ml")
    wait_until("pods can be created", lambda: not kubectl.try_to("get", "serviceaccount", "default").code, 30)
    api = connect(str(admin.kubeconfig))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    def make(name: str, **changes: Any) -> ClusterJob:
        return ClusterJob(kubectl, api, shared, name, **changes)

    rights = kubeconfig_of(admin, tmp_path, grant(helm, admin, "tests", NAMESPACE), NAMESPACE)
    with Operator(rights, tmp_path, *LASTING):
        yield [counting_job(make, f"of-{consistency}", consistency) for consistency in ("sync", "hybrid", "async")]


def test_nodes_are_drained_while_three_jobs_train(cluster: Cluster, jobs: list[ClusterJob]) -> None:
    """`kubectl drain` ends as soon as the jobs have left, although their budgets allow no eviction.

    Each job has two units and a coordinator, so all three find room on the other five nodes, and train on there before
    the node takes pods again. A server takes its whole job along; a worker leaves alone.
    """
    with held(*jobs), Steps(jobs) as steps:
        for job in jobs:
            job.submit()
        for job in jobs:
            job.wait_for_step(2)
        for job in jobs:
            if not job.told("JobMoves"):  # it has not left with another one
                drain(cluster.kubectl, jobs, node_of(job, "ps"))
        drain(
            cluster.kubectl, jobs, min((node_of(job, "worker") for job in jobs), key=lambda node: company(jobs, node))
        )
    for job in jobs:
        moves = job.told("JobMoves")
        assert any("is cordoned: the job saves a checkpoint" in told for told in moves), moves
    assert steps.lost == [], "every stop saves all committed steps"
    for job in jobs:
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
        assert_every_sample_counted(job)
    # Nothing is left behind: neither on the nodes nor of the jobs.
    for job in jobs:
        job.delete()
    kinds = "pods,services,secrets,poddisruptionbudgets,networkpolicies,heterpsjobstates"
    of_jobs = f"--selector={LABEL_JOB}"
    wait_until("all of the jobs is gone", lambda: not jobs[0].kubectl.items(kinds, of_jobs), 120)
    assert [node["metadata"]["name"] for node in cluster.kubectl.items("nodes") if node["spec"].get("taints")] == []


class Steps:
    """Follows the committed steps of jobs, across their coordinators, in a thread.

    Attributes:
        lost: what a later coordinator did not know of.
    """

    def __init__(self, jobs: Sequence[ClusterJob]) -> None:
        self.lost: list[str] = []
        self._jobs = jobs
        self._furthest = dict.fromkeys((job.name for job in jobs), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(0.1):
            for job in self._jobs:
                with contextlib.suppress(CoordinatorError, ClusterError, ApiError, ValueError):
                    self._look(job.name, job.coordinator().status())

    def _look(self, name: str, status: Mapping[str, Any]) -> None:
        if status["phase"] != "Training":
            return
        step, furthest = int(status["committedSteps"]), self._furthest[name]
        if step < furthest:
            self.lost.append(f"{name}: from step {furthest} back to {step}")
        self._furthest[name] = step


def drain(kubectl: Kubectl, jobs: Sequence[ClusterJob], node: str) -> None:
    """Drain a node, which takes pods again as soon as all jobs train elsewhere."""
    kubectl("drain", node, *DRAIN)
    assert [job.name for job in jobs if node in nodes_of(job)] == []
    hold_anew(*jobs)
    for job in jobs:
        job.wait_for_step(job.step() + 2)
    assert [job.name for job in jobs if node in nodes_of(job)] == [], "no pod came back to it"
    kubectl("uncordon", node)


def node_of(job: ClusterJob, role: str) -> str:
    """The node on which the only process of a role runs."""
    return str(only_pod(job, role)["spec"]["nodeName"])


def company(jobs: Sequence[ClusterJob], node: str) -> int:
    """The number of coordinators and servers on a node."""
    return sum(node_of(job, role) == node for job in jobs for role in ("coordinator", "ps"))


def nodes_of(job: ClusterJob) -> set[str]:
    """The nodes on which pods of a job run or are about to."""
    live = [pod for pod in job.pods() if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
    return {str(pod["spec"].get("nodeName") or "") for pod in live} - {""}
