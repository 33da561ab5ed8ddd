"""Fault injection into jobs, and proofs that faults did not matter.

There are two proofs that each sample was applied once. In `sync`, a sample that is lost or applied twice changes the
model, so it must be the one that plain PyTorch trains (`small_job`, `tests/same_model.py`). In any consistency, a model
may count its samples (`counting_job`, `tests/counting.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests import counting
from tests.cluster.cluster import POOL_LABEL
from tests.cluster.jobs import SHARED, ClusterJob
from tests.cluster.kubectl import wait_until
from tests.counting import counting_columns, counting_spec
from tests.heterps_operator.helpers.real_job import BATCH, ROWS

Json = dict[str, Any]

MODEL = "small_model:build_held"
# Settings of comparable jobs: float64, see tests/same_model.py.
COMPARED = {"model.entrypoint": MODEL, "training.precision": "fp64"}
HELD = "held"  # a file that slows down training, see small_model.py
HOST = "kubernetes.io/hostname"
# For operators, so that none loses its Lease because the machine is slow.
LASTING = ("--lease-seconds", "600")


def small_job(
    make: Callable[..., ClusterJob],
    name: str,
    *,
    spec: Mapping[str, Any] | None = None,
    units: int = 1,
    worker_on: str = "",
    tolerated_seconds: int = 60,
) -> ClusterJob:
    """Create a job whose training can be held.

    Args:
        make: the fixture.
        name: name of the job.
        spec: overrides fields of `spec`, by dotted path.
        units: workers.
        worker_on: the CPU node that workers prefer, and that the job's other pods avoid; none: any.
        tolerated_seconds: seconds that its workers stay on an unreachable node.
    """
    # On all three nodes, so that the pods of a lost one have room.
    pool = {"maxUnits": 6, "nodeSelector": {"kubernetes.io/os": "linux"}}
    job = make(name, spec={**COMPARED, **(spec or {})}, pool=pool)
    job.job["spec"]["scheduling"]["stages"][0]["units"] = units
    if worker_on:
        here = [{"key": HOST, "operator": "In", "values": [worker_on]}]
        prefers = [{"weight": 100, "preference": {"matchExpressions": here}}]
        elsewhere = [{**here[0], "operator": "NotIn"}]
        # Both on one node: a coordinator on each would leave no whole core for pods that have to move.
        together = [*elsewhere, {"key": POOL_LABEL, "operator": "In", "values": ["cpu"]}]
        lost = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        worker = {
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}},
            "tolerations": [{**lost, "tolerationSeconds": tolerated_seconds}],
        }
        job.job["spec"]["podTemplates"] |= {
            "worker": {"spec": worker},
            "profiler": {"spec": worker},
            "parameterServer": {"spec": _only_on(elsewhere)},
            "coordinator": {"spec": _only_on(together)},
        }
    return job


def counting_job(
    make: Callable[..., ClusterJob],
    name: str,
    consistency: str,
    spec: Mapping[str, Any] | None = None,
    **options: Any,
) -> ClusterJob:
    """Create a job that can be held and counts how often each sample is applied, see `tests/counting.py`.

    Args:
        make: the fixture.
        name: name of the job.
        consistency: consistency of reads.
        spec: overrides fields of `spec`, by dotted path.
        options: other arguments of `small_job`.
    """
    counting = counting_spec("small_model", ROWS, BATCH, consistency) | {"data.train": f"{SHARED}/counting"}
    job = small_job(make, name, spec={**counting, **(spec or {})}, **options)
    data = job.folder / "counting"
    if not data.exists():
        data.mkdir()
        pq.write_table(pa.table(counting_columns(ROWS)), data / "part-0.parquet", row_group_size=512)
    return job


def assert_every_sample_counted(job: ClusterJob) -> None:
    """Assert that each sample was applied once per epoch."""
    steps = int(job.job["spec"]["training"]["steps"])
    assert steps % (ROWS // BATCH) == 0
    counting.assert_every_sample_counted(job.model(), BATCH, seed=0, steps=steps)


def _only_on(expressions: list[Json]) -> Json:
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@contextlib.contextmanager
def held(*jobs: ClusterJob) -> Iterator[None]:
    """Slow training down more and more: it cannot end while a test acts."""
    hold_anew(*jobs)
    try:
        yield
    finally:
        for job in jobs:
            (job.folder / HELD).unlink(missing_ok=True)


def hold_anew(*jobs: ClusterJob) -> None:
    """Slow training down from now on: steps that became very long become shorter again."""
    for job in jobs:
        (job.folder / HELD).touch()


def assert_each_pod_was_made_once(job: ClusterJob) -> None:
    """Assert that nothing was replaced or restarted."""
    pods = job.pods()  # some are deleted when the job has ended
    names = sorted(pod["metadata"]["name"] for pod in pods)
    processes = sorted(pod["metadata"]["labels"]["heterps.io/process"] for pod in pods)
    assert names == [f"{job.name}-{process}-1-1" for process in processes]


def only_pod(job: ClusterJob, role: str) -> Json:
    """The newest pod of a role that has not ended."""
    pods = [pod for pod in job.pods(role) if pod["status"].get("phase") in ("Pending", "Running")]
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def kill_pod(pod: Json) -> None:
    """SIGKILL the pod's processes, once it has some."""
    wait_until(f"{pod['metadata']['name']} has a process", lambda: kill_processes(pod))


def kill_processes(pod: Json) -> int:
    """SIGKILL the processes that a pod has now, and return their number."""
    pids = processes_of(pod)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself just now
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def processes_of(pod: Json) -> list[int]:
    """Return this machine's processes that run in a pod on one of the nodes, by their control group."""
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


def wait_for_successor(job: ClusterJob, role: str, pod: Json) -> Json:
    """Wait until another pod has replaced a pod."""

    def found() -> Json | None:
        others = [p for p in job.pods(role) if p["metadata"]["uid"] != pod["metadata"]["uid"]]
        names = {p["metadata"]["labels"]["heterps.io/process"]: p for p in others}
        return names.get(pod["metadata"]["labels"]["heterps.io/process"])

    return wait_until(f"another {role}", found, 600, more=job.story)
