"""The page of `heterps report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps_operator.documents import Json
from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_operator.page.document import build_document, figures, section
from heterps_operator.page.html import Markup
from heterps_operator.page.palette import Palette
from heterps_operator.page.sections.accuracy import Compared, accuracy_section
from heterps_operator.page.sections.bill import bill_section
from heterps_operator.page.sections.frontier import frontier_section
from heterps_operator.page.sections.history import history_section
from heterps_operator.page.sections.layers import layers_section
from heterps_operator.page.sections.reasons import Planned, reasons_section
from heterps_operator.page.sections.state import failure_section, state_section
from heterps_operator.page.sections.timeline import measured_times, predicted_times, timeline_section
from heterps_operator.state.history import PlanRecord
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView

__all__ = ["report_page"]


def report_page(report: Json, status: Status, planned: Planned | str, where: str, written: float) -> str:
    """Build the page of a job that runs or has ended.

    Args:
        report: from `build_report`.
        status: the job's status, for its plans and its workers' times.
        planned: the planner's knowledge of the present plan, or why it is not available.
        where: the job's namespace or work directory.
        written: the time of writing, Unix seconds.

    Returns:
        The text of the HTML file.
    """
    plan = status.plan
    view = None if status.result is None else CoordinatorView.from_json(status.result)
    records = _records(report, status)
    known = planned if isinstance(planned, Planned) else None
    palette = Palette(_pools(report, plan, known))
    sections = [
        _figures(report),
        failure_section(report["failure"]),
        None if plan is None else layers_section(plan, palette),
        _timeline(plan, view, known, palette),
        accuracy_section(
            [Compared(f"plan {record.revision}", record.predicted, record.measured) for record in records],
            _stages(view, known),
            report["throughput"]["floorSamplesPerSecond"] or 0.0,
        ),
        history_section(records),
        bill_section(report["bill"], report["predictedCost"], palette),
        *_reasons(planned, palette),
        state_section(report["conditions"]),
    ]
    return build_document(str(report["job"]), f"{report['phase']} · {where}", sections, written)


def _records(report: Json, status: Status) -> Sequence[PlanRecord]:
    """The record of the job's plans, the present one with the measurement that the report has."""
    measured = report["throughput"]["measuredSamplesPerSecond"]
    records = status.history
    if not records and status.plan is not None:  # the state was written before plans were recorded
        plan = status.plan
        first = PlanRecord(status.plan_revision, status.started or 0.0, status.plan_reason)
        records = (replace(first, summary=plan.summary, predicted=plan.throughput, cost_per_hour=plan.cost_per_hour),)
    if records and measured and records[-1].revision == status.plan_revision:
        records = (*records[:-1], replace(records[-1], measured=measured))
    return records


def _pools(report: Json, plan: JobPlan | None, known: Planned | None) -> list[str]:
    """All pools that the page shows, those of the problem first."""
    names = [] if known is None else [pool.name for pool in known.problem.pools]
    names += [] if plan is None else list(plan.units)
    return names + [str(line["pool"]) for line in report["bill"]["pools"]]


def _figures(report: Json) -> Markup:
    progress, throughput, evaluation = report["progress"], report["throughput"], report["evaluation"] or {}
    pairs = []
    if progress["committedSteps"] is not None and progress["totalSteps"]:
        share = progress["committedSteps"] / progress["totalSteps"]
        seconds = progress["secondsTraining"]
        spent = f", {format_duration(seconds)} of training" if seconds else ""
        steps = f"step {progress['committedSteps']:,} of {progress['totalSteps']:,}{spent}"
        pairs.append(("Progress", f"{share:.0%}", steps))
    if throughput["measuredSamplesPerSecond"]:
        predicted, floor = throughput["predictedSamplesPerSecond"], throughput["floorSamplesPerSecond"]
        remarks = [f"predicted: {predicted:,.0f}" if predicted else "", f"required: {floor:,.0f}" if floor else ""]
        rate = format_rate(throughput["measuredSamplesPerSecond"])
        pairs.append(("Throughput, measured", rate, ", ".join(remark for remark in remarks if remark)))
    if report["bill"]["pools"]:
        price = (report["plan"] or {}).get("costPerHour")
        remark = f"{format_money(price)} per hour with this plan" if price is not None else ""
        pairs.append(("Bill", format_money(float(report["bill"]["cost"])), remark))
    for key, name in (("auc", "AUC"), ("accuracy", "accuracy"), ("loss", "loss")):  # the first one says most
        if evaluation.get(key) is not None:
            pairs.append((f"Held-out {name}", f"{evaluation[key]:.4f}", f"{evaluation['samples']:,} samples"))
            break
    if report["restarts"]:
        count = sum(report["restarts"].values())
        pairs.append(("Restarts", f"{count}", ", ".join(sorted(report["restarts"]))))
    return figures(pairs)


def _timeline(
    plan: JobPlan | None, view: CoordinatorView | None, known: Planned | None, palette: Palette
) -> Markup | None:
    measured = () if plan is None or view is None else measured_times(view, [stage.units for stage in plan.stages])
    if known is None:
        return timeline_section((), measured, palette, None)
    predicted = predicted_times(known.problem, known.plan, known.explanation)
    return timeline_section(predicted, measured, palette, known.explanation)


def _stages(view: CoordinatorView | None, known: Planned | None) -> list[Compared]:
    """What each stage reaches alone, as the planner and the coordinator say."""
    seen = {} if view is None else {stage["name"]: stage for stage in view.document.get("stages") or ()}
    if known is None:
        return [Compared(f"{name} alone", None, stage.get("samplesPerSecond")) for name, stage in seen.items()]
    return [
        Compared(f"{stage.name} alone", stage.throughput, seen.get(stage.name, {}).get("samplesPerSecond"))
        for stage in known.explanation.stages
    ]


def _reasons(planned: Planned | str, palette: Palette) -> list[Markup | None]:
    """The sections that need the planning problem, or the reason why they are missing."""
    if isinstance(planned, str):
        return [section("Why this plan", f"Alternatives and the frontier are missing: {planned}.")]
    drawn = None
    if planned.frontier is not None:
        drawn = frontier_section(planned.problem, planned.plan, planned.frontier, palette)
    return [drawn, reasons_section(planned)]
