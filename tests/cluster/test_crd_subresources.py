"""The custom resources besides their fields: status, scale, columns, names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heterps_operator.kubernetes.status import job_status
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from tests.cluster.api_server import ApiServer, collection
from tests.cluster.kubectl import Kubectl, wait_until
from tests.heterps_operator.api.mutations import FULL_JOB
from tests.heterps_operator.api.samples import CPU, GPU, JOB, changed, parsed
from tests.heterps_operator.helpers.world import World

pytestmark = pytest.mark.usefixtures("custom_resources")


def path(kubectl: Kubectl) -> str:
    assert kubectl.namespace is not None
    return collection(parsed(JOB), kubectl.namespace)


def reported(server: ApiServer, kubectl: Kubectl, status: Status) -> dict[str, Any]:
    """Write a status as the controller does, and return the stored result."""
    document = job_status("flights", status, Bill(), (), generation=1, plan_config="flights-plan-1")
    reply = server.ask(
        "PATCH",
        f"{path(kubectl)}/flights/status?fieldValidation=Strict",
        {"status": document},
        "application/merge-patch+json",
    )
    assert reply.code == 200, reply.message
    stored: dict[str, Any] = reply.body["status"]
    assert stored.keys() >= document.keys()
    return stored


def test_spec_and_status_are_written_apart(resources: Kubectl, server: ApiServer) -> None:
    resources.apply(changed(parsed(JOB), "status", {"phase": "Running"}))
    job = resources.get("heterpsjob", "flights")
    assert "status" not in job
    assert job["metadata"]["generation"] == 1
    patch = {"spec": {"paused": True}, "status": {"phase": "Running"}}
    merge = "application/merge-patch+json"
    server.ask("PATCH", f"{path(resources)}/flights/status", patch, merge)
    job = resources.get("heterpsjob", "flights")
    assert (job["status"]["phase"], job["spec"]["paused"], job["metadata"]["generation"]) == ("Running", False, 1)
    server.ask("PATCH", f"{path(resources)}/flights", {"spec": {"paused": True}, "status": {"phase": "No"}}, merge)
    job = resources.get("heterpsjob", "flights")
    assert (job["status"]["phase"], job["spec"]["paused"], job["metadata"]["generation"]) == ("Running", True, 2)


def test_every_status_that_the_controller_makes_is_taken_as_it_is(resources: Kubectl, server: ApiServer) -> None:
    resources.apply(parsed(CPU), parsed(GPU), parsed(JOB))
    world = World()
    seen = [reported(server, resources, world.status)]
    for step in (world.profiled, world.planned, world.training):
        world = World()
        getattr(world, step.__name__)()
        seen.append(reported(server, resources, world.status))
    world.end("worker-0-1", None, reason="Preempted")
    world.settle()
    seen.append(reported(server, resources, world.status))
    world.end("worker-0-0", 2, last_lines=("bad input",))
    world.settle()
    seen.append(reported(server, resources, world.status))
    assert [status.get("phase") for status in seen] == [
        "Pending", "Planning", "Starting", "Running", "Running", "Stopping",
    ]  # fmt: skip
    assert seen[-1]["workers"]["desired"] == 3


def test_columns_are_filled_from_spec_and_status(resources: Kubectl, server: ApiServer) -> None:
    resources.apply(parsed(CPU), parsed(GPU), parsed(JOB))
    world = World().training()
    reported(server, resources, world.status)
    head, row = (line.split() for line in resources("get", "hpsj", "flights").splitlines())
    assert head == ["NAME", "STATE", "WORKERS", "PS", "THROUGHPUT", "COST/H", "PLAN", "AGE"]
    assert row[:2] == ["flights", "Running"]
    assert {"0/3", "0/1", "2.5400", "1"} <= set(row)
    wide = resources("get", "hpsj", "flights", "--output=wide").splitlines()[0].split()
    assert {"STAGES", "STEP", "MESSAGE"} <= set(wide)
    assert max(map(len, resources("get", "hpsj", "flights").splitlines())) <= 120
    head, row, _ = (line.split() for line in resources("get", "dpool").splitlines())
    assert head == ["NAME", "DEVICE", "PRICE/H", "MAX", "NODES", "CAPACITY", "USED", "AGE"]
    assert row[:4] == ["cpu", "CPU", "0.04", "8"]


def test_names_and_explanations(resources: Kubectl) -> None:
    resources.apply(parsed(CPU), parsed(JOB))
    for name in ("hpsj", "heterpsjob", "heterpsjobs", "heterpsjobs.heterps.io", "heterpsjobs.v1alpha1.heterps.io"):
        assert resources("get", name, "--output=name").strip() == "heterpsjob.heterps.io/flights"
    for name in ("dpool", "devicepool", "devicepools.heterps.io"):
        assert resources("get", name, "--output=name").strip() == "devicepool.heterps.io/cpu"
    assert "heterpsjob.heterps.io/flights" in resources("get", "all", "--output=name")
    text = resources("explain", "hpsj.spec.elasticity.workers")
    assert "Total worker pods of all stages" in " ".join(text.split())
    assert "FailJob" in resources("explain", "hpsj.spec.runPolicy.failurePolicy.rules.action")


def test_scaling_asks_for_a_number_of_workers(resources: Kubectl, server: ApiServer) -> None:
    resources.apply(parsed(JOB))
    scale = server.ask("GET", f"{path(resources)}/flights/scale").body
    assert (scale["spec"], scale["status"]) == ({}, {"replicas": 0}), "0: the planner decides"
    resources("scale", "hpsj/flights", "--replicas=12")
    assert resources.get("heterpsjob", "flights")["spec"]["elasticity"]["workers"] == 12
    status = {"status": {"workers": {"desired": 12, "current": 3, "ready": 2, "selector": "heterps.io/job=flights"}}}
    server.ask("PATCH", f"{path(resources)}/flights/status", status, "application/merge-patch+json")
    scale = server.ask("GET", f"{path(resources)}/flights/scale").body
    assert scale["spec"] == {"replicas": 12}
    assert scale["status"] == {"replicas": 3, "selector": "heterps.io/job=flights"}


def test_scaling_is_refused_where_it_has_no_effect(resources: Kubectl) -> None:
    resources.apply(changed(parsed(JOB), "spec.elasticity.mode", "Disabled"))
    answer = resources.try_to("scale", "hpsj/flights", "--replicas=12")
    assert answer.code
    assert "workers has no effect with mode Disabled; set mode to Auto, or workers to 0" in answer.errors


def test_an_autoscaler_leaves_a_job_alone_until_it_has_a_number(resources: Kubectl) -> None:
    resources.apply(parsed(JOB))
    resources.apply({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "flights"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "heterps.io/v1alpha1", "kind": "HeterPSJob", "name": "flights"},
            "minReplicas": 2,
            "maxReplicas": 8,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {
                "type": "Utilization", "averageUtilization": 80}}}],
        },
    })  # fmt: skip

    def reason(kind: str) -> str:
        conditions = resources.get("hpa", "flights").get("status", {}).get("conditions") or ()
        return next((str(c["reason"]) for c in conditions if c["type"] == kind), "")

    wait_until("the autoscaler has looked", lambda: reason("ScalingActive") == "ScalingDisabled", 60)
    assert reason("AbleToScale") == "SucceededGetScale"
    resources("scale", "hpsj/flights", "--replicas=1")
    # Less than its own minimum: it needs no metrics to correct that.
    wait_until(
        "the autoscaler has scaled",
        lambda: resources.get("hpsj", "flights")["spec"]["elasticity"]["workers"] == 2,
        90,
        more=lambda: json.dumps(resources.get("hpa", "flights").get("status")),
    )


def test_the_largest_job_fits_into_one_request(resources: Kubectl, server: ApiServer) -> None:
    job = changed(FULL_JOB, "spec.pools", [{"name": f"pool-{n}"} for n in range(64)])
    stages = [{"pool": f"pool-{n}", "lastLayer": "x" * 253, "units": 1_000_000} for n in range(64)]
    job = changed(job, "spec.scheduling.stages", stages)
    job = changed(job, "spec.data.dense", [f"column-{n:04}" + "x" * 240 for n in range(4096)])
    rules = [{"role": "Worker", "exitCodes": list(range(32)), "action": "Ignore"} for _ in range(20)]
    job = changed(job, "spec.runPolicy.failurePolicy.rules", rules)
    reply = server.would_create(path(resources), job)
    assert reply.code == 201, reply.message
