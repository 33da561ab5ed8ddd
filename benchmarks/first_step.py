"""Time from `kubectl apply` to the first training step, and its parts.

    python -m benchmarks.first_step [--job small|flights] [--runs 5] [--output json]

It runs on a separate test cluster (tests/cluster), with the real operator and real training in real pods. The first job
has no cached profile, so its pools are measured; the others use that profile. Times are those at which a watch reported
an object's change, or the coordinator a member's or a step's, so they are a little late, by less than 0.1 s. Pods mount
this checkout instead of pulling an image, with precompiled kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import building
from tests.cluster.cluster import Cluster
from tests.cluster.demo import flights
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE as OPERATOR_NAMESPACE
from tests.cluster.operators import Operator
from tests.cluster.watching import Watching

from heterps_operator.kubernetes.api import connect
from heterps_operator.kubernetes.names import COORDINATOR_PORT, LABEL_JOB, LABEL_PROCESS, LABEL_ROLE
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError

Json = dict[str, Any]

NAMESPACE = "first-step"
PATIENCE_SECONDS = 600
POLL_SECONDS = 0.05
# Timed moments, in order; with several pods or members, the last one counts.
MOMENTS = (
    "the operator has taken it up",
    "profilers' pods run",
    "pools are measured",
    "planned",
    "coordinator's pod created",
    "coordinator's container runs",
    "coordinator answers",
    "members' pods created",
    "members' pods scheduled",
    "members' containers run",
    "members have joined",
    "first step committed",
)


class Stopwatch:
    """Records the moments of one job until its first step.

    Args:
        kubectl: kubectl in the job's namespace.
        name: name of the job.
    """

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.began = time.monotonic()
        self.moments: dict[str, float] = {}
        self._kubectl, self._name = kubectl, name
        self._pods: dict[str, Json] = {}
        self._address = ""
        self._wanted: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def note(self, moment: str, *, again: bool = False) -> None:
        """Record the time of a moment: its first occurrence, or else its last so far."""
        with self._lock:
            if again or moment not in self.moments:
                self.moments[moment] = time.monotonic() - self.began

    def take_job(self, kind: str, item: Json) -> None:
        """Process an event of a HeterPSJob."""
        status = item.get("status") or {}
        if item["metadata"]["name"] != self._name or not status:
            return
        self.note("the operator has taken it up")
        conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
        if conditions.get("Profiled") == "True" and "profilers' pods run" in self.moments:
            self.note("pools are measured")
        if status.get("plan"):
            self.note("planned")

    def take_pod(self, kind: str, pod: Json) -> None:
        """Process an event of a pod."""
        labels = pod["metadata"].get("labels") or {}
        if labels.get(LABEL_JOB) != self._name or kind == "DELETED":
            return
        name, role = str(labels[LABEL_PROCESS]), str(labels[LABEL_ROLE])
        before = self._pods.get(name)
        self._pods[name] = pod
        whose = {"coordinator": "coordinator's", "profile": "profilers'"}.get(role, "members'")
        pods = "pod" if role == "coordinator" else "pods"
        if before is None:
            self._note(f"{whose} {pods} created", again=True)
        if pod["spec"].get("nodeName") and not (before or {"spec": {}})["spec"].get("nodeName"):
            self._note(f"{whose} {pods} scheduled", again=True)
        if _runs(pod) and not (before and _runs(before)):
            words = {"profile": "profilers' pods run", "coordinator": "coordinator's container runs"}
            self._note(words.get(role, "members' containers run"), again=True)
        if role == "coordinator" and pod["status"].get("podIP"):
            self._address = f"http://{pod['status']['podIP']}:{COORDINATOR_PORT}"

    def wait(self) -> None:
        """Poll the coordinator until the first step is committed."""
        wait_until("the coordinator has an address", lambda: self._address, PATIENCE_SECONDS)
        token = b64decode(self._kubectl.get("secret", f"{self._name}-token")["data"]["token"]).decode()
        client, deadline = CoordinatorClient(self._address, token), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(CoordinatorError):
                status = client.status()
                self.note("coordinator answers")
                members = status["members"]
                if members and all(member["state"] in ("joined", "ready") for member in members):
                    self.note("members have joined")
                if status["committedSteps"]:
                    self.note("first step committed")
                    return
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"no step of {self._name} after {PATIENCE_SECONDS} s")

    def _note(self, moment: str, *, again: bool) -> None:
        if moment in MOMENTS:
            self.note(moment, again=again)


def _runs(pod: Json) -> bool:
    return any("running" in (c.get("state") or {}) for c in pod["status"].get("containerStatuses") or ())


def measure(kubectl: Kubectl, job: Json) -> dict[str, float]:
    """Apply a job and measure the time until its first step; delete the job afterwards."""
    name = str(job["metadata"]["name"])
    stopwatch = Stopwatch(kubectl, name)
    with (
        Watching(kubectl, "heterpsjobs", stopwatch.take_job),
        Watching(kubectl, "pods", stopwatch.take_pod),
    ):
        time.sleep(1.0)  # until both watch
        stopwatch.began = time.monotonic()
        kubectl.apply(job)
        stopwatch.wait()
        moments = dict(stopwatch.moments)
    kubectl("delete", "heterpsjob", name, "--wait=false")
    selector = f"--selector={LABEL_JOB}={name}"
    wait_until(f"{name} is gone", lambda: not kubectl.items("pods", selector), PATIENCE_SECONDS)
    return moments


def runs(which: str, number: int) -> list[dict[str, float]]:
    """Yield the moments of several jobs, the first without a profile."""
    with (
        tempfile.TemporaryDirectory(prefix="heterps-first-step-", ignore_cleanup_errors=True) as folder,
        Cluster(name="first-step", say=say) as cluster,
        cluster.entered(),
    ):
        shared = Path(folder)
        shared.chmod(0o777)  # pods may run as any user
        kubectl = Kubectl(cluster.place.kubeconfig, cluster.place.kubectl_cache, NAMESPACE)
        for namespace in (NAMESPACE, OPERATOR_NAMESPACE):
            cluster.kubectl("create", "namespace", namespace)
        cluster.kubectl("apply", "--server-side", f"--filename={building.ROOT / 'crds'}")
        cluster.kubectl("wait", "--for=condition=Established", f"--filename={building.ROOT / 'crds'}", "--timeout=60s")
        pools, job = _manifests(which, kubectl, shared)
        kubectl.apply(*pools)
        with Operator(cluster.place.kubeconfig, shared):
            found = []
            for index in range(number):
                made = copy.deepcopy(job)
                made["metadata"] |= {"name": f"{which}-{index}", "namespace": NAMESPACE}
                made["spec"]["checkpoint"]["path"] = f"/shared/{which}-{index}"
                found.append(measure(kubectl, made))
                say(f"{which}-{index}: first step after {found[-1]['first step committed']:.1f} s")
            return found


def _manifests(which: str, kubectl: Kubectl, shared: Path) -> tuple[list[Json], Json]:
    if which == "small":
        small = ClusterJob(kubectl, connect(str(kubectl.kubeconfig)), shared, spec={"training.steps": 1_000_000})
        return [small.pool], small.job
    *pools, job = flights(shared)
    return pools, job


def describe(moments: Sequence[dict[str, float]]) -> list[tuple[str, float, float, float]]:
    """Return median, minimum and maximum of each moment that all runs share, in seconds since the apply."""
    rows = []
    for moment in MOMENTS:
        times = [run[moment] for run in moments if moment in run]
        if len(times) == len(moments):
            rows.append((moment, statistics.median(times), min(times), max(times)))
    return rows


def print_table(
    title: str, moments: Sequence[dict[str, float]], write: Callable[[str], Any] = sys.stdout.write
) -> None:
    """Print the moments, and the time between them."""
    write(f"\n{title}\n{'':32} {'s':>6} {'range':>13} {'after the last':>15}\n")
    before = 0.0
    for moment, median, least, most in sorted(describe(moments), key=lambda row: row[1]):
        write(f"{moment:32} {median:6.1f} {least:6.1f} -{most:5.1f} {median - before:15.1f}\n")
        before = median


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time from kubectl apply to the first training step.")
    parser.add_argument("--job", choices=("small", "flights"), default="small")
    parser.add_argument("--runs", type=int, default=5, help="with a known profile, after the first one without")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    first, *others = runs(options.job, options.runs + 1)
    load = os.getloadavg()[0]
    if options.output == "json":
        document = {"job": options.job, "load": load, "cores": os.cpu_count(), "unknown": first, "known": others}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    print_table(f"{options.job}, no profile (1 run)", [first])
    if others:
        print_table(f"{options.job}, known profile (median of {len(others)})", others)
    sys.stdout.write(f"\n{os.cpu_count()} cores, load at the end {load:.1f}\n")


if __name__ == "__main__":
    main()
