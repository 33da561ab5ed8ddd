"""Processes in pods are paused: the job trains to its end, and each sample is applied once.

In one job, the suite pauses a server for a duration that once left a job waiting forever, a worker for longer than the
timeout, and the coordinator. `--all-pauses` stops each of them for 1, 10, 28 and 60 s in each consistency: nine jobs of
about three minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import assert_every_sample_counted, counting_job, held, only_pod, processes_of
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import wait_until

Make = Callable[..., ClusterJob]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]
PAUSES = (1.0, 10.0, 28.0, 60.0)
CONSISTENCIES = ("sync", "hybrid", "async")
ROLES = ("worker", "ps", "coordinator")
Pauses = list[tuple[str, float]]  # role, seconds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pauses" in metafunc.fixturenames:
        chosen: list[tuple[str, Pauses]] = [("hybrid", [("ps", 28.0), ("worker", 60.0), ("coordinator", 10.0)])]
        if metafunc.config.getoption("--all-pauses"):
            chosen = [(c, [(role, seconds) for seconds in PAUSES]) for c in CONSISTENCIES for role in ROLES]
        names = [f"{c}-" + "-".join(f"{role}-{seconds:g}" for role, seconds in pauses) for c, pauses in chosen]
        metafunc.parametrize(("consistency", "pauses"), chosen, ids=names)


def test_a_pod_that_is_stopped_for_a_while_loses_nothing(
    consistency: str, pauses: Pauses, make: Make, own_cluster: Cluster
) -> None:
    job = counting_job(make, "paused", consistency).submit()
    job.wait_for_step(5)
    for role, seconds in pauses:
        with held(job):
            handles = stop(job, role)
            try:
                time.sleep(seconds)  # not waiting for an event: the pause is the subject
            finally:
                go_on(handles)
            wait_until(f"the job goes on after its {role}", further(job), PATIENCE_SECONDS, more=job.story)
    job.wait_for_phase("Succeeded")
    assert_every_sample_counted(job)


def stop(job: ClusterJob, role: str) -> list[int]:
    """Stop all processes of a pod; return handles, as their pids may be reused before they continue."""
    handles = [os.pidfd_open(pid) for pid in processes_of(only_pod(job, role))]
    assert handles
    for handle in handles:
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
    return handles


def go_on(handles: list[int]) -> None:
    while handles:
        handle = handles.pop()
        with contextlib.suppress(ProcessLookupError):  # it has been replaced
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)


def further(job: ClusterJob) -> Callable[[], bool]:
    """Return whether it has progressed since, including after a restart from a checkpoint."""
    seen = [job.step()]

    def check() -> bool:
        seen.append(job.step())
        return seen[-1] >= min(seen) + 2

    return check
