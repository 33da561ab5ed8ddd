"""Units follow the floor during training; other stages and servers take effect at once, other pools after a restart."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.cluster import POOL_LABEL, Cluster
from tests.cluster.faults import COMPARED, held
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import wait_until
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]
# One worker reaches at most 10,000 samples/s because it sleeps; its profile says 85,000.
BATCH = 4096
# A failed trial takes about two minutes and is remembered for five, so this time allows one or two of two changes.
LOADED_STEPS, QUIET_STEPS, MOST_CHANGES = 300, 150, 4
SPEC = {
    "training.steps": 1_000_000,
    "training.globalBatchSize": BATCH,
    "model.entrypoint": "small_model:build_paced",
    "scheduling": {},
    "objective": {"minSamplesPerSecond": 11_000},
    "elasticity": {"cooldownSeconds": 2, "maxScaleDownPercent": 100},
    "balancing": {"policy": "equal"},
}


def workers(job: ClusterJob) -> dict[str, str]:
    """Uids of the workers' pods that have not ended, by process."""
    return {
        pod["metadata"]["labels"]["heterps.io/process"]: pod["metadata"]["uid"]
        for pod in job.pods("worker")
        if pod["status"].get("phase") in ("Pending", "Running")
    }


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """As many programs as cores do nothing but compute; the cluster's own have priority."""
    loop = [sys.executable, "-c", "import os; os.nice(2)\nwhile True: pass"]
    programs = [subprocess.Popen(loop) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def revision(job: ClusterJob) -> int:
    """Return the plan's revision, which each change of units increases."""
    return int(job.status()["plan"]["revision"])


def capacity(job: ClusterJob, pool: str) -> int:
    """Return the units of a pool, from its status."""
    return int((job.kubectl.get("devicepool", pool).get("status") or {}).get("capacityUnits", -1))


def wait_until_held(job: ClusterJob, workers: int) -> None:
    """Wait until the pool's status shows the units of these workers and of the servers, one each."""
    units = workers + len(job.pods("ps"))
    wait_until(f"{units} units are held", lambda: job.held_units() == units, PATIENCE_SECONDS, more=job.story)


def test_units_follow_the_floor_while_the_job_trains(make: Make) -> None:
    job = make("elastic", spec=SPEC, pool={"maxUnits": 4, "nodeSelector": {}})
    for layer in job.profile["layers"]:
        layer["parallelFraction"] = 0.6  # two workers cost more than one while one suffices
    job.submit().wait_for_step(1)
    survivors = workers(job)
    assert list(survivors) == ["worker-0-0"]
    assert float(job.status()["plan"]["predictedSamplesPerSecond"]) > 50_000

    wait_until("there are more workers", lambda: len(workers(job)) > 1, PATIENCE_SECONDS, more=job.story)
    job.wait_for_condition("ThroughputMet", "True", "AboveFloor", PATIENCE_SECONDS)
    grown = workers(job)
    assert grown.items() > survivors.items()
    wait_until_held(job, len(grown))
    assert job.status()["plan"]["reason"] == "UnitsChanged"
    assert " samples/s, the floor is 11,000: " in job.told("UnitsChanged")[0]

    changes = revision(job)
    with busy_machine():
        job.wait_for_step(job.step() + LOADED_STEPS)
    job.wait_for_step(job.step() + QUIET_STEPS)
    assert revision(job) - changes <= MOST_CHANGES, job.story()

    job.patch({"objective": {"minSamplesPerSecond": 2_000}})
    wait_until("one is left", lambda: workers(job) == survivors, PATIENCE_SECONDS, more=job.story)
    wait_until_held(job, len(survivors))
    status = job.status()
    assert (status["restarts"], status["phase"]) == (0, "Running")
    step = int(status["progress"]["step"])
    job.wait_for_step(step + 5)


@pytest.fixture
def cordoned(own_cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Cordon nodes until the test ends."""
    nodes: list[str] = []

    def cordon(node: str) -> None:
        nodes.append(node)
        own_cluster.kubectl("cordon", node)

    yield cordon
    for node in nodes:
        own_cluster.kubectl("uncordon", node)


def test_a_plan_that_its_pool_cannot_have_any_more_is_made_anew_and_training_goes_on(
    make: Make, cordoned: Callable[[str], None], expected_model: Json
) -> None:
    spec = {**COMPARED, "checkpoint.everySteps": 5, "scheduling": {}, "runPolicy.cordonPolicy": "Stay"}
    job = make("moved", spec={**spec, "elasticity": {"cooldownSeconds": 1}}, pool={"maxUnits": 2})
    job.pool["spec"]["nodeSelector"] = {}
    cheap = job.add_pool("cheap", nodeSelector={POOL_LABEL: "accelerator"}, pricePerUnitHour="0.01")
    job.kubectl.apply(job.pool, *job.more_pools)
    # Pods of the test before may still end on its only node.
    wait_until("both units are there", lambda: capacity(job, cheap) == 2, PATIENCE_SECONDS, more=job.story)
    with held(job):
        job.submit().wait_for_step(6)
        [worker] = job.pods("worker")
        assert worker["spec"]["nodeName"] == "accelerator-0"
        [coordinator] = job.pods("coordinator")  # it would occupy one of the two units there
        assert coordinator["spec"]["nodeName"] != "accelerator-0"
        assert job.status()["plan"]["summary"] == f"{cheap} x1 [tables..output]"

        # Only a pod that has to restart finds no room.
        cordoned("accelerator-0")
        job.kubectl("delete", "pod", worker["metadata"]["name"], "--grace-period=0", "--force")
        wait_until("it is told", lambda: job.told("PoolShrunk"), PATIENCE_SECONDS, more=job.story)
        assert job.told("PoolShrunk")[0].startswith(
            f"pool {cheap} has 0 of the 2 units of plan 1, and worker-0-0 does not fit"
        )
        wait_until("it goes on", lambda: job.told("Resumed"), PATIENCE_SECONDS, more=job.story)
    plan = job.status()["plan"]
    assert (plan["revision"], plan["reason"]) == (2, "Replanned")
    assert plan["summary"] == f"{job.pool_name} x1 [tables..output]"
    assert job.told("Replanned") == [f"plan 2 by optimal: {plan['summary']}"]
    resumed = int(job.told("Resumed")[0].split()[3])
    assert 5 <= resumed < 400
    assert job.wait_for_phase("Succeeded")["progress"]["step"] == 400
    assert_same_model(job.model(), expected_model)


def test_another_number_of_servers_takes_effect_while_the_job_trains(make: Make, expected_model: Json) -> None:
    job = make("served", spec={**COMPARED, "checkpoint.everySteps": 1000}, pool={"maxUnits": 4})
    with held(job):  # the pods of a job that has ended may be gone
        job.submit().wait_for_step(3)
        [worker] = job.pods("worker")
        job.patch({"parameterServer": {"replicas": 2}})
        wait_until("the plan is there", lambda: job.told("Redivided"), PATIENCE_SECONDS, more=job.story)
        assert " with 1 -> 2 parameter servers: the job changes to it while it runs" in job.told("Redivided")[0]
        wait_until("it has two servers", lambda: len(job.pods("ps")) == 2, PATIENCE_SECONDS, more=job.story)
        assert [pod["metadata"]["uid"] for pod in job.pods("worker")] == [worker["metadata"]["uid"]]
    status = job.wait_for_phase("Succeeded")
    assert (status["plan"]["revision"], status["plan"]["reason"], status["restarts"]) == (2, "Redivided", 0)
    assert not job.told("Resumed")
    assert_same_model(job.model(), expected_model)


def test_a_changed_spec_that_divides_the_model_otherwise_is_planned_and_training_goes_on(
    make: Make, expected_model: Json
) -> None:
    job = make("divided", spec={**COMPARED, "checkpoint.everySteps": 5}, pool={"maxUnits": 4})
    other = job.add_pool("other", nodeSelector={POOL_LABEL: "accelerator"})
    with held(job):
        job.submit().wait_for_step(6)
        refused = [{"pool": job.pool_name, "lastLayer": end} for end in ("tables", "output")]
        job.patch({"scheduling": {"stages": refused}})
        said = job.wait_for_condition("Planned", "False", "PlannerFailed", seconds=PATIENCE_SECONDS)
        assert "neighbouring stages on one pool are one stage" in said["message"]
        assert job.status()["phase"] == "Running"
        ends = ((job.pool_name, "tables"), (other, "output"))
        job.patch({"scheduling": {"stages": [{"pool": pool, "lastLayer": end, "units": 1} for pool, end in ends]}})
        wait_until("the job changes", lambda: job.told("Redivided"), PATIENCE_SECONDS, more=job.story)
        wait_until(
            "its second stage has a worker", lambda: len(job.pods("worker")) == 2, PATIENCE_SECONDS, more=job.story
        )
    assert len(job.told("SpecChanged")) == 1
    status = job.wait_for_phase("Succeeded")
    assert not job.told("Resumed"), "nothing has stopped"
    assert (status["plan"]["revision"], len(status["plan"]["stages"]), status["restarts"]) == (2, 2, 0)
    assert_same_model(job.model(), expected_model)
