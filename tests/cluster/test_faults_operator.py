"""Operators stop, crash and overlap: each sample is applied once, and in `sync` the model is that of plain PyTorch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import (
    LASTING,
    assert_each_pod_was_made_once,
    assert_every_sample_counted,
    counting_job,
    held,
    kill_pod,
    only_pod,
    small_job,
    wait_for_successor,
)
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until
from tests.cluster.operators import Operator
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
MakeOperator = Callable[..., Operator]
Model = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# Of 58 or more: a point after a failed call does not exist, and calls may fail on a slow machine.
LEAST_POINTS = 50
# Phases of the job's life below in which an operator crashes before and after it saves and reports a decision.
PHASES = ("Profiling", "Planning", "Starting", "Running", "Restarting", "Stopping", "Suspended", "Succeeded")
# ReportLost is one too, unless a slow machine lets the coordinator find the loss itself.
ACTIONS = (
    "StartProcess coordinator",
    "StartProcess profile",
    "StartProcess ps",
    "StartProcess worker",
    "StopProcess coordinator",
    "StopProcess worker",
    "SaveProfile",
    "ComputePlan",
    "SubmitPlan",
    "RequestStop",
    "Shutdown",
)
STEPS = ("taking up", "writing a plan", *(f"{what} {phase}" for what in ("keeping", "telling") for phase in PHASES))


def test_training_needs_no_operator(make_alone: Make, make_operator: MakeOperator, expected_model: Model) -> None:
    """One stops gracefully, the next one crashes, then none runs for a while.

    Meanwhile one job trains to its end, and the other loses its server.
    """
    first, second = make_operator("first", *LASTING), make_operator("second", *LASTING)
    third = make_operator("third", "--lease-name", "third")
    first.start()
    alone, robbed = small_job(make_alone, "alone"), small_job(make_alone, "robbed")
    with held(alone, robbed):
        for job in (alone, robbed):
            job.submit()
        for job in (alone, robbed):
            job.wait_for_step(2)
        second.start(standby=True)
        first.stop()
        second.wait_until_active()
        second.kill()
        victim = only_pod(robbed, "ps")
        robbed.kubectl("delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force")
    wait_until("its worker has ended", lambda: alone.pods("worker")[0]["status"]["phase"] == "Succeeded", 600)
    third.start()
    for job in (alone, robbed):
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
        assert_same_model(job.model(), expected_model)
    assert_each_pod_was_made_once(alone)


def test_two_operators_do_not_disturb_each_other(
    make_alone: Make, make_operator: MakeOperator, expected_model: Model
) -> None:
    first, other = make_operator("first", *LASTING), make_operator("other", *LASTING, "--lease-name", "other")
    for operator in (first, other):
        operator.start()
    job = small_job(make_alone, "shared", units=2).submit()
    assert job.wait_for_phase("Succeeded")["restarts"] == 0
    assert first.running
    assert other.running
    assert "another operator is working on it" in first.story() + other.story()
    assert_each_pod_was_made_once(job)
    assert_same_model(job.model(), expected_model)


def test_operators_may_crash_at_any_point(make_alone: Make, make_operator: MakeOperator, own_cluster: Cluster) -> None:
    """One crashes at each point of the job's life with unfinished work, and the next one continues."""
    operator = make_operator("operator", program=(sys.executable, "-m", "tests.cluster.faulty_operator"))
    operator.start()
    job = counting_job(make_alone, "dying", "hybrid", units=2)
    # So that the death of the server restarts all processes.
    rule = {"role": "ParameterServer", "exitCodes": [137], "action": "RestartJob"}
    job.job["spec"].setdefault("runPolicy", {})["failurePolicy"] = {"rules": [rule]}
    job.submit(profiled=False)
    job.wait_for_step(30)
    [profile] = job.kubectl.items("configmaps", "--selector=app.kubernetes.io/component=profile")
    [container] = job.pods("worker")[0]["status"]["containerStatuses"]
    assert container["imageID"]
    assert profile["metadata"]["annotations"]["heterps.io/image-id"] == container["imageID"]
    for role in ("worker", "ps"):
        with held(job):
            victim = only_pod(job, role)
            kill_pod(victim)
            wait_for_successor(job, role, victim)
        job.wait_for_step(job.step() + 30)
    with held(job):
        job.patch({"runPolicy": {"suspend": True}})
        # The deaths of the worker and the server, each counted once.
        assert job.wait_for_phase("Suspended")["restarts"] == 2
        # Resuming with another plan: one worker in place of two.
        job.job["spec"]["scheduling"]["stages"][0]["units"] = 1
        job.patch({"runPolicy": {"suspend": False}, "scheduling": job.job["spec"]["scheduling"]})
    status = job.wait_for_phase("Succeeded")
    assert status["restarts"] == 0  # reset after resuming
    assert [stage["pods"] for stage in status["plan"]["stages"]] == [1]
    assert_every_sample_counted(job)
    points = re.findall(r"^dies (.+)$", operator.story(), re.MULTILINE)
    print(f"{len(points)} operators died: {', '.join(points)}")  # noqa: T201  # pytest shows it if asked to
    assert len(points) == len(set(points))
    assert {point.partition(" ")[2] for point in points} >= {*ACTIONS, *STEPS}
    assert len(points) >= LEAST_POINTS
