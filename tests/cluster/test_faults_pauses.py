"""Processes in pods are stopped and go on: the job trains to its end, and each sample is applied once.

Three jobs at a time, in each of which another kind of pod is stopped. The suite stops a server in `async` as long as
was seen to leave a job waiting for ever, a worker in `hybrid` for longer than it is waited for, and the coordinator in
`sync`. `--all-pauses` stops each of them for 1, 10, 28 and 60 s in each consistency (12 tests of about two minutes).
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

pytestmark = pytest.mark.timeout(1800)
PAUSES = (1.0, 10.0, 28.0, 60.0)
CONSISTENCIES = ("sync", "hybrid", "async")
ROLES = ("worker", "ps", "coordinator")
Case = tuple[str, str, float]  # role, consistency, seconds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cases" in metafunc.fixturenames:
        chosen: list[list[Case]] = [[("worker", "hybrid", 60.0), ("ps", "async", 28.0), ("coordinator", "sync", 28.0)]]
        if metafunc.config.getoption("--all-pauses"):
            chosen = [[(role, c, seconds) for role in ROLES] for c in CONSISTENCIES for seconds in PAUSES]
        names = ["-".join(f"{role}-{c}-{seconds:g}" for role, c, seconds in cases) for cases in chosen]
        metafunc.parametrize("cases", chosen, ids=names)


def test_a_pod_that_is_stopped_for_a_while_loses_nothing(cases: list[Case], make: Make, own_cluster: Cluster) -> None:
    jobs = [counting_job(make, f"paused-{role}", consistency, units=2) for role, consistency, _ in cases]
    with held(*jobs):
        for job in jobs:
            job.submit()
        for job in jobs:
            job.wait_for_step(5)
        pauses = [(seconds, stop(job, role)) for job, (role, _, seconds) in zip(jobs, cases, strict=True)]
        began = time.monotonic()
        try:
            for seconds, _ in sorted(pauses):
                time.sleep(max(0.0, began + seconds - time.monotonic()))  # not for an event: it is what is tested
                for _, handles in (pause for pause in pauses if pause[0] == seconds):
                    go_on(handles)
        finally:
            for _, handles in pauses:
                go_on(handles)
        for job in jobs:
            wait_until(f"{job.name} goes on", further(job), PATIENCE_SECONDS, more=job.story)
    for job in jobs:
        job.wait_for_phase("Succeeded")
        assert_every_sample_counted(job)


def stop(job: ClusterJob, role: str) -> list[int]:
    """Stop all processes of a pod; returns handles of them, for their pids may be others' by the time they go on."""
    handles = [os.pidfd_open(pid) for pid in processes_of(only_pod(job, role))]
    assert handles
    for handle in handles:
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
    return handles


def go_on(handles: list[int]) -> None:
    while handles:
        handle = handles.pop()
        with contextlib.suppress(ProcessLookupError):  # it has been replaced meanwhile
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)


def further(job: ClusterJob) -> Callable[[], bool]:
    """Whether it has come further than now, after a restart from a checkpoint too."""
    seen = [job.step()]

    def check() -> bool:
        seen.append(job.step())
        return seen[-1] >= min(seen) + 2

    return check
