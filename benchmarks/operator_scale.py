"""The operator's costs with many jobs: requests to the API server, CPU, memory, and time.

    python -m benchmarks.operator_scale [--jobs 20,100,500] [--pods 20] [--nodes 1000] [--steady 360] [--output json]

A real control plane (tests/cluster) with nodes simulated by kwok: the real scheduler binds pods, which become Running
at once and run nothing. One program acts as all coordinators on their addresses; their members are ready at once, and
they train forever. The operator is real, with hand-written plans and a cached profile, so that each job costs one start
of the planner, as every job does.

Everything runs on one machine: where the control plane saturates it, the times to Running are the control plane's.
Requests, CPU and memory are the operator's own figures (docs/metrics.md); the watches, one per kind of object, are not
among the requests, and the planners' processes are not in its CPU.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks._cpu import cpu_by_program
from benchmarks._processes import pool_document
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster import building
from tests.cluster.cluster import Cluster
from tests.cluster.coordinators import GLOBAL_BATCH_SIZE
from tests.cluster.kubectl import wait_until
from tests.cluster.kwok import NODE_GRACE_SECONDS, FakeNode, play
from tests.cluster.operators import NAMESPACE as OPERATOR_NAMESPACE
from tests.cluster.operators import Operator

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import read_objects
from heterps_operator.kubernetes.api import KubernetesApi, connect
from heterps_operator.kubernetes.names import COORDINATOR_PORT, jobs_path, pods_path
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache

Json = dict[str, Any]

NAMESPACE = "scale"
METRICS_PORT = 9090
POOL_LABEL = "heterps.test/pool"
ACCELERATOR = "example.com/accelerator"
UNITS = 16  # of each node
LAYERS = ("tables", "linear", "output")
PATIENCE_SECONDS = 3600
SAMPLE_SECONDS = 5.0
OPERATOR_SERIES = (
    "heterps_operator_api_requests_total",
    "heterps_operator_reconcile_total",
    "heterps_operator_reconcile_errors_total",
    "heterps_operator_reconcile_duration_seconds_bucket",
    "heterps_operator_queue_seconds_bucket",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
)
SHORT_SECONDS = 60.0  # observation time of a step other than the last
SERVERS_AND_COORDINATOR = 2


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# --- what there is ----------------------------------------------------------------------------------------------------


def make_nodes(number: int) -> list[FakeNode]:
    """Create nodes, half of them with CPUs, half with accelerators."""
    kinds = (("cpu", {"cpu": str(UNITS)}), ("accelerator", {"cpu": str(2 * UNITS), ACCELERATOR: str(UNITS)}))
    return [
        FakeNode(f"{kind}-{index:04d}", {POOL_LABEL: kind}, capacity)
        for kind, capacity in kinds
        for index in range(number // 2)
    ]


def make_pool(name: str, device: str, resource: str, price: str) -> Json:
    """Return a DevicePool that contains all nodes of its kind."""
    pool = pool_document(name, device, resource, 1_000_000, price)
    pool["spec"]["nodeSelector"] = {POOL_LABEL: name}
    return pool


def make_job(name: str, pods: int) -> Json:
    """Return a job with a number of pods, in two stages."""
    workers = pods - SERVERS_AND_COORDINATOR
    stages = [
        {"pool": "cpu", "lastLayer": LAYERS[0], "units": (workers + 1) // 2},
        {"pool": "accelerator", "lastLayer": LAYERS[-1], "units": workers // 2},
    ]
    return {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "image": "example.com/model:1",
            "model": {"entrypoint": "model:build", "loss": "torch.nn.functional:binary_cross_entropy_with_logits"},
            "data": {"format": "parquet", "train": "/shared/data", "label": "late", "dense": ["a"], "sparse": ["b"]},
            "training": {
                "globalBatchSize": GLOBAL_BATCH_SIZE,
                "epochs": 1,
                "optimizer": {
                    "dense": {"name": "adam", "learningRate": "0.001"},
                    "sparse": {"name": "rowwise-adagrad", "learningRate": "0.05"},
                },
            },
            "pools": [{"name": "cpu"}, {"name": "accelerator"}],
            "scheduling": {"stages": stages},
            "checkpoint": {"path": f"/shared/{name}"},
        },
    }


PROFILE: Json = {
    "version": 1,
    "batchSize": GLOBAL_BATCH_SIZE,
    "samples": 1_000_000,
    "layers": [
        {"name": name, "kind": "Linear", "computeSeconds": 0.001, "parallelFraction": 0.9, "spread": 0.01}
        for name in LAYERS
    ],
    "measured": {},
    "warnings": [],
}


@contextmanager
def running(folder: Path, nodes: int, planners: int) -> Iterator[tuple[Cluster, KubernetesApi, Operator]]:
    """Run the cluster with everything except jobs; the calling thread is in its network inside the block."""
    programs = building.build((*building.CLUSTER, building.KWOK), say)
    with Cluster((), say=say, node_grace_seconds=NODE_GRACE_SECONDS) as cluster, cluster.entered():
        kubectl = cluster.kubectl
        api = connect(str(cluster.place.kubeconfig))
        play(cluster, api, make_nodes(nodes), programs[building.KWOK.name])
        kubectl("apply", "--server-side", f"--filename={building.ROOT / 'crds'}")
        kubectl("wait", "--for=condition=Established", f"--filename={building.ROOT / 'crds'}", "--timeout=60s")
        for namespace in (NAMESPACE, OPERATOR_NAMESPACE):
            kubectl("create", "namespace", namespace)
        kubectl.apply(make_pool("cpu", "CPU", "cpu", "0.04"), make_pool("accelerator", "GPU", ACCELERATOR, "2.42"))
        server = ["serviceaccount", "default", f"--namespace={NAMESPACE}"]
        wait_until("pods can be created", lambda: not kubectl.try_to("get", *server).code)
        coordinators = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.coordinators", str(COORDINATOR_PORT)], cwd=building.ROOT
        )
        try:
            options = ("--metrics-port", str(METRICS_PORT), "--max-planners", str(planners))
            with Operator(cluster.place.kubeconfig, folder, *options) as operator:
                yield cluster, api, operator
        finally:
            coordinators.terminate()
            coordinators.wait()


def keep_profiles(cluster: Cluster, api: KubernetesApi, pods: int) -> None:
    """Store both pools' profiles in the cache of earlier jobs; all jobs have the same model."""
    text = json.dumps(make_job("first", pods))
    options = ("--server-side", "--dry-run=server", "--filename=-", "--output=json")
    job = json.loads(cluster.kubectl("apply", *options, text=text))
    pools = cluster.kubectl.items("devicepools")
    cache = ConfigMapProfileCache(api, NAMESPACE, pod_configuration(read_objects(job, pools)))
    for pool in pools:
        cache.save(pool["metadata"]["name"], copy.deepcopy(PROFILE))


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """The operator's own metrics at one moment."""

    time: float
    requests: Counter[tuple[str, str]]  # by verb and resource
    cpu_seconds: float
    memory_bytes: float
    turns: float
    errors: float
    turn_buckets: dict[float, float]
    wait_buckets: dict[float, float]
    jobs_running: int

    @classmethod
    def read(cls, *, jobs: bool = False, everything: bool = False) -> Figures:
        """Scrape the operator, without the series of each job, unless asked for the phases or everything."""
        names = [*OPERATOR_SERIES, *(["heterps_job_phase"] if jobs else [])]
        query = "" if everything else "?" + urlencode([("name[]", name) for name in names])
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics{query}", timeout=60) as response:
            text = response.read().decode()
        now, requests, single = time.monotonic(), Counter[tuple[str, str]](), dict[str, float]()
        buckets: dict[str, dict[float, float]] = {}
        running_jobs = 0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "heterps_operator_api_requests_total":
                    requests[sample.labels["verb"], sample.labels["resource"]] += int(sample.value)
                elif sample.name.startswith("heterps_operator_") and sample.name.endswith("_bucket"):
                    name = sample.name.removesuffix("_bucket")
                    buckets.setdefault(name, {})[float(sample.labels["le"])] = sample.value
                elif sample.name == "heterps_job_phase":
                    running_jobs += sample.labels["phase"] == "Running"
                elif "heterps_job" not in sample.name:
                    single[sample.name] = single.get(sample.name, 0.0) + sample.value
        return cls(
            now,
            requests,
            single["process_cpu_seconds_total"],
            single["process_resident_memory_bytes"],
            single["heterps_operator_reconcile_total"],
            single.get("heterps_operator_reconcile_errors_total", 0.0),  # it has no series before the first error
            buckets["heterps_operator_reconcile_duration_seconds"],
            buckets["heterps_operator_queue_seconds"],
            running_jobs,
        )


def longest(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the bucket bound of the slowest observation between two moments."""
    new = {bound: after[bound] - before[bound] for bound in after}
    total = new[float("inf")]
    return next(bound for bound in sorted(new) if new[bound] >= total)


def pods_running(api: KubernetesApi) -> int:
    """Return the number of running pods of jobs. This lists thousands of pods, so call it rarely."""
    pods, _ = api.list(pods_path(NAMESPACE), field_selector="status.phase=Running")
    return len(pods)


def start(api: KubernetesApi, first: int, jobs: int, pods: int) -> Json:
    """Create jobs up to a number, and wait until all of their pods run."""
    before, programs, began = Figures.read(), cpu_by_program(), time.monotonic()
    for number in range(first, jobs):
        api.create(jobs_path(NAMESPACE), make_job(f"job-{number:04d}", pods))
    applied = time.monotonic() - began
    said = 0.0
    peak = before.memory_bytes
    while True:
        now = Figures.read(jobs=True)
        peak = max(peak, now.memory_bytes)
        found = pods_running(api) if now.jobs_running >= jobs else 0
        if found >= jobs * pods:
            break
        if time.monotonic() - said > 30:
            said = time.monotonic()
            cpu = now.cpu_seconds - before.cpu_seconds
            say(f"  {now.jobs_running} jobs train after {said - began:.0f} s, CPU {cpu:.0f} s, {peak / 1e6:.0f} MB")
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise SystemExit(f"only {now.jobs_running} of {jobs} jobs and {found} pods run")
        time.sleep(min(5.0, 1 + jobs / 50))
    seconds = time.monotonic() - began
    after, added = Figures.read(), jobs - first
    requests = after.requests - before.requests
    used = {name: seconds - programs.get(name, 0.0) for name, seconds in cpu_by_program().items()}
    return {
        "jobs": jobs,
        "pods": jobs * pods,
        "applySeconds": round(applied, 1),
        "runningSeconds": round(seconds, 1),
        "requestsPerJob": round(sum(requests.values()) / added, 1),
        "requestsPerJobByKind": {
            f"{verb} {resource}": round(count / added, 2) for (verb, resource), count in requests.most_common()
        },
        "cpuSecondsPerJob": round((after.cpu_seconds - before.cpu_seconds) / added, 3),
        "cpuSecondsByProgram": {
            name: round(used[name], 1) for name in sorted(used, key=used.__getitem__, reverse=True)
        },
        "turnsPerJob": round((after.turns - before.turns) / added, 1),
        "failedTurns": after.errors - before.errors,
        "longestTurnSeconds": longest(before.turn_buckets, after.turn_buckets),
        "longestWaitSeconds": longest(before.wait_buckets, after.wait_buckets),
        "peakMegabytes": round(peak / 1e6),
    }


def rest(jobs: int, seconds: float) -> Json:
    """Return the costs of all these jobs while they only train."""
    time.sleep(30)  # late observations of the start
    samples = [Figures.read()]
    while samples[-1].time - samples[0].time < seconds:
        time.sleep(SAMPLE_SECONDS)
        samples.append(Figures.read())
    before, began = samples[-1].cpu_seconds, time.monotonic()
    Figures.read(everything=True)
    scraping, scraped = Figures.read().cpu_seconds - before, time.monotonic() - began
    first, last = samples[0], samples[-1]
    passed = last.time - first.time
    requests = last.requests - first.requests
    if gone := requests["delete", "pods"]:
        raise SystemExit(f"{gone} pods were deleted while jobs only trained: this was no steady state")
    rates = [sum((b.requests - a.requests).values()) / (b.time - a.time) for a, b in itertools.pairwise(samples)]
    return {
        "steadySeconds": round(passed),
        "steadyRequestsPerJobAndMinute": round(sum(requests.values()) / jobs / passed * 60, 2),
        "steadyRequestsPerMinuteByKind": {
            f"{verb} {resource}": round(count / passed * 60, 1) for (verb, resource), count in requests.most_common()
        },
        "steadyCores": round((last.cpu_seconds - first.cpu_seconds) / passed, 3),
        "scrapeCpuSeconds": round(scraping, 2),
        "scrapeSeconds": round(scraped, 2),
        "steadyTurnsPerSecond": round((last.turns - first.turns) / passed, 1),
        "steadyLongestTurnSeconds": longest(first.turn_buckets, last.turn_buckets),
        "steadyLongestWaitSeconds": longest(first.wait_buckets, last.wait_buckets),
        "steadyMegabytes": round(last.memory_bytes / 1e6),
        # A resync shows as a list of pools, and a storm after it as many requests within seconds.
        "resyncs": requests["list", "devicepools"],
        "requestsPerSecondMean": round(sum(requests.values()) / passed, 2),
        "requestsPerSecondPeak": round(max(rates), 2),
    }


def measure(steps: Sequence[int], pods: int, nodes: int, planners: int, steady: float) -> list[Json]:
    """Start more and more jobs, and observe the operator after each step."""
    rows: list[Json] = []
    with (
        tempfile.TemporaryDirectory(prefix="heterps-scale-") as folder,
        running(Path(folder), nodes, planners) as (cluster, api, operator),
    ):
        keep_profiles(cluster, api, pods)
        done = 0
        for jobs in steps:
            say(f"{jobs} jobs with {pods} pods each on {nodes} nodes")
            row = start(api, done, jobs, pods)
            say(json.dumps(row))
            row |= rest(jobs, steady if jobs == steps[-1] else min(steady, SHORT_SECONDS))
            say(json.dumps(row))
            rows.append(row)
            done = jobs
        troubles = [line for line in operator.story().splitlines() if " WARNING " in line or " ERROR " in line]
        for line in troubles[-20:]:
            say(line)
    return rows


# --- telling ----------------------------------------------------------------------------------------------------------

ROWS = (
    ("pods", "pods"),
    ("runningSeconds", "from the first apply to all Running (s)"),
    ("requestsPerJob", "requests per job until then"),
    ("cpuSecondsPerJob", "CPU of the operator per job until then (s)"),
    ("longestWaitSeconds", "longest wait of a job for its turn until then (s, at most)"),
    ("peakMegabytes", "memory of the operator, highest (MB)"),
    ("steadyRequestsPerJobAndMinute", "steady state: requests per job and minute"),
    ("steadyCores", "steady state: CPU of the operator (cores)"),
    ("scrapeCpuSeconds", "a scrape of all series: CPU of the operator (s)"),
    ("steadyMegabytes", "steady state: memory of the operator (MB)"),
    ("steadyLongestTurnSeconds", "steady state: longest turn (s, at most)"),
    ("steadyLongestWaitSeconds", "steady state: longest wait of a job for its turn (s, at most)"),
    ("resyncs", "resyncs in that time"),
    ("requestsPerSecondMean", "requests per second in that time, mean"),
    ("requestsPerSecondPeak", f"requests per second in that time, highest of {SAMPLE_SECONDS:g} s"),
)


def table(rows: Sequence[Json]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| jobs | " + " | ".join(f"{row['jobs']:,}" for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {words} | " + " | ".join(f"{row[key]:,}" for row in rows) + " |" for key, words in ROWS]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", default="20,100,500", help="steps, ascending (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=20, help="of each job (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--planners", type=int, default=3, help="at a time (default, the operator's: %(default)s)")
    text = "seconds of looking at the last step; a resync comes every 300 (default: %(default)g)"
    parser.add_argument("--steady", type=float, default=360.0, help=text)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    steps = [int(text) for text in options.jobs.split(",")]
    if steps != sorted(set(steps)) or steps[0] < 1 or options.pods < SERVERS_AND_COORDINATOR + 2:
        parser.error("--jobs must ascend from at least 1, and a job needs at least 4 pods")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("ended by a signal"))  # ends everything that was started
    rows = measure(steps, options.pods, options.nodes, options.planners, options.steady)
    cores = len(os.sched_getaffinity(0))
    if options.output == "json":
        print(json.dumps({"cores": cores, "nodes": options.nodes, "podsPerJob": options.pods, "rows": rows}, indent=1))
    else:
        print(f"{options.nodes:,} nodes played by kwok, {options.pods} pods per job, {cores} cores for everything\n")
        print(table(rows))


if __name__ == "__main__":
    main()
