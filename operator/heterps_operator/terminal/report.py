"""The final report of a run: one JSON object, and the same facts as text.

The schema is documented in docs/cli.md; text and JSON output are both generated from it, so they cannot disagree.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions.failures import describe_exit
from heterps_operator.control.machine import describe_shortage
from heterps_operator.documents import Json
from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.selection import describe_selection
from heterps_operator.state.status import Phase, Status
from heterps_planner.plans.selection import Selection
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_OK

__all__ = ["build_report", "exit_code", "render_failure", "render_report"]

# Figures of held-out data, in the order in which they are shown.
_FIGURES = {"auc": "AUC", "logLoss": "log loss", "accuracy": "accuracy", "crossEntropy": "cross-entropy"}


def exit_code(status: Status, interrupted: bool) -> int:
    """Return the exit code of `heterps run` for a job in this status.

    Args:
        status: the last status.
        interrupted: whether Ctrl-C or SIGTERM ended the run.
    """
    if status.phase == Phase.FAILED:
        if status.condition("Planned").status == "False":
            return EXIT_INFEASIBLE
        failure = status.failure
        refused = failure is not None and (failure.reason == "BadInput" or failure.exit_code == EXIT_BAD_INPUT)
        return EXIT_BAD_INPUT if refused else EXIT_FAILED
    return EXIT_INTERRUPTED if interrupted and status.phase != Phase.SUCCEEDED else EXIT_OK


def build_report(job: JobSpec, status: Status, bill: Bill, *, interrupted: bool, logs: str) -> dict[str, Any]:
    """Build the report of a run that has ended.

    Args:
        job: the job's spec.
        status: the last status.
        bill: the total cost.
        interrupted: whether Ctrl-C or SIGTERM ended it.
        logs: the folder of the logs.
    """
    result: Json = status.result or {}
    plan: Json = {} if status.plan is None else status.plan.document
    exchange = None if status.plan is None else status.plan.dense_exchange
    failure = status.failure
    return {
        "version": 1,
        "job": job.name,
        "phase": status.phase,
        "exitCode": exit_code(status, interrupted),
        "failure": None if failure is None else failure.to_json(),
        "progress": {
            key: result.get(key)
            for key in (
                "committedSteps",
                "totalSteps",
                "skippedSteps",
                "samples",
                "secondsTraining",
                "resumedFromStep",
                "loss",
            )
        },
        "rows": result.get("rows"),
        "evaluation": result.get("evaluation"),
        "throughput": {
            "measuredSamplesPerSecond": result.get("samplesPerSecond"),
            "predictedSamplesPerSecond": plan.get("throughput"),
            "floorSamplesPerSecond": job.min_samples_per_second,
        },
        "plan": plan or None,
        "precision": _chosen(status.choice),
        "denseExchange": _chosen(exchange),
        "bill": bill.to_json(),
        "predictedCost": plan.get("cost"),
        "model": result.get("model"),
        "checkpoint": result.get("checkpoint"),
        "restarts": dict(status.restarts),
        "conditions": [condition.to_json() for condition in status.conditions],
        "logs": logs,
    }


def _chosen(selection: Selection | None) -> Json | None:
    return None if selection is None else {"name": selection.name, "reason": describe_selection(selection)}


def render_report(report: Json, job_path: str) -> RenderableType:
    """Render the report as text.

    Args:
        report: from `build_report`.
        job_path: the manifest, for the command that resumes.
    """
    parts: list[RenderableType] = [_headline(report, job_path)]
    if report["failure"] is not None:
        parts.append(render_failure(report["failure"]))
    facts = _facts(report)
    if facts.row_count:
        parts.append(facts)
    if report["bill"]["pools"]:
        parts += ["", _bill(report["bill"])]
        predicted = report["predictedCost"]
        if predicted is not None and report["phase"] == "Succeeded":
            note = f"profiling, starting and evaluating included; training alone: {format_money(predicted)} predicted"
            parts.append(Text(note, style="dim"))
    return Group(*parts)


def _headline(report: Json, job_path: str) -> Text:
    name, phase, progress = report["job"], report["phase"], report["progress"]
    step, total = progress["committedSteps"], progress["totalSteps"]
    if phase == Phase.SUCCEEDED:
        return Text(f"{name}: trained", style="bold green")
    if phase == Phase.FAILED:
        return Text(f"{name}: failed", style="bold red")
    if phase == Phase.PLANNED:
        return Text(f"{name}: planned (spec.mode is Plan)", style="bold")
    if phase == Phase.PAUSED:
        return Text(f"{name}: paused (spec.paused); nothing was done", style="bold yellow")
    kept = (report["checkpoint"] or {}).get("lastStep")
    text = f"{name}: stopped"
    if step and total:
        text += f" at step {step} of {total}"
    text += f"; checkpoint at step {kept}" if kept else "; nothing was checkpointed"
    return Text(f"{text}. To go on: heterps run {job_path}", style="bold yellow")


def render_failure(failure: Json) -> Text:
    """Render why a job failed, with the last log lines of the failed process."""
    text = Text(f"{failure['reason']}: {failure['message']}\n")
    if failure["member"]:
        text.append(f"{failure['member']}: {describe_exit(failure['exitCode'])}; log: {failure['log']}\n")
        for line in failure["lastLines"]:
            text.append(f"  | {line}\n", style="dim")
    text.rstrip()
    return text


def _facts(report: Json) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    evaluation, throughput, progress = report["evaluation"] or {}, report["throughput"], report["progress"]
    # Which figures there are, depends on the kind of label. A figure may be undefined.
    figures = [(name, evaluation[key]) for key, name in _FIGURES.items() if evaluation.get(key) is not None]
    if not figures and evaluation.get("loss") is not None:  # neither binary labels nor classes
        figures = [("loss", evaluation["loss"])]
    for name, value in figures[:-1]:
        table.add_row(f"held-out {name}", f"{value:.4f}")
    for name, value in figures[-1:]:
        table.add_row(f"held-out {name}", f"{value:.4f}  ({evaluation['samples']:,} samples)")
    if throughput["measuredSamplesPerSecond"]:
        text = f"{format_rate(throughput['measuredSamplesPerSecond'])} measured"
        if throughput["predictedSamplesPerSecond"]:
            text += f", {format_rate(throughput['predictedSamplesPerSecond'])} predicted"
        if throughput["floorSamplesPerSecond"]:
            text += f", {format_rate(throughput['floorSamplesPerSecond'])} required"
        table.add_row("throughput", text)
    if report["plan"]:
        plan = JobPlan.from_json(report["plan"])
        table.add_row("plan", Text(plan.summary))
        if shortage := describe_shortage(plan.machine, plan.throughput, throughput["floorSamplesPerSecond"]):
            table.add_row("machine", Text(shortage))
    for title, chosen in (("precision", report["precision"]), ("dense exchange", report["denseExchange"])):
        if chosen:
            table.add_row(title, Text(chosen["reason"]))
    if progress["samples"] and progress["secondsTraining"]:
        seconds = format_duration(progress["secondsTraining"])
        table.add_row("trained", f"{progress['samples']:,} samples in {seconds}")
    stored, candidates, admitted, evicted = (
        (report["rows"] or {}).get(key) or 0 for key in ("stored", "candidates", "admitted", "evicted")
    )
    if candidates or admitted or evicted:
        text = f"{stored:,} at the end; {evicted:,} were evicted, {admitted:,} admitted"
        table.add_row("rows", f"{text}; {candidates:,} ids have none yet")
    if report["restarts"]:
        table.add_row("restarts", ", ".join(f"{name} {count}x" for name, count in sorted(report["restarts"].items())))
    if report["model"]:
        table.add_row("model", Text(str(report["model"])))
    return table


def _bill(bill: Json) -> Table:
    table = Table(title="bill", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_column("pool")
    table.add_column("unit hours", justify="right")
    table.add_column("price per unit hour", justify="right")
    table.add_column("cost", justify="right")
    for line in bill["pools"]:
        table.add_row(
            line["pool"],
            f"{float(line['unitHours']):.4f}",
            f"${line['pricePerUnitHour']}",
            format_money(float(line["cost"])),
        )
    table.add_row("total", "", "", format_money(float(bill["cost"])), style="bold")
    return table
