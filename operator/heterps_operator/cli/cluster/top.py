"""`heterps top JOB`: stages, workers, throughput and cost of a job on a cluster, live."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from heterps_operator.cli.cluster.common import open_client
from heterps_operator.cli.plans.files import write_document
from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.views import JobView
from heterps_operator.errors import ClusterError
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.values import CoordinatorView, MemberView, ProcessView
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.job_tables import describe_end, render_facts
from heterps_operator.terminal.panels import plan_table
from heterps_runtime.contract import EXIT_INTERRUPTED, EXIT_OK

__all__ = ["render_top", "top"]

_LOOK_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0  # with an unresponsive cluster
_ROWS = 40  # workers shown


def top(arguments: Namespace) -> int:
    """Show the job of the command line; return the exit code.

    Raises:
        ClusterError: there is no such job, or the cluster refused the request.
    """
    client, name = open_client(arguments), arguments.job
    console = make_console()
    job, memory = _look(client, name, 0.0)
    if arguments.output != "table":
        write_document(arguments.output, _document(job, memory))
        return EXIT_OK
    if arguments.once or not console.is_terminal:
        console.print(Text(f"{job.namespace}/{job.name}", style="bold"), render_top(job, memory), sep="\n")
        return EXIT_OK
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not job.ended:
                live.update(_panel(job, memory), refresh=True)
                time.sleep(_LOOK_SECONDS)
                job, memory = _look(client, name, _PATIENCE_SECONDS)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    console.print(describe_end(job))
    return EXIT_OK


def _look(client: HeterPSClient, name: str, patience: float) -> tuple[JobView, StoredState | None]:
    """Return the current state; retry while a cluster is briefly unreachable."""
    since = time.monotonic()
    while True:
        try:
            job, memory = client.get(name), client.state(name)
            if memory is not None:
                # The operator's state lists ended processes, the pods say why one does not start.
                seen = {process.name: process for process in (*memory.processes, *client.processes(name))}
                memory = replace(memory, processes=tuple(seen.values()))
            return job, memory
        except ClusterError as error:
            if error.reason != "Unreachable" or time.monotonic() - since >= patience:
                raise
        time.sleep(_LOOK_SECONDS)


def _panel(job: JobView, memory: StoredState | None) -> RenderableType:
    title = f"[bold]heterps[/] · {job.namespace}/{job.name} · [bold cyan]{job.status.phase or 'no operator yet'}[/]"
    return Panel(render_top(job, memory), title=title, title_align="left", border_style="cyan")


def render_top(job: JobView, memory: StoredState | None) -> RenderableType:
    """Render a job on one screen.

    Args:
        job: the job with its status.
        memory: the operator's state of the job; None: none yet.
    """
    parts: list[RenderableType] = [render_facts(job)]
    if job.status.message:
        parts.append(Text(job.status.message))
    if memory is not None and memory.status.plan is not None:
        view = _coordinator(memory)
        parts += ["", plan_table(memory.status.plan, view)]
    if memory is not None and memory.processes:
        parts += ["", _processes(memory)]
    return Group(*parts)


def _processes(memory: StoredState) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("pod of", no_wrap=True)
    table.add_column("pool", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("units", "batch", "step", "compute", "waits"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("message", overflow="fold")
    rows = _rows(memory)
    for row in rows[:_ROWS]:
        member = row["member"]
        times = ["", "", ""]
        if member is not None and member.step_seconds:
            seconds = (member.step_seconds, member.compute_seconds, member.wait_seconds)
            times = [f"{value * 1e3:.0f} ms" for value in seconds]
        batch = str(member.batch_size) if member is not None and member.batch_size else ""
        process: ProcessView = row["process"]
        table.add_row(
            process.name, process.spec.pool or "", row["state"], str(process.spec.units or ""), batch, *times,
            Text(row["message"]),
        )  # fmt: skip
    if len(rows) > _ROWS:
        table.add_row(Text(f"and {len(rows) - _ROWS} more", style="dim"))
    return table


def _rows(memory: StoredState) -> list[dict[str, Any]]:
    """Running and failed processes, each with the coordinator's view of it."""
    view = _coordinator(memory)
    members: dict[str, MemberView] = {} if view is None else {member.name: member for member in view.members}
    rows = []
    for process in sorted(memory.processes, key=_order):
        member = members.get(process.name) if process.running else None
        if not process.running and process.exit_code == 0:
            continue
        problem = process.problem
        if problem is not None:
            state, message = "waiting", f"{problem.reason}: {problem.message}"
        elif not process.running:
            state, message = "ended", process.reason or f"exit code {process.exit_code}"
        elif process.stopping:
            state, message = "stopping", ""
        elif member is not None:
            state, message = member.state, member.message
        else:
            state, message = "running", ""
        rows.append({"process": process, "member": member, "state": state, "message": message})
    return rows


def _order(process: ProcessView) -> tuple[int, Sequence[object]]:
    """Sort key: the coordinator, servers, workers by stage and index, then others."""
    head, *numbers = process.name.split("-")
    place = {"coordinator": 0, "ps": 1, "worker": 2}.get(head, 3)
    return place, [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in numbers]


def _coordinator(memory: StoredState) -> CoordinatorView | None:
    result = memory.status.result
    return None if result is None else CoordinatorView.from_json(result)


def _document(job: JobView, memory: StoredState | None) -> dict[str, Any]:
    """The document for `--output json` and `yaml`."""
    status = job.status
    processes = [] if memory is None else _rows(memory)
    view = None if memory is None else _coordinator(memory)
    return {
        "version": 1,
        "job": job.name,
        "namespace": job.namespace,
        "phase": status.phase,
        "message": status.message,
        "progress": {"step": status.step, "totalSteps": status.total_steps, "loss": status.loss},
        "throughput": {
            "measuredSamplesPerSecond": status.samples_per_second,
            "predictedSamplesPerSecond": status.predicted_samples_per_second,
            "floorSamplesPerSecond": status.min_samples_per_second,
        },
        "plan": None if memory is None or memory.status.plan is None else dict(memory.status.plan.document),
        "stages": [] if view is None else list(view.document.get("stages") or ()),
        "bill": None if memory is None else memory.bill.to_json(),
        "processes": [
            {
                "name": row["process"].name,
                "role": row["process"].spec.role,
                "pool": row["process"].spec.pool,
                "units": row["process"].spec.units,
                "state": row["state"],
                "message": row["message"],
                "member": None if row["member"] is None else asdict(row["member"]),
            }
            for row in processes
        ],
    }
