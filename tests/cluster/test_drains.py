"""Nodes are drained: jobs leave them in time, and lose no committed step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.loop.coordinator_client import CoordinatorError
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.faults import assert_every_sample_counted, counting_job, held, hold_anew
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until

Make = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(1800)

DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s")


@pytest.fixture
def nodes(own_cluster: Cluster) -> Iterator[list[str]]:
    """The nodes' names; all of them take pods after the test."""
    names, kubectl = sorted(own_cluster.nodes), own_cluster.kubectl
    yield names
    kubectl("uncordon", *names)
    wait_until("all nodes take pods", lambda: not any(n["spec"].get("taints") for n in kubectl.items("nodes")))


def test_each_node_is_drained_while_jobs_train(make: Make, own_cluster: Cluster, nodes: list[str]) -> None:
    """`kubectl drain` ends as soon as the jobs have left, although their budgets allow no eviction.

    The nodes have six cores for two jobs of two, and for their coordinators. So one job may have to wait until the node
    takes pods again.
    """
    jobs = [counting_job(make, f"of-{consistency}", consistency) for consistency in ("sync", "async")]
    with held(*jobs), Steps(jobs) as steps:
        for job in jobs:
            job.submit()
        for job in jobs:
            job.wait_for_step(2)
        for name in nodes:
            own_cluster.kubectl("drain", name, *DRAIN)
            assert [job.name for job in jobs if name in nodes_of(job)] == []
            own_cluster.kubectl("uncordon", name)
            hold_anew(*jobs)
            for job in jobs:
                job.wait_for_step(job.step() + 2)
    moves = [told for job in jobs for told in job.told("JobMoves")]
    assert any("is cordoned: the job saves a checkpoint" in told for told in moves), moves
    assert steps.lost == [], "every stop saves all committed steps"
    for job in jobs:
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
        assert_every_sample_counted(job)


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


def nodes_of(job: ClusterJob) -> set[str]:
    """The nodes on which pods of a job run or are about to."""
    live = [pod for pod in job.pods() if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
    return {str(pod["spec"].get("nodeName") or "") for pod in live} - {""}
