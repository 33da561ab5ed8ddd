"""The HeterPSJob's `status`: a summary of the controller's state for users and programs.

Pure. The controller never reads it back: its state is in the job's state ConfigMap (state.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from heterps_operator.addresses import redacted
from heterps_operator.control.disruptions.failures import describe_exit
from heterps_operator.documents import Json
from heterps_operator.formatting import format_time
from heterps_operator.kubernetes.names import job_selector, label_selector
from heterps_operator.state.bill import Bill, BillLine
from heterps_operator.state.status import CONDITION_TYPES, Condition, Status
from heterps_operator.state.values import ProcessView
from heterps_runtime.contract import ps_name

__all__ = ["FIGURES", "MEASURED", "job_status", "lasting_facts", "timestamp"]

FIGURES = ("progress", "throughput", "cost", "checkpoint")  # parts of the document that change in every turn
MEASURED = "ThroughputMet"  # the condition whose message does, too
# Fields of a Status that change while a job only trains, and of which the rest of the document has nothing. Of the
# result it has some.
_PASSING = frozenset(
    {"conditions", "result", "series", "speeds", "pace", "last_observation", "last_rebalance", "history", "heard"}
)
_LASTING = tuple(field.name for field in fields(Status) if field.name not in _PASSING)

_LONGEST_MESSAGE = 4096
_LONGEST_SUMMARY = 1024
_LONGEST_REASON = 128
_LONGEST_REMARK = 1024  # characters of one worker's message
_MOST_NOT_READY = 16
_MOST_PRICES = 64  # of one pool
# Conditions whose message explains what a job waits for, the most specific first.
_WAITING = ("Failed", "Planned", "Profiled", "PodsReady")


def job_status(
    name: str,
    status: Status,
    bill: Bill,
    processes: tuple[ProcessView, ...],
    *,
    generation: int,
    floor: float = 0.0,
    plan_config: str = "",
    measured: float | None = None,
) -> dict[str, Any]:
    """Build the status document that `crds/` define.

    Args:
        name: name of the job.
        status: stored status.
        bill: costs so far.
        processes: its pods.
        generation: generation of the spec that the status describes.
        floor: samples per second that the job asks for; 0: none.
        plan_config: name of the ConfigMap that holds the plan.
        measured: when the throughput was measured, Unix seconds.
    """
    result: Mapping[str, Any] = status.result or {}
    document: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": status.phase,
        "message": redacted(_message(status))[:_LONGEST_MESSAGE],
        "restarts": status.failures,
        "startTime": timestamp(status.started),
        "completionTime": timestamp(status.finished if status.final else None),
        "plan": _plan(status, plan_config),
        "precision": _precision(status),
        "throughput": _throughput(floor, result, measured),
        "progress": _progress(result),
        **_members(name, status, processes),
        "cost": {
            "total": _decimal(float(bill.cost), 6),
            "pools": _charged(bill.lines),
        },
        "checkpoint": _checkpoint(result),
        "evaluation": _evaluation(result),
        "model": result.get("model"),
        "conditions": [_condition(status.condition(kind), status, generation) for kind in CONDITION_TYPES],
    }
    return {key: value for key, value in document.items() if value is not None}


def lasting_facts(status: Status, processes: tuple[ProcessView, ...], generation: int) -> tuple[Any, ...]:
    """Return what the document's other parts than `FIGURES` and the message of `MEASURED` follow from.

    While it is the same, so are they. It costs a tenth of the document.
    """
    result: Mapping[str, Any] = status.result or {}
    return (
        [getattr(status, name) for name in _LASTING],
        [c if c.type != MEASURED else (c.status, c.reason, c.last_transition_time) for c in status.conditions],
        [(m["name"], m.get("state"), m.get("message")) for m in result.get("members") or ()],
        result.get("evaluation"),
        result.get("model"),
        processes,
        generation,
    )


def _charged(lines: Sequence[BillLine]) -> list[dict[str, Any]]:
    """Return what each pool has cost, at which prices."""
    pools: dict[str, list[BillLine]] = {}
    for line in lines:
        pools.setdefault(line.pool, []).append(line)
    found = []
    for name, of_pool in pools.items():
        most = sorted(of_pool, key=lambda line: line.cost, reverse=True)[:_MOST_PRICES]
        prices = [
            {
                "pricePerUnitHour": str(line.price_per_unit_hour),
                "unitHours": _decimal(float(line.unit_hours), 6),
                "cost": f"{line.cost:.6f}",
            }
            for line in sorted(most, key=lambda line: line.price_per_unit_hour)
        ]
        hours, cost = sum(line.unit_hours for line in of_pool), sum(line.cost for line in of_pool)
        found.append({"name": name, "unitHours": _decimal(float(hours), 6), "cost": f"{cost:.6f}", "prices": prices})
    return found


def timestamp(seconds: float | None) -> str | None:
    """Format Unix seconds as Kubernetes does: whole seconds in UTC."""
    if seconds is None:
        return None
    return format_time(seconds)


def _message(status: Status) -> str:
    """Return what the job waits for, or why it ended, in one line."""
    if status.failure is not None:
        text = f"{status.failure.reason}: {status.failure.message}"
        if status.failure.member:
            text += f" ({status.failure.member}: {describe_exit(status.failure.exit_code)})"
        return text
    if status.final:
        return ""
    for kind in _WAITING:
        condition = status.condition(kind)
        if condition.status == "False" and condition.message:
            return condition.message
    return ""


def _plan(status: Status, plan_config: str) -> dict[str, Any] | None:
    plan = status.plan
    if plan is None:
        return None
    keys = ("name", "pool", "firstLayer", "lastLayer", "units", "pods")
    found: dict[str, Any] = {
        "revision": status.plan_revision,
        "reason": status.plan_reason,
        "method": plan.method[:32],
        "summary": plan.summary[:_LONGEST_SUMMARY],
        "stages": [
            {key: getattr(stage, key) for key in keys}
            | ({"denseExchange": stage.denseExchange} if stage.denseExchange else {})
            for stage in plan.stages
        ],
    }
    if plan_config:
        found["configMapName"] = plan_config
    if plan.cost_per_hour is not None:
        found["costPerHour"] = _decimal(plan.cost_per_hour, 4)
    if plan.throughput is not None:
        found["predictedSamplesPerSecond"] = _decimal(plan.throughput, 1)
    return found


def _precision(status: Status) -> dict[str, Any] | None:
    choice = status.choice
    if choice is None:
        return None
    candidates = []
    for one in choice.candidates:
        found = {"name": one.name}
        if one.cost_per_hour is not None and one.throughput:
            found["costPerMillionSamples"] = _decimal(one.cost_per_hour / 3600 / one.throughput * 1e6, 6)
            found["costPerHour"] = _decimal(one.cost_per_hour, 4)
            found["predictedSamplesPerSecond"] = _decimal(one.throughput, 1)
        else:
            found["message"] = one.message[:_LONGEST_REMARK]
        candidates.append(found)
    return {"name": choice.name, "candidates": candidates}


def _throughput(floor: float, result: Json, measured: float | None) -> dict[str, Any] | None:
    found = {}
    if result.get("samplesPerSecond"):
        found["samplesPerSecond"] = _decimal(float(result["samplesPerSecond"]), 1)
        if measured is not None:
            found["observedTime"] = format_time(measured)
    if floor:
        found["minSamplesPerSecond"] = _decimal(floor, 1)
    return found or None


def _progress(result: Json) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for key, name in (("step", "committedSteps"), ("totalSteps", "totalSteps"), ("epoch", "epoch")):
        if result.get(name) is not None:
            found[key] = int(result[name])
    if result.get("loss") is not None:
        found["loss"] = f"{float(result['loss']):.6g}"
    return found or None


def _members(name: str, status: Status, processes: tuple[ProcessView, ...]) -> dict[str, Any]:
    """Desired workers and servers, those that the coordinator knows, and why others are not ready."""
    workers: dict[str, Any] = {"selector": label_selector(job_selector(name, "worker")), "desired": 0, "ready": 0}
    workers["current"] = sum(process.running and process.spec.role == "worker" for process in processes)
    if status.plan is None:
        return {"workers": workers}
    names = status.plan.workers
    servers = [ps_name(index) for index in range(status.plan.servers.replicas)]
    seen = {process.name: process for process in processes}
    known = {str(m["name"]): m for m in (status.result or {}).get("members") or ()}
    ready = {name for name, m in known.items() if m.get("state") == "ready" and name in seen and seen[name].running}
    absent = [name for name in names if name not in ready] if not status.final else []
    workers |= {
        "desired": len(names),
        "ready": len(ready.intersection(names)),
        "summary": f"{len(ready.intersection(names))}/{len(names)}",
        "notReady": [_not_ready(name, seen.get(name), known.get(name, {})) for name in absent[:_MOST_NOT_READY]],
    }
    present = len(ready.intersection(servers))
    summary = f"{present}/{len(servers)}"
    return {
        "workers": workers,
        "parameterServers": {"desired": len(servers), "ready": present, "summary": summary},
    }


def _not_ready(name: str, process: ProcessView | None, member: Json) -> dict[str, Any]:
    """Why a worker is not ready: its pod's problem first, then the coordinator's view."""
    if process is None:
        reason, message = "NotStarted", ""
    elif process.problem is not None:
        reason, message = process.problem.reason, process.problem.message
    elif not process.running:
        reason, message = process.reason or "Ended", describe_exit(process.exit_code)
    else:
        reason, message = "Starting", str(member.get("message") or "")
    found = {"name": name, "reason": reason[:_LONGEST_REASON]}
    return found | ({"message": redacted(message)[:_LONGEST_REMARK]} if message else {})


def _checkpoint(result: Json) -> dict[str, Any] | None:
    checkpoint = result.get("checkpoint") or {}
    if checkpoint.get("lastStep") is None:
        return None
    found: dict[str, Any] = {"step": int(checkpoint["lastStep"]), "path": redacted(str(checkpoint.get("path") or ""))}
    return found if checkpoint.get("lastTime") is None else found | {"time": timestamp(float(checkpoint["lastTime"]))}


def _evaluation(result: Json) -> dict[str, Any] | None:
    evaluation = result.get("evaluation")
    if not evaluation:
        return None
    known = {
        key: value for key, value in evaluation.items() if value is not None
    }  # null: undefined, such as the AUC of samples with one label
    figures = ("auc", "logLoss", "accuracy", "crossEntropy")
    found: dict[str, Any] = {key: f"{float(known[key]):.6f}" for key in figures if key in known}
    if "samples" in known:
        found["samples"] = int(known["samples"])
    return found or None


def _condition(condition: Condition, status: Status, generation: int) -> dict[str, Any]:
    since = condition.last_transition_time or status.started or 0.0
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason or "NotYetKnown",
        "message": redacted(condition.message)[:_LONGEST_MESSAGE],
        "lastTransitionTime": timestamp(since),
        "observedGeneration": generation,
    }


def _decimal(value: float, places: int) -> str:
    return f"{value:.{places}f}"
