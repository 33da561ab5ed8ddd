"""Units follow the floor while the job trains; another division into stages needs a new start from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

PATIENCE_SECONDS = 180
# One worker sleeps its way to 10,000 samples/s at most; by its profile it has 85,000.
BATCH = 4096
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


def allocated(job: ClusterJob) -> int:
    """Units of the pool that jobs hold, as its status says."""
    return int((job.kubectl.get("nodepool", job.pool_name).get("status") or {}).get("allocatedUnits", 0))


def test_units_follow_the_floor_while_the_job_trains(make: Make) -> None:
    job = make("elastic", spec=SPEC, pool={"maxUnits": 4, "nodeSelector": {}})
    for layer in job.profile["layers"]:
        layer["parallelFraction"] = 0.6  # two workers would cost more than one, as long as one suffices
    job.submit().wait_for_step(1)
    survivors = workers(job)
    assert list(survivors) == ["worker-0-0"]
    assert float(job.status()["plan"]["predictedSamplesPerSecond"]) > 50_000
    before = allocated(job)

    wait_until("there are more workers", lambda: len(workers(job)) > 1, PATIENCE_SECONDS, more=job.story)
    job.wait_for_condition("ThroughputMet", "True", "AboveFloor", PATIENCE_SECONDS)
    grown = workers(job)
    assert grown.items() > survivors.items()
    wait_until("the pool shows them", lambda: allocated(job) == before + len(grown) - 1, 30)
    assert job.condition("Rescaled")["reason"] == "UnitsChanged"
    assert "samples/s are measured, the floor is 11,000: " in job.told("UnitsChanged")[0]

    job.patch({"objective": {"minSamplesPerSecond": 2_000}})
    wait_until("one is left", lambda: workers(job) == survivors, PATIENCE_SECONDS, more=job.story)
    wait_until("its units are free", lambda: allocated(job) == before, 30, more=job.story)
    status = job.status()
    assert (status["restarts"], status["phase"]) == (0, "Running")
    step = int(status["progress"]["step"])
    job.wait_for_step(step + 5)
