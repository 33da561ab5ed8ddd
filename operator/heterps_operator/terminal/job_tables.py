"""Jobs of a cluster: a table of all jobs, details of one, its current state in a line, its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.client.views import EventView, JobView, StatusView
from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_operator.state.status import Phase

__all__ = ["age", "describe_end", "describe_now", "render_events", "render_facts", "render_job", "render_jobs"]

_PADDING = (0, 2, 0, 0)
_COLOURS = {"Succeeded": "green", "Failed": "red", "Suspended": "yellow", "Running": "cyan", "Paused": "yellow"}


def describe_now(job: JobView) -> str:
    """Describe a job's current activity in one line."""
    status = job.status
    if not job.current:
        return "waiting for the operator"
    parts = [status.phase]
    if status.step is not None and status.total_steps:
        parts.append(f"step {status.step} of {status.total_steps}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.samples_per_second and status.phase == Phase.RUNNING:
        parts.append(_throughput(status))
    if status.cost:
        parts.append(f"cost {_money(status.cost)}")
    return ", ".join(parts)


def describe_end(job: JobView) -> RenderableType:
    """Describe how a job has ended."""
    status, name = job.status, job.name
    headline = {
        "Succeeded": f"{name}: trained",
        "Failed": f"{name}: failed",
        "Suspended": f"{name}: suspended at step {status.checkpoint_step or 0}; submit its file again to resume it",
        "Planned": f"{name}: planned (spec.mode is Plan); heterps explain {name} shows the plan",
    }.get(status.phase, f"{name}: {status.phase}")
    parts: list[RenderableType] = [Text(headline, style=f"bold {_COLOURS.get(status.phase, 'default')}")]
    if status.phase == Phase.FAILED:
        parts.append(Text(status.message or status.condition("Failed").message))
        parts.append(Text(f"heterps logs {name} shows what its pods said", style="dim"))
    parts.append(render_facts(job))
    return Group(*parts)


def render_jobs(jobs: Sequence[JobView], *, namespaces: bool) -> RenderableType:
    """The table of `heterps status`."""
    table = Table(box=None, padding=_PADDING, header_style="bold")
    if namespaces:
        table.add_column("namespace", no_wrap=True)
    table.add_column("job", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("step", "samples/s", "floor", "per hour", "cost", "plan", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("message", overflow="ellipsis", no_wrap=True)
    for job in jobs:
        status = job.status
        row: list[RenderableType] = [Text(job.namespace)] if namespaces else []
        row += [
            Text(job.name),
            Text(_state(job), style=_COLOURS.get(status.phase, "default")),
            f"{status.step}/{status.total_steps}" if status.total_steps and status.step is not None else "",
            _below(f"{status.samples_per_second:,.0f}", status) if status.samples_per_second else "",
            f"{status.min_samples_per_second:,.0f}" if status.min_samples_per_second else "",
            _money(status.cost_per_hour),
            _money(status.cost),
            str(status.plan_revision or ""),
            age(job.created),
            Text(status.message),
        ]
        table.add_row(*row)
    return table


def render_job(job: JobView) -> RenderableType:
    """One job in detail."""
    status = job.status
    title = Text.assemble(
        (f"{job.namespace}/{job.name}", "bold"),
        "  ",
        (_state(job), _COLOURS.get(status.phase, "default")),
    )
    parts: list[RenderableType] = [title]
    if status.message:
        parts.append(Text(status.message))
    parts += [render_facts(job)]
    if status.stages:
        stages = Table(box=None, padding=_PADDING, header_style="bold")
        for name in ("stage", "pool", "layers"):
            stages.add_column(name)
        for name in ("units", "pods"):
            stages.add_column(name, justify="right")
        for stage in status.stages:
            layers = f"{stage.first_layer} to {stage.last_layer}"
            stages.add_row(stage.name, stage.pool, layers, str(stage.units), str(stage.pods))
        parts += ["", stages]
    known = [condition for condition in status.conditions if condition.status != "Unknown"]
    if known:
        conditions = Table(box=None, padding=_PADDING, header_style="bold")
        for name in ("condition", "status", "since", "reason", "message"):
            conditions.add_column(name, no_wrap=name != "message", overflow="fold")
        for condition in known:
            since = age(condition.since)
            conditions.add_row(
                condition.type,
                condition.status,
                f"{since} ago" if since else "",
                condition.reason,
                Text(condition.message),
            )
        parts += ["", conditions]
    return Group(*parts)


def render_events(events: Sequence[EventView]) -> RenderableType:
    """Render events, the oldest first."""
    table = Table(box=None, padding=_PADDING, header_style="bold")
    for name in ("age", "reason", "about", "message"):
        table.add_column(name, no_wrap=name != "message", overflow="fold")
    for event in events:
        times = f" ({event.count} times)" if event.count > 1 else ""
        table.add_row(
            age(event.time),
            Text(event.reason, style="yellow" if event.type == "Warning" else ""),
            Text(event.about),
            Text(event.message + times),
        )
    return table


def _state(job: JobView) -> str:
    if job.deleting:
        return "Deleting"
    if not job.status.phase:
        return "no operator yet"
    return job.status.phase + ("" if job.current else " (spec has changed)")


def render_facts(job: JobView) -> Table:
    """Render a job's progress, throughput, plan and cost."""
    status = job.status
    table = Table.grid(padding=_PADDING)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if not status.phase:
        table.add_row("state", "no operator has picked up the job yet")
    if status.total_steps and status.step is not None:
        loss = f", loss {status.loss:.4f}" if status.loss is not None else ""
        table.add_row("progress", f"step {status.step} of {status.total_steps}{loss}")
    if status.samples_per_second:
        table.add_row("throughput", _below(_throughput(status), status))
    if status.plan_revision:
        per_hour = f", {_money(status.cost_per_hour)}/h" if status.cost_per_hour is not None else ""
        text = f"revision {status.plan_revision} by {status.plan_method}: {status.plan_summary}{per_hour}"
        table.add_row("plan", Text(text))  # "[embedding..mlp]" is not markup
    if status.workers_desired and not job.ended:
        servers = f"{status.servers_ready} of {status.servers_desired} servers"
        table.add_row("ready", f"{status.workers_ready} of {status.workers_desired} workers, {servers}")
    if status.cost:
        pools = ", ".join(f"{_money(pool.cost)} {pool.name}" for pool in status.pool_costs if pool.cost)
        table.add_row("cost", _money(status.cost) + (f" ({pools})" if pools else ""))
    if status.started is not None:
        end = status.completed or datetime.now(UTC)
        table.add_row("time", format_duration(max(0.0, (end - status.started).total_seconds())))
    figures = {
        "AUC": status.auc,
        "log loss": status.log_loss,
        "accuracy": status.accuracy,
        "cross-entropy": status.cross_entropy,
    }
    quality = ", ".join(f"{name} {value:.4f}" for name, value in figures.items() if value is not None)
    if quality:
        table.add_row("quality", quality)
    if status.checkpoint_step is not None:
        table.add_row("checkpoint", Text(f"step {status.checkpoint_step} in {status.checkpoint_path}"))
    if status.restarts:
        table.add_row("restarts", str(status.restarts))
    if status.model:
        table.add_row("model", Text(status.model))
    return table


def _throughput(status: StatusView) -> str:
    text = format_rate(status.samples_per_second or 0.0)
    if status.predicted_samples_per_second:
        text += f", predicted {status.predicted_samples_per_second:,.0f}"
    if status.min_samples_per_second:
        text += f", floor {status.min_samples_per_second:,.0f}"
    return text


def _below(text: str, status: StatusView) -> Text:
    """Format a throughput, in red if it is below the floor."""
    below = (status.samples_per_second or 0.0) < (status.min_samples_per_second or 0.0)
    return Text(text, style="red" if below and status.phase == Phase.RUNNING else "")


def _money(amount: Decimal | None) -> str:
    return "" if amount is None else format_money(float(amount))


def age(since: datetime | None) -> str:
    """Format a time span ago in its largest unit, as kubectl does."""
    if since is None:
        return ""
    seconds = max(0, int(time.time() - since.timestamp()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
