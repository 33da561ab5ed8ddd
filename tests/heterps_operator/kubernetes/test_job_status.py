"""The status of a job, for users and programs."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, cast

import pytest

from heterps_operator.api.schema import load_schemas
from heterps_operator.api.structure import Structure
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.events import EventRecorder
from heterps_operator.kubernetes.status import FIGURES, MEASURED, job_status, lasting_facts
from heterps_operator.state.bill import Bill, BillLine
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.values import PodProblem, ProcessView
from tests.heterps_operator.api.samples import JOB, parsed
from tests.heterps_operator.helpers.lists import Server
from tests.heterps_operator.helpers.world import PLAN, World

KIND = load_schemas()["HeterPSJob"]


def shown(world: World, bill: Bill = Bill()) -> dict[str, Any]:  # noqa: B008  # a frozen value
    """Return the status of a job, validated against its schema."""
    document = job_status(world.job.name, world.status, bill, tuple(world.processes.values()), generation=1)
    job = KIND.with_defaults(parsed(JOB)) | {"status": document}
    assert list(Structure(KIND.openapi).faults(job, {})) == []
    return document


def test_an_autoscaler_finds_the_worker_pods_from_the_start() -> None:
    workers = shown(World())["workers"]
    assert workers == {"selector": "heterps.io/job=tiny,heterps.io/role=worker", "desired": 0, "current": 0, "ready": 0}


def test_a_pool_has_one_entry_whatever_its_prices_were() -> None:
    """The API server refuses a status with two entries of one name."""
    lines = [("cpu", "0.04", 1), ("spot", "0.02", 4), ("spot", "0.05", 2)]
    bill = Bill(tuple(BillLine(pool, Decimal(price), hours * 3_600_000_000) for pool, price, hours in lines))
    cpu, spot = shown(World(), bill)["cost"]["pools"]
    assert cpu == {
        "name": "cpu", "unitHours": "1.000000", "cost": "0.040000",
        "prices": [{"pricePerUnitHour": "0.04", "unitHours": "1.000000", "cost": "0.040000"}],
    }  # fmt: skip
    assert (spot["unitHours"], spot["cost"]) == ("6.000000", "0.180000")
    assert [line["pricePerUnitHour"] for line in spot["prices"]] == ["0.02", "0.05"]


def test_many_prices_are_cut_to_those_that_cost_most() -> None:
    lines = [BillLine("spot", Decimal(price), 3_600_000_000) for price in range(1, 101)]
    [spot] = shown(World(), Bill(tuple(lines)))["cost"]["pools"]
    assert [line["pricePerUnitHour"] for line in spot["prices"]] == [str(price) for price in range(37, 101)]
    assert spot["cost"] == "5050.000000"


def test_the_chosen_precision_is_shown_with_what_the_others_would_cost() -> None:
    candidates = [
        {"name": "fp64", "message": "no plan reaches 90,000 samples/s"},
        {"name": "fp32", "throughput": 25_000.0, "costPerHour": 1.8, "cost": 0.02},
        {"name": "bf16", "throughput": 50_000.0, "costPerHour": 1.8, "cost": 0.01},
    ]
    plan = JobPlan.from_json({**PLAN, "precision": "bf16", "precisions": candidates})
    assert "precision" not in shown(World().planned())
    planned = replace(World().planned().status, plan=plan)  # not carried out yet
    kept = replace(planned, plan=JobPlan.from_json(PLAN), precision=plan.precision)  # and later replanned
    for status in (planned, kept):
        assert shown(World(status=status))["precision"] == {
            "name": "bf16",
            "candidates": [
                {"name": "fp64", "message": "no plan reaches 90,000 samples/s"},
                {"name": "fp32", "costPerMillionSamples": "0.020000", "costPerHour": "1.8000",
                 "predictedSamplesPerSecond": "25000.0"},
                {"name": "bf16", "costPerMillionSamples": "0.010000", "costPerHour": "1.8000",
                 "predictedSamplesPerSecond": "50000.0"},
            ],
        }  # fmt: skip


def test_workers_are_counted() -> None:
    found = shown(World().training())
    assert (found["workers"]["desired"], found["workers"]["ready"], found["workers"]["notReady"]) == (3, 3, [])
    assert found["parameterServers"] == {"desired": 1, "ready": 1, "summary": "1/1"}
    assert shown(World().profiled())["workers"]["desired"] == 0


def test_workers_that_are_not_ready_say_why() -> None:
    world = World().planned()
    assert {item["reason"] for item in shown(world)["workers"]["notReady"]} == {"Starting"}
    process = world.processes["worker-0-0"]
    problem = PodProblem("Unschedulable", "no node has 4 free cpu; add nodes to pool cpu")
    world.processes["worker-0-0"] = replace(process, problem=problem)
    world.end("worker-0-1", -9, reason="OOMKilled")
    del world.processes["worker-1-0"]
    assert shown(world)["workers"]["notReady"] == [
        {"name": "worker-0-0", "reason": "Unschedulable", "message": problem.message},
        {"name": "worker-0-1", "reason": "OOMKilled",
         "message": "killed by SIGKILL (the kernel does this when memory runs out)"},
        {"name": "worker-1-0", "reason": "NotStarted"},
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_after_the_end_nobody_is_waited_for(end: str) -> None:
    world = World().training()
    world.status = replace(world.status, phase=Phase(end), finished=world.time)
    world.processes.clear()
    assert shown(world)["workers"]["notReady"] == []


def test_long_lists_are_cut() -> None:
    world = World().planned()
    first, second = PLAN["stages"]
    many = {**PLAN, "stages": [{**first, "pods": 500, "units": 500}, second]}
    world.status = replace(world.status, plan=JobPlan.from_json(many))
    found = shown(world)["workers"]
    assert found["desired"] == 501
    assert len(found["notReady"]) == 16


def test_measurements_and_checkpoints_have_a_time() -> None:
    world = World().training()
    checkpoint = {"lastStep": 20, "lastTime": 1_700_000_000.0, "path": "/shared"}
    world.status = replace(world.status, result={"samplesPerSecond": 5.0, "checkpoint": checkpoint})
    found = job_status(world.job.name, world.status, Bill(), (), generation=1, measured=1_700_000_060.0)
    assert found["checkpoint"] == {"step": 20, "path": "/shared", "time": "2023-11-14T22:13:20Z"}
    assert found["throughput"]["observedTime"] == "2023-11-14T22:14:20Z"
    assert list(Structure(KIND.openapi).faults(KIND.with_defaults(parsed(JOB)) | {"status": found}, {})) == []


def test_no_part_of_a_status_and_no_event_repeats_credentials() -> None:
    text = "cannot open s3://KEY:SECRET@bucket/c"
    world = World().planned()
    process = world.processes["worker-0-0"]
    world.processes["worker-0-0"] = replace(process, problem=PodProblem("Unschedulable", text))
    status = world.status.with_condition("Planned", False, "InvalidSpec", text, world.time)
    world.status = replace(status, result={"checkpoint": {"lastStep": 20, "path": "s3://KEY:SECRET@bucket/c"}})
    found, hidden = shown(world), "cannot open s3://***@bucket/c"
    assert found["message"] == hidden
    assert [c["message"] for c in found["conditions"] if c["type"] == "Planned"] == [hidden]
    assert [w["message"] for w in found["workers"]["notReady"] if w["name"] == "worker-0-0"] == [hidden]
    assert found["checkpoint"]["path"] == "s3://***@bucket/c"
    server = Server()
    about = {"kind": "HeterPSJob", "namespace": "ml", "name": "tiny", "uid": "a"}
    EventRecorder(cast("KubernetesApi", server), about).record(Event("Warning", "InvalidSpec", text, 0.0))
    assert [event["message"] for event in server.events] == [hidden]
    assert "SECRET" not in str((found, server.events))


def test_an_evaluation_may_have_undefined_figures() -> None:
    world = World().training()
    figures = {"samples": 4, "loss": 0.5, "auc": None, "logLoss": 0.5, "positives": 0}
    world.status = replace(world.status, result={"evaluation": figures})
    assert shown(world)["evaluation"] == {"logLoss": "0.500000", "samples": 4}


def test_classes_have_their_accuracy_in_the_status() -> None:
    world = World().training()
    figures = {"samples": 4, "loss": 0.5, "accuracy": 0.75, "crossEntropy": 0.5}
    world.status = replace(world.status, result={"evaluation": figures})
    found = shown(world)
    assert found["evaluation"] == {"accuracy": "0.750000", "crossEntropy": "0.500000", "samples": 4}
    assert list(Structure(KIND.openapi).faults(KIND.with_defaults(parsed(JOB)) | {"status": found}, {})) == []


# --- what lasts -------------------------------------------------------------------------------------------------------


def lasting(status: Status, processes: tuple[ProcessView, ...]) -> dict[str, Any]:
    """Return the status without its figures."""
    document = job_status("tiny", status, Bill(), processes, generation=1, floor=1.0, measured=5.0)
    for condition in document["conditions"]:
        condition["message"] = "" if condition["type"] == MEASURED else condition["message"]
    return {key: value for key, value in document.items() if key not in FIGURES}


def test_what_lasts_follows_from_the_lasting_facts_alone() -> None:
    world = World().training()
    world.set_phase("Training", committedSteps=50, samplesPerSecond=5e4)
    world.settle()
    status, processes = world.status, tuple(world.processes.values())
    result = {
        **cast("dict[str, Any]", status.result), "loss": 0.5, "epoch": 1, "model": "/m", "evaluation": {"auc": 0.7},
        "checkpoint": {"lastStep": 4, "path": "/c", "lastTime": 9.0}, "samples": 7, "totalSteps": 90,
    }  # fmt: skip
    status = replace(status, result=result)
    changed = {
        field.name: replace(status, **cast("dict[str, Any]", {field.name: object()}))
        for field in fields(Status)
        if field.name not in ("conditions", "result")
    }
    others: dict[str, Any] = {
        "committedSteps": 51, "samplesPerSecond": 6e4, "loss": 0.4, "epoch": 2, "samples": 8, "totalSteps": 91,
        "checkpoint": {"lastStep": 5, "path": "/d"}, "model": "/n", "evaluation": {"auc": 0.8}, "phase": "Evaluating",
    }  # fmt: skip
    changed |= {f"result {key}": replace(status, result={**result, key: value}) for key, value in others.items()}
    for key, value in {"state": "joined", "message": "loads", "silentSeconds": 3.0, "batchSize": 1}.items():
        members = [{**member, key: value} for member in result["members"]]
        changed[f"member {key}"] = replace(status, result={**result, "members": members})
    for condition in status.conditions:
        for key in ("message", "reason"):
            told = [
                replace(c, **cast("dict[str, Any]", {key: "Other"})) if c == condition else c for c in status.conditions
            ]
            changed[f"{condition.type} {key}"] = replace(status, conditions=tuple(told))
    facts = lasting_facts(status, processes, 1)
    same = {name for name, other in changed.items() if lasting_facts(other, processes, 1) == facts}
    for name in same:
        assert lasting(changed[name], processes) == lasting(status, processes), name
    assert same >= {
        "series", "speeds", "heard", "history", "result committedSteps", "result samplesPerSecond", "result loss",
        "result checkpoint", "member silentSeconds", "ThroughputMet message",
    }  # fmt: skip
    assert not same & {
        "phase", "plan", "failure", "result model", "result evaluation", "member state", "member message",
        "ThroughputMet reason", "PodsReady message",
    }  # fmt: skip
    assert lasting_facts(status, processes[1:], 1) != facts != lasting_facts(status, processes, 2)
