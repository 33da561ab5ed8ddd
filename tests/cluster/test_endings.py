"""How jobs end and what they leave: deleted in any phase, failed, cleaned up; and events that do not end them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.cluster.images import IMAGE
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import Operator

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PATIENCE_SECONDS = 240
KINDS = "pods,services,configmaps,heterpsjobstates,secrets,poddisruptionbudgets,networkpolicies"
NO_IMAGE = {"image": "heterps.test/none:1"}  # no node has it, and none may pull it
STEPS = {"training.steps": 60, "checkpoint.everySteps": 10}
ENDLESS = {"training.steps": 1_000_000}


def left_of(kubectl: Kubectl, *jobs: str) -> list[str]:
    """Return the remaining objects of these jobs."""
    return [
        f"{item['kind']} {item['metadata']['name']}"
        for item in kubectl.items(KINDS, f"--selector=heterps.io/job in ({', '.join(jobs)})")
    ]


def wait_until_free(job: ClusterJob) -> None:
    """Wait until no job holds a unit of the job's pool."""
    wait_until(f"all units of {job.pool_name} are free", lambda: job.held_units() == 0, PATIENCE_SECONDS)


def wait_until_held(job: ClusterJob, units: int) -> None:
    """Wait until jobs hold at least this many units of the job's pool."""
    wait_until(f"{units} units of {job.pool_name} are held", lambda: job.held_units() >= units, PATIENCE_SECONDS)


def test_jobs_that_are_deleted_leave_nothing_and_their_names_are_free_at_once(make: Make, kubectl: Kubectl) -> None:
    """In each phase: profiling, planning, starting pods, training, and stopping."""
    roomy = {"maxUnits": 64}
    profiling = make("profiling", spec=NO_IMAGE, pool=roomy)
    profiling.pool["spec"]["autoscaled"] = True
    stages = [{"pool": profiling.pool_name, "lastLayer": "output", "units": 63}]
    planning = make("planning", spec={"scheduling.stages": stages}, pool=roomy)
    starting = make("starting", spec=NO_IMAGE, pool=roomy)
    again = make("again", spec=ENDLESS, pool=roomy)

    profiling.submit(profiled=False)
    profiling.wait_for_phase("Profiling")  # before a cached profile exists
    again.keep_profile()
    starting.keep_profile()
    for job in (again, starting):
        job.kubectl.apply(job.job)
    starting.wait_for_phase("Starting")
    again.wait_for_step(1)
    planning.kubectl.apply(planning.job)  # the others leave no room for it
    planning.wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)
    assert planning.status()["phase"] == "Planning"
    wait_until_held(profiling, 2)

    for job in (profiling, planning, starting, again):
        job.delete()
    again.kubectl.apply(again.job)  # while pods of the first one are still terminating
    again.wait_for_step(1)
    again.patch({"runPolicy": {"suspend": True}})
    again.wait_for_phase("Stopping", "Suspended")
    again.delete()
    again.kubectl("wait", "--for=delete", "heterpsjob/again", "--timeout=300s")
    again.job["spec"]["training"]["steps"] = 60
    again.job["spec"]["runPolicy"] = {"cleanPodPolicy": "All"}
    # Another job, which must not resume from the others' checkpoints at its path.
    again.job["spec"]["checkpoint"]["path"] += "-third"
    again.kubectl.apply(again.job)
    wait_until(
        "nothing is left of the others",
        lambda: not left_of(kubectl, "profiling", "planning", "starting"),
        PATIENCE_SECONDS,
        more=again.story,
    )
    status = again.wait_for_phase("Succeeded")
    assert (status["restarts"], status["progress"]["step"]) == (0, 60)
    assert not [reason for reason in ("JobRestarts", "ProcessRestarts") if again.told(reason)]
    wait_until("its pods are gone (cleanPodPolicy)", lambda: not again.pods(), PATIENCE_SECONDS)
    wait_until_free(again)
    again.patch({"runPolicy": {"ttlSecondsAfterFinished": 0}})
    again.kubectl("wait", "--for=delete", "heterpsjob/again", f"--timeout={PATIENCE_SECONDS}s")
    wait_until("nothing is left", lambda: not left_of(kubectl, "again"), PATIENCE_SECONDS)


def test_what_does_not_start_is_told_and_gives_its_units_back_when_it_is_given_up(
    make: Make, kubectl: Kubectl, admin: Kubectl
) -> None:
    priority = f"small-{kubectl.namespace}"
    admin("create", "priorityclass", priority, "--value=1")
    selector = {"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": [priority]}]}}  # fmt: skip
    kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
                   "spec": {"hard": {"pods": "1"}, **selector}})  # fmt: skip
    crashing = {"name": "crashing", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", "exit 1"],
                "restartPolicy": "Always"}  # fmt: skip
    nowhere = {"spec": {"nodeSelector": {"a": "b"}}}  # none of its pods uses the room that those of "crashing" need
    wrong: dict[str, tuple[Json, str, str]] = {
        "no-image": (NO_IMAGE, "ErrImageNeverPull", "load it onto the node"),
        "no-node": ({"podTemplates.worker": nowhere, "podTemplates.parameterServer": nowhere}, "Unschedulable",
                    "label nodes with a=b"),
        "no-quota": ({"runPolicy.schedulingPolicy": {"priorityClassName": priority}}, "QuotaExceeded",
                     "raise the ResourceQuota"),
        "crashing": ({"podTemplates.all.spec.initContainers": [crashing]}, "CrashLoopBackOff", "kubectl logs"),
    }  # fmt: skip
    jobs = {name: make(name, spec=spec, pool={"maxUnits": 64}) for name, (spec, _, _) in wrong.items()}
    jobs["no-image"].pool["spec"]["autoscaled"] = True
    jobs["no-image"].submit()
    for job in jobs.values():
        job.keep_profile()
        job.kubectl.apply(job.job)
    for name, (_, reason, fix) in wrong.items():
        condition = jobs[name].wait_for_condition("PodsReady", "False", reason, PATIENCE_SECONDS)
        assert fix in condition["message"]
        assert jobs[name].status()["message"] == condition["message"]
        wait_until(f"{name} has an event", lambda job=jobs[name], reason=reason: job.told(reason), 30)  # type: ignore[misc]
        print(f"{name}: told {lag(kubectl, name, reason):.0f} s after its pod showed it")  # noqa: T201
    wait_until_held(jobs["no-node"], 2 * len(jobs))

    # They wait, and hold their units, until they fail.
    for job in jobs.values():
        job.patch({"runPolicy": {"startDeadlineSeconds": 1}})
    for job in jobs.values():
        status = job.wait_for_phase("Failed")
        assert job.condition("Failed")["reason"] == "StartDeadlineExceeded"
        assert "runPolicy.startDeadlineSeconds" in status["message"]
        assert status["restarts"] == 0
    wait_until_free(jobs["no-node"])
    assert [pod["metadata"]["name"] for job in jobs.values() for pod in job.pods() if runs(pod)] == []
    admin("delete", "priorityclass", priority)


def runs(pod: Json) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]


def lag(kubectl: Kubectl, job: str, reason: str) -> float:
    """Seconds from the cluster's first event about a job's pods to the job's own event."""

    def time(event: Json) -> float:
        return datetime.fromisoformat(event.get("firstTimestamp") or event["eventTime"]).timestamp()

    events = [e for e in kubectl.items("events") if e["type"] == "Warning"]
    told = [time(e) for e in events if e["involvedObject"]["name"] == job and e["reason"] == reason]
    shown = [time(e) for e in events if e["involvedObject"]["name"].startswith(f"{job}-")]
    return min(told) - min(shown, default=min(told))


def test_a_job_gets_on_when_its_pool_its_spec_or_its_state_is_spoilt(
    make: Make, kubectl: Kubectl, operator: Operator
) -> None:
    job = make("spoilt", spec={**STEPS, "training.steps": 100_000}).submit()
    job.wait_for_step(5)
    pods = {pod["metadata"]["uid"] for pod in job.pods()}

    def gets_on(why: str) -> None:
        condition = job.wait_for_condition("Planned", "False", why, PATIENCE_SECONDS)
        assert condition["message"] == job.status()["message"]
        wait_until("it is told", lambda: job.told(why), 30)
        assert job.status()["phase"] == "Running"
        step = job.coordinator().status()["committedSteps"]
        wait_until("it gets on", lambda: job.coordinator().status()["committedSteps"] > step, 60, more=job.story)

    kubectl("delete", "devicepool", job.pool_name)
    gets_on("PoolNotFound")
    kubectl.apply(job.pool)
    job.wait_for_condition("Planned", "True", seconds=PATIENCE_SECONDS)
    image = job.job["spec"]["image"]
    job.patch({"image": None})
    gets_on("InvalidSpec")
    job.patch({"image": image})
    job.wait_for_condition("Planned", "True", seconds=PATIENCE_SECONDS)
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods
    assert job.status()["restarts"] == 0

    # Its state is the operator's memory of it: without it, everything restarts from the last checkpoint.
    spoil = json.dumps({"data": {"status.json": "{"}})
    kubectl("patch", "heterpsjobstate", "spoilt", "--type=merge", f"--patch={spoil}")
    kubectl("delete", "pod", job.pods("worker")[0]["metadata"]["name"], "--wait=false")  # a reason to act
    condition = job.wait_for_condition("Planned", "False", "DamagedState", PATIENCE_SECONDS)
    assert "delete the HeterPSJobState spoilt" in condition["message"]
    kubectl("delete", "heterpsjobstate", "spoilt")
    job.wait_for_condition("Planned", "True", seconds=PATIENCE_SECONDS)
    job.wait_for_phase("Running")
    resumed = wait_until("it resumes", lambda: job.told("Resumed"), PATIENCE_SECONDS, more=job.story)
    assert not resumed[-1].startswith("resuming from step 0 ")
    assert pods.isdisjoint(pod["metadata"]["uid"] for pod in job.pods() if runs(pod))
    assert "Traceback" not in operator.story()
