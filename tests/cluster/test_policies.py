"""Failure policies, numbers of workers and changes of a job, in real pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

ENDLESS = {"training.steps": 1_000_000}  # the test ends before the job does
WORKER = "worker-0-0"


def running(job: ClusterJob, process: str) -> str:
    """Return the name of the running pod of a process, or an empty string."""
    pods = [p for p in job.pods() if p["metadata"]["labels"]["heterps.io/process"] == process]
    names = [p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"]
    return str(names[0]) if names else ""


def told(job: ClusterJob, reason: str) -> list[str]:
    """Return messages of the job's events with this reason."""
    return [str(event["message"]) for event in job.kubectl.items("events") if event["reason"] == reason]


def test_a_pod_that_somebody_deletes_is_replaced_and_counts_nothing(make: Make) -> None:
    job = make("spared", spec={**ENDLESS, "runPolicy.backoffLimit": 0}).submit()
    job.wait_for_step(5)
    first = running(job, WORKER)
    job.kubectl("delete", "pod", first, "--wait=false")
    wait_until("it is replaced", lambda: running(job, WORKER) not in ("", first), 120, more=job.story)
    status = job.wait_for_phase("Running")
    assert status["restarts"] == 0
    [message] = told(job, "ProcessRestarts")
    assert "deleted by another client" in message
    assert "does not count towards backoffLimit" in message


def test_a_rule_can_fail_the_job_instead(make: Make) -> None:
    rules = [{"role": "Worker", "reasons": ["Deleted"], "action": "FailJob"}]
    job = make("strict", spec={**ENDLESS, "runPolicy.failurePolicy": {"rules": rules}}).submit()
    job.wait_for_step(5)
    job.kubectl("delete", "pod", running(job, WORKER), "--wait=false")
    status = job.wait_for_phase("Failed")
    assert job.condition("Failed")["reason"] == "FailurePolicy"
    assert "a rule of runPolicy.failurePolicy fails the job" in status["message"]


def test_a_server_without_enough_memory_says_what_to_raise(make: Make) -> None:
    spec = {"parameterServer.memoryLimit": "16Mi", "runPolicy.backoffLimit": 0}
    job = make("small-memory", spec=spec).submit()
    status = job.wait_for_phase("Failed")
    assert job.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert "out of memory; raise spec.parameterServer.memoryLimit" in status["message"]


def test_a_job_is_scaled_like_a_deployment(make: Make) -> None:
    elasticity = {"cooldownSeconds": 1, "maxScaleDownPercent": 100}
    spec = {**ENDLESS, "scheduling": {}, "elasticity": elasticity}
    job = make("scaled", spec=spec, pool={"maxUnits": 3}).submit()
    job.wait_for_step(5)

    def workers() -> Json:
        found: Json = job.status().get("workers") or {}
        return found

    path = f"/apis/heterps.io/v1alpha1/namespaces/{job.kubectl.namespace}/heterpsjobs/scaled/scale"
    for number in (1, 2):  # whatever the planner has chosen, one of them is a change
        job.kubectl("scale", "heterpsjob/scaled", f"--replicas={number}")
        wait_until(
            f"{number} workers are ready, and no others",
            lambda number=number: {workers().get(key) for key in ("desired", "current", "ready")} == {number},  # type: ignore[misc]
            150,
            more=job.story,
        )
        scale = json.loads(job.kubectl("get", f"--raw={path}"))
        assert (scale["spec"], scale["status"]["replicas"]) == ({"replicas": number}, number)
        selected = job.kubectl.items("pods", f"--selector={scale['status']['selector']}")
        assert {pod["metadata"]["labels"]["heterps.io/role"] for pod in selected} == {"worker"}
    assert any(" workers, the plan has " in message for message in told(job, "UnitsChanged"))
    assert job.status()["restarts"] == 0


def test_a_change_that_processes_read_at_their_start_restarts_them_from_a_checkpoint(make: Make) -> None:
    job = make("changed").submit()
    job.wait_for_step(30)
    before = running(job, WORKER)
    job.patch({"checkpoint": {"everySteps": 50}})
    wait_until("a new worker runs", lambda: running(job, WORKER) not in ("", before), 120, more=job.story)
    assert told(job, "SpecChanged") == ["spec.checkpoint.everySteps: applied after a restart from a checkpoint"]
    status = job.wait_for_phase("Succeeded")
    assert (status["progress"]["step"], status["restarts"]) == (400, 0)


def test_a_job_of_another_controller_is_left_alone(make: Make) -> None:
    other = make("theirs", spec={"managedBy": "example.com/other"})
    other.submit()
    ours = make("ours", spec=ENDLESS).submit()
    ours.wait_for_step(1)
    assert other.status() == {}
    assert other.pods() == []
