"""Jobs in a queue of Kueue's own manager: its quota is never exceeded, and all of it is given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.quantity import parse_quantity
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import unbuilt
from tests.cluster.faults import COMPARED, HELD, held
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.kueue import installed_kueue, manifests, queue
from tests.cluster.watching import Watching
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

FITS = 3  # jobs, of one worker each
UNIT = "example.com/unit"  # workers compute on CPUs, but the machine has not a core for each
CORES = {"nodeSelector": {"kubernetes.io/os": "linux"}, "maxUnits": 60}
WORKERS = {**CORES, "deviceType": "GPU", "resourceName": UNIT, "pricePerUnitHour": "0.001"}
WORKLOADS = "workloads.kueue.x-k8s.io"


class Units:
    """The units that a namespace's pods request together, after each event."""

    def __init__(self) -> None:
        self.seen = [0]
        self._held: dict[str, int] = {}

    def take(self, kind: str, pod: Json) -> None:
        """Process an event."""
        uid = str(pod["metadata"]["uid"])
        [container] = pod["spec"]["containers"]
        units = int(container["resources"].get("requests", {}).get(UNIT, 0))
        if kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._held.pop(uid, None)
        else:
            self._held[uid] = units
        self.seen.append(sum(self._held.values()))


@pytest.fixture(scope="module")
def kueue(own_cluster: Cluster, admin: Kubectl) -> Iterator[None]:
    """Kueue is installed."""
    if not manifests().exists():
        unbuilt("Kueue is")
    own_cluster.add_extended_resources({node: {UNIT: 20} for node in own_cluster.nodes})
    with installed_kueue(admin):
        yield


@pytest.fixture
def units(kubectl: Kubectl) -> Iterator[Units]:
    units = Units()
    with Watching(kubectl, "pods", units.take):
        yield units


class Queue:
    """The queue of one test's namespace."""

    def __init__(self, admin: Kubectl, kubectl: Kubectl) -> None:
        self._admin, self._kubectl = admin, kubectl
        assert kubectl.namespace is not None
        self.name = kubectl.namespace
        quota: dict[str, int | str] = {UNIT: FITS, "cpu": 20, "memory": "20Gi"}
        preemption = {"withinClusterQueue": "LowerPriority"}
        self._objects = queue(kubectl.namespace, self.name, quota, preemption=preemption)

    def open(self) -> None:
        """Create the queues."""
        self._admin.apply(*self._objects)

    def state(self) -> Json:
        """Return the status of the ClusterQueue."""
        found: Json = self._admin.get("clusterqueue", self.name)["status"]
        return found

    def used(self, resource: str = UNIT) -> float:
        """Return how much of a resource counts as used."""
        [flavor] = self.state()["flavorsReservation"]
        [amount] = [parse_quantity(entry["total"]) for entry in flavor["resources"] if entry["name"] == resource]
        return float(amount)

    def workloads(self) -> dict[str, Json]:
        """Return the Workloads of the namespace by name."""
        items = self._kubectl.get(WORKLOADS)["items"]
        return {str(item["metadata"]["name"]): item for item in items}

    def close(self) -> None:
        """Delete the ClusterQueue."""
        self._admin.try_to("delete", "clusterqueue", self.name, "--wait=false")


@pytest.fixture
def place(admin: Kubectl, kubectl: Kubectl, kueue: None) -> Iterator[Queue]:
    """A queue that is not there yet."""
    made = Queue(admin, kubectl)
    yield made
    made.close()


@pytest.fixture
def make_queued(make: Make, place: Queue) -> Make:
    """Factory of jobs in the queue."""

    def job(name: str, spec: Json | None = None, priority: str = "") -> ClusterJob:
        policy = {"gang": "Kueue", "queue": place.name}
        if priority:
            policy["priorityClassName"] = priority
        made = make(name, spec={**(spec or {}), "runPolicy.schedulingPolicy": policy}, pool=CORES)
        workers = made.add_pool("units", **WORKERS)
        for stage in made.job["spec"]["scheduling"].get("stages", ()):
            stage["pool"] = workers
        return made

    return job


@pytest.fixture
def held_jobs(folder: Path) -> Iterator[None]:
    """Jobs of the folder train slowly."""
    (folder / HELD).touch()
    yield
    (folder / HELD).unlink()


def test_jobs_pass_through_a_queue_that_fits_three(
    make_queued: Make, place: Queue, units: Units, pytestconfig: pytest.Config
) -> None:
    place.open()
    jobs = [make_queued(f"job-{number}") for number in range(pytestconfig.getoption("--kueue-jobs"))]
    for job in jobs:
        job.submit()
    wait_until("some wait", lambda: any(waits(job) for job in jobs), PATIENCE_SECONDS, more=jobs[-1].story)
    for job in jobs:
        status = job.wait_for_phase("Succeeded", seconds=2 * PATIENCE_SECONDS)
        assert status["restarts"] == 0
    assert max(units.seen) == FITS
    wait_until("all quota is given back", lambda: place.used() == 0, 60, more=lambda: str(place.state()))
    assert place.workloads() == {}


def test_a_preempted_job_resumes_and_gives_the_same_model(
    make_queued: Make, place: Queue, units: Units, admin: Kubectl, expected_model: Json
) -> None:
    place.open()
    for name, value in (("low", 10), ("high", 1000)):
        admin.apply({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "preemptionPolicy": "Never",
        })  # fmt: skip
    low = [make_queued(f"low-{number}", COMPARED, "low") for number in range(FITS)]
    with held(*low):
        for job in low:
            job.submit()
        for job in low:
            job.wait_for_step(1)
        high = make_queued("high", COMPARED, "high").submit()
        preempted = wait_until(
            "one is preempted",
            lambda: next((job for job in low if job.told("QuotaWithdrawn")), None),
            PATIENCE_SECONDS,
            more=high.story,
        )
        [told] = preempted.told("QuotaWithdrawn")
        assert told.startswith("the queue wants its quota back: Preempted to accommodate a workload")
        high.wait_for_step(1)
        assert waits(preempted)
        steps = preempted.status()["checkpoint"]["step"]
        assert steps > 0
    for job in (high, *low):
        status = job.wait_for_phase("Succeeded")
        assert status["restarts"] == 0
        assert_same_model(job.model(), expected_model)
    assert f"resuming from step {steps} of " in preempted.told("Resumed")[0]
    assert max(units.seen) == FITS
    wait_until("all quota is given back", lambda: place.used() == 0, 60)


def test_a_job_waits_for_its_queue_and_is_suspended_and_deactivated_there(
    make_queued: Make, place: Queue, kubectl: Kubectl
) -> None:
    job = make_queued("one", {**COMPARED, "training.steps": 1_000_000}).submit(profiled=False)
    told = job.wait_for_condition("PodsReady", "False", "WaitingForQuota", PATIENCE_SECONDS)["message"]
    wait_until("it says why", lambda: "doesn't exist" in job.condition("PodsReady")["message"], 60, more=job.story)
    assert (job.pods(), job.held_units()) == ([], 0), told
    place.open()
    job.wait_for_step(1)
    assert set(place.workloads()) == {"one-plan-1"}
    # An administrator takes it out of the queue.
    kubectl("patch", WORKLOADS, "one-plan-1", "--type=merge", '--patch={"spec":{"active":false}}')
    job.wait_for_condition("PodsReady", "False", "WaitingForQuota", PATIENCE_SECONDS)
    wait_until("the quota is given back", lambda: place.used() == 0, PATIENCE_SECONDS, more=job.story)
    wait_until("it stays out", lambda: set(place.workloads()) == {"one-plan-2"}, 60, more=job.story)
    assert place.workloads()["one-plan-2"]["spec"]["active"] is False
    kubectl("patch", WORKLOADS, "one-plan-2", "--type=merge", '--patch={"spec":{"active":true}}')
    job.wait_for_phase("Running")
    job.patch({"runPolicy": {"suspend": True}})
    job.wait_for_phase("Suspended")
    wait_until("the quota is given back", lambda: place.workloads() == {} and place.used() == 0, 60, more=job.story)


@pytest.mark.usefixtures("held_jobs")
def test_workers_that_are_added_wait_for_quota_and_those_that_leave_give_it_back(
    make_queued: Make, place: Queue
) -> None:
    place.open()
    elastic = {"scheduling": {"method": "gpu"}, "elasticity": {"cooldownSeconds": 2}, "training.steps": 1_000_000}
    job = make_queued("elastic", {**COMPARED, **elastic})
    for layer in job.profile["layers"]:
        layer["parallelFraction"] = 0.0  # the cheapest plan has one worker
    job.submit()
    job.wait_for_step(1)
    before = place.used()
    job.patch({"elasticity": {"workers": 3}})
    wait_until("three work", lambda: len(working(job)) == 3, PATIENCE_SECONDS, more=job.story)
    assert len(place.workloads()) == 2
    assert place.used() == before + 2
    job.patch({"elasticity": {"workers": 2}})
    wait_until("one is given back", lambda: place.used() == before + 1, PATIENCE_SECONDS, more=job.story)
    wait_until("two work", lambda: len(working(job)) == 2, PATIENCE_SECONDS, more=job.story)


def test_a_queued_job_changes_its_number_of_servers_while_it_trains(
    make_queued: Make, place: Queue, expected_model: Json
) -> None:
    place.open()
    job = make_queued("changed", {**COMPARED, "checkpoint.everySteps": 1000})
    with held(job):
        job.submit().wait_for_step(3)
        worker, cores = working(job), place.used("cpu")
        job.patch({"parameterServer": {"replicas": 2}})
        wait_until("it has two servers", lambda: len(working(job, "ps")) == 2, PATIENCE_SECONDS, more=job.story)
        assert len(place.workloads()) == 2
        assert place.used("cpu") > cores
        job.wait_for_step(job.step() + 5)
        job.patch({"parameterServer": {"replicas": 1}})
        wait_until("it has one server", lambda: len(working(job, "ps")) == 1, PATIENCE_SECONDS, more=job.story)
        wait_until("its quota is given back", lambda: place.used("cpu") == cores, PATIENCE_SECONDS, more=job.story)
        assert working(job) == worker
    status = job.wait_for_phase("Succeeded")
    assert (status["plan"]["revision"], status["plan"]["reason"], status["restarts"]) == (3, "Redivided", 0)
    assert not job.told("Resumed")
    assert_same_model(job.model(), expected_model)


def waits(job: ClusterJob) -> bool:
    return bool(job.condition("PodsReady")["reason"] == "WaitingForQuota")


def working(job: ClusterJob, role: str = "worker") -> list[str]:
    pods = job.pods(role)
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
