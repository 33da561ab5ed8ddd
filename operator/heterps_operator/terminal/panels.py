"""Parts of the live view, each rendered from one turn of the loop."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heterps_operator.control.machine import describe_shortage
from heterps_operator.formatting import format_duration, format_money, format_rate, sparkline
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Event, Phase
from heterps_operator.state.turn import Turn
from heterps_operator.state.values import CoordinatorView

__all__ = ["event_line", "live_view", "plan_table", "progress_line", "seconds_left"]

_BAR_WIDTH = 14
_LAYERS_WIDTH = 38
_EVENTS_SHOWN = 6


def seconds_left(view: CoordinatorView, global_batch_size: int) -> float | None:
    """Time until the last step at the current throughput; None while unknown."""
    if view.samples_per_second <= 0 or not view.total_steps:
        return None
    return max(0, view.total_steps - view.committed_steps) * global_batch_size / view.samples_per_second


def event_line(event: Event) -> str:
    """Format an event as one plain line."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    mark = "warning: " if event.type == "Warning" else ""
    return f"{clock} {mark}{event.reason}: {event.message}"


def progress_line(turn: Turn) -> str:
    """Format the progress of training as one plain line."""
    view = turn.observed.coordinator
    assert view is not None
    document = view.document
    parts = [f"step {view.committed_steps} of {view.total_steps}"]
    if document.get("loss") is not None:
        parts.append(f"loss {document['loss']:.4f}")
    if view.samples_per_second:
        parts.append(format_rate(view.samples_per_second))
    parts.append(f"cost {format_money(float(turn.bill.cost))}")
    left = seconds_left(view, turn.job.global_batch_size)
    if left is not None:
        parts.append(f"{format_duration(left)} left")
    return ", ".join(parts)


def live_view(turn: Turn, losses: Sequence[float], events: Sequence[Event], verbose: bool = False) -> RenderableType:
    """Render a running job on one screen.

    Args:
        turn: the current turn.
        losses: losses of the steps so far, oldest first.
        events: events of the whole run, oldest first; the last few are shown.
        verbose: show every process and member too.
    """
    parts: list[RenderableType] = [_facts(turn, losses)]
    if turn.status.plan is not None:
        parts += ["", plan_table(turn.status.plan, turn.observed.coordinator)]
    if verbose or turn.status.phase in (Phase.STARTING, Phase.RESTARTING):
        parts += ["", _members(turn)]
    if events:
        lines = [Text(event_line(e), style="yellow" if e.type == "Warning" else "dim") for e in events[-_EVENTS_SHOWN:]]
        parts += ["", *lines]
    title = f"[bold]heterps[/] · {turn.job.name} · [bold cyan]{_phase(turn)}[/]"
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan")


def _phase(turn: Turn) -> str:
    view = turn.observed.coordinator
    if turn.status.phase == Phase.RUNNING and view is not None:
        return view.phase
    return turn.status.phase


def _facts(turn: Turn, losses: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    view = turn.observed.coordinator
    if turn.status.phase == Phase.PROFILING:
        done = [pool.name for pool in turn.job.pools if pool.name in turn.observed.profiles]
        busy = [p.spec.pool or "" for p in turn.observed.processes if p.running and p.spec.role == "profile"]
        table.add_row("profile", f"measured: {', '.join(done) or 'none yet'}; measuring: {', '.join(busy) or '...'}")
    if view is not None and view.message:
        table.add_row("now", view.message)
    if view is not None and view.total_steps and turn.status.plan is not None:
        row = Table.grid(padding=(0, 1, 0, 0))
        left = seconds_left(view, turn.job.global_batch_size)
        text = f"step {view.committed_steps} of {view.total_steps}"
        text += f", {format_duration(left)} left" if left is not None else ""
        row.add_row(ProgressBar(view.total_steps, view.committed_steps, width=32), text)
        table.add_row("progress", row)
    if losses:
        table.add_row("loss", f"{losses[-1]:.4f}  {sparkline(losses, 40)}")
    if view is not None and view.samples_per_second:
        table.add_row("throughput", _throughput(turn, view))
    cost = format_money(float(turn.bill.cost))
    if (plan := turn.status.plan) is not None:
        if shortage := describe_shortage(plan.machine, plan.throughput, turn.job.min_samples_per_second):
            table.add_row("machine", Text(shortage, style="yellow"))
        if plan.cost_per_hour:
            cost += f"  at {format_money(plan.cost_per_hour)}/h"
    table.add_row("cost so far", cost)
    return table


def _throughput(turn: Turn, view: CoordinatorView) -> Text:
    floor = turn.job.min_samples_per_second
    below = view.samples_per_second < floor
    text = Text(format_rate(view.samples_per_second), style="red" if below else "green")
    plan = turn.status.plan
    if plan is not None and plan.throughput:
        text.append(f"   predicted {plan.throughput:,.0f}", style="default")
    if floor:
        text.append(f"   floor {floor:,.0f}", style="default")
    return text


def plan_table(plan: JobPlan, view: CoordinatorView | None) -> Table:
    """Render the stages of a plan with their measurements.

    Args:
        plan: the plan.
        view: view of the coordinator; None: nothing measured yet.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    # In narrow terminals, user-defined names wrap and figures stay whole.
    table.add_column("stage", no_wrap=True)
    for name in ("layers", "pool"):
        table.add_column(name, overflow="fold")
    for name in ("units", "predicted", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busy", no_wrap=True)
    measured = {} if view is None else {s["name"]: s for s in view.document.get("stages") or ()}
    for stage in plan.stages:
        layers = stage.layers
        text = layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]} ({len(layers)} layers)"
        if len(text) > _LAYERS_WIDTH:
            text = text[: _LAYERS_WIDTH - 1] + "…"
        seen = measured.get(stage.name, {})
        rate, busy = seen.get("samplesPerSecond"), seen.get("busyFraction")
        table.add_row(
            stage.name,
            text,
            stage.pool,
            str(stage.units),
            f"{plan.throughput:,.0f}" if plan.throughput else "",
            f"{rate:,.0f}" if rate else "",
            _busy(busy) if busy is not None else "",
        )
    servers = plan.servers
    shards = f"{servers.replicas} shard{'s' if servers.replicas > 1 else ''}"
    table.add_row("servers", shards, servers.pool, str(servers.units), "", "", "")
    return table


def _busy(fraction: float) -> Table:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(ProgressBar(1.0, min(1.0, fraction), width=_BAR_WIDTH), f"{fraction:.0%}")
    return row


def _members(turn: Turn) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("process", "state", "batch", "step", "message"):
        table.add_column(name, no_wrap=name != "message")
    view = turn.observed.coordinator
    for process in turn.observed.processes:
        member = view.member(process.name) if view is not None else None
        state = member.state if member is not None and process.running else "running" if process.running else "ended"
        table.add_row(
            process.name,
            state,
            str(member.batch_size) if member is not None and member.batch_size else "",
            f"{member.step_seconds * 1e3:.0f} ms" if member is not None and member.step_seconds else "",
            member.message if member is not None else "",
        )
    return table
