"""`heterps explain JOB`: why a job on a cluster runs as it does, why its plan changed, and what would cost less."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.cli.cluster.common import open_client
from heterps_operator.cli.plans.files import write_document
from heterps_operator.cli.plans.reasons import find_reasons
from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.views import EventView, JobView, PlanView
from heterps_operator.errors import ClusterError, ManifestError
from heterps_operator.formatting import format_money, format_rate
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.explanation import render_plan
from heterps_operator.terminal.job_tables import age, render_events, render_facts
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan as solve
from heterps_planner.plans.explain import Explanation
from heterps_planner.plans.plan import Plan
from heterps_runtime.contract import EXIT_OK

__all__ = ["describe_change", "explain"]

_SECONDS = 10.0  # for all alternatives
_FLOORS = (0.9, 0.75)  # fractions of the job's floor, to see what it costs
_EVENTS = 12
_PADDING = (0, 2, 0, 0)


@dataclass(frozen=True)
class _Reasons:
    """Reasons recomputed from the planning problem."""

    problem: Problem
    plan: Plan
    explanation: Explanation
    lower_floors: tuple[tuple[float, Plan], ...]  # floor in samples per second, and its cheapest plan


def explain(arguments: Namespace) -> int:
    """Explain the job of the command line; return the exit code.

    Raises:
        ClusterError: there is no such job, or the cluster refused the request.
    """
    client, name = open_client(arguments), arguments.job
    job, plans, events = client.get(name), client.plans(name), client.events(name)
    found = _reasons(client, name, plans[-1]) if plans else "there is no plan yet"
    if arguments.output == "table":
        make_console().print(_render(job, plans, events, found))
    else:
        write_document(arguments.output, _document(job, plans, events, found))
    return EXIT_OK


def _reasons(client: HeterPSClient, name: str, plan: PlanView) -> _Reasons | str:
    """Compute the reasons for the current plan, or return why that is not possible."""
    deadline = time.monotonic() + _SECONDS
    try:
        found = find_reasons(client.problem(name), plan.document, deadline)
    except (ClusterError, ManifestError, ValueError) as error:
        return f"alternatives cannot be compared: {error}"
    floors = []
    floor = found.problem.min_samples_per_second
    for share in _FLOORS if floor else ():
        lower = solve(replace(found.free_problem, min_samples_per_second=floor * share), deadline=deadline)
        if isinstance(lower, Plan) and lower.cost < found.plan.cost * (1 - 1e-6):
            floors.append((floor * share, lower))
    return _Reasons(found.problem, found.plan, found.explanation, tuple(floors))


def _render(
    job: JobView, plans: Sequence[PlanView], events: Sequence[EventView], found: _Reasons | str
) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{job.namespace}/{job.name}", style="bold"), render_facts(job)]
    planned = job.status.condition("Planned")
    if planned.status == "False":
        parts.append(Text(f"{planned.reason}: {planned.message}", style="red"))
    parts.append("")
    if isinstance(found, str):
        parts.append(Text(found))
    else:
        parts += [render_plan(found.problem, found.plan, found.explanation), "", *_cheaper(found)]
    if len(plans) > 1:
        parts += ["", _revisions(plans)]
    if events:
        parts += ["", render_events(events[-_EVENTS:])]
    return Group(*parts)


def _cheaper(found: _Reasons) -> list[RenderableType]:
    """Changes that would make training cheaper."""
    sentences = []
    best = found.plan.cost - found.plan.lower_bound
    if best > 1e-6 * found.plan.cost:
        sentences.append(
            f"another plan for the same problem: a cost down to {format_money(found.plan.lower_bound)} is not ruled out"
        )
    for floor, lower in found.lower_floors:
        saving = found.plan.cost - lower.cost
        stages = ", ".join(f"{stage.units} {stage.pool}" for stage in lower.stages)
        sentences.append(
            f"a floor of {format_rate(floor)}: {format_money(lower.cost)} with {stages}, "
            f"{format_money(saving)} ({saving / found.plan.cost:.1%}) less"
        )
    for other in found.explanation.alternatives:
        if other.cost is not None and other.cost < found.plan.cost * (1 - 1e-6):
            saving = found.plan.cost - other.cost
            sentences.append(f"{other.name}: {format_money(other.cost)}, {format_money(saving)} less")
    if not sentences:
        sentences = ["nothing known: neither a lower floor nor cheaper pools would change this plan"]
    return [Text("cheaper alternatives", style="bold"), *(Text(f"  {sentence}") for sentence in sentences)]


def _revisions(plans: Sequence[PlanView]) -> Table:
    table = Table(title="plans so far", title_justify="left", box=None, padding=_PADDING, header_style="bold")
    for name in ("plan", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("per hour", "samples/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what changed", overflow="fold")
    for before, plan in zip((None, *plans[:-1]), plans, strict=True):
        document = plan.document
        table.add_row(
            str(plan.revision),
            age(plan.created),
            format_money(float(document["costPerHour"])) if document.get("costPerHour") is not None else "",
            f"{float(document['throughput']):,.0f}" if document.get("throughput") is not None else "",
            Text(_stages(document) if before is None else describe_change(before.document, document)),
        )
    return table


def describe_change(before: Any, after: Any) -> str:
    """Describe the difference between two plans: `stage-0: 2 -> 4 cpu`.

    Args:
        before: a plan file.
        after: another plan file for the same model.
    """
    spans = [[(s["pool"], s["firstLayer"], s["lastLayer"]) for s in plan["stages"]] for plan in (before, after)]
    if spans[0] != spans[1]:
        return f"other stages: {_stages(after)}"
    changes = [
        f"{old['name']}: {old['units']} -> {new['units']} {new['pool']}"
        for old, new in zip(before["stages"], after["stages"], strict=True)
        if old["units"] != new["units"]
    ]
    old, new = before["parameterServer"], after["parameterServer"]
    if old != new:
        changes.append(f"servers: {old['units']} {old['pool']} -> {new['units']} {new['pool']}")
    return ", ".join(changes) or "only the prediction"


def _stages(plan: Any) -> str:
    return ", ".join(f"{stage['name']}: {stage['units']} {stage['pool']}" for stage in plan["stages"])


def _document(
    job: JobView, plans: Sequence[PlanView], events: Sequence[EventView], found: _Reasons | str
) -> dict[str, Any]:
    """The document for `--output json` and `yaml`."""
    reasons: dict[str, Any] | None = None
    if isinstance(found, _Reasons):
        reasons = {
            **found.explanation.to_json(),
            "lowerBound": found.plan.lower_bound,
            "gap": found.plan.gap,
            "lowerFloors": [
                {"minSamplesPerSecond": floor, "cost": plan.cost, "saving": found.plan.cost - plan.cost}
                for floor, plan in found.lower_floors
            ],
        }
    return {
        "version": 1,
        "job": job.name,
        "namespace": job.namespace,
        "phase": job.status.phase,
        "plan": dict(plans[-1].document) if plans else None,
        "explanation": reasons,
        "unexplained": found if isinstance(found, str) else None,
        "revisions": [
            {
                "revision": plan.revision,
                "created": None if plan.created is None else plan.created.isoformat(),
                "costPerHour": plan.document.get("costPerHour"),
                "throughput": plan.document.get("throughput"),
                "change": None if before is None else describe_change(before.document, plan.document),
            }
            for before, plan in zip((None, *plans[:-1]), plans, strict=True)
        ]
        if plans
        else [],
        "events": [
            {
                "time": None if event.time is None else event.time.isoformat(),
                "type": event.type,
                "reason": event.reason,
                "about": event.about,
                "message": event.message,
                "count": event.count,
            }
            for event in events
        ],
    }
