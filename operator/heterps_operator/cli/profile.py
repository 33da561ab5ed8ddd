"""`heterps profile JOB`: measure the model's layers on every pool, and write a planning problem."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from heterps_operator.cli.session import Driven, Programs, Session, drive, open_session
from heterps_operator.control.problem import build_problem
from heterps_operator.control.profiles import profile_warnings
from heterps_operator.documents import Json
from heterps_operator.errors import UsageError
from heterps_operator.state.status import Phase
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.display import Display, make_display
from heterps_operator.terminal.refusal import write_refusal
from heterps_operator.terminal.report import exit_code, render_failure
from heterps_planner.scenarios.variants import EXCHANGES, PRECISIONS
from heterps_runtime.contract import EXIT_OK

__all__ = ["measure", "profile"]


def profile(arguments: Namespace, programs: Programs) -> int:
    """Measure the pools of the command line's job; return the exit code."""
    machine = arguments.output == "json"
    console = make_console(stderr=machine)
    display = make_display(console, quiet=arguments.quiet, verbose=arguments.verbose)
    target = None if arguments.to is None else _writable(arguments.to)
    session = open_session(arguments.job, arguments.work_directory, programs, goal="profile")
    with session.workspace.locked():
        problem, code = measure(session, display, refresh=not arguments.cached, machine=machine)
    if problem is None:
        return code
    text = json.dumps(problem, indent=2) + "\n"
    if target is not None:
        target.write_text(text, encoding="utf-8")
        display.say(f"problem written to {target}; plan it with: heterps plan --problem {target}")
    if machine:
        sys.stdout.write(text)
    elif not arguments.quiet:
        console.print(render_profile(problem))
    return EXIT_OK


def measure(session: Session, display: Display, *, refresh: bool, machine: bool) -> tuple[dict[str, Any] | None, int]:
    """Measure pools that have no profile from an earlier run, and merge the profiles.

    Args:
        session: opened with the goal "profile"; its lock must be held.
        display: shows progress.
        refresh: measure every pool again.
        machine: whether a program reads stdout, so that failures are reported there.

    Returns:
        The planning problem, or None; and the exit code.
    """
    known: dict[str, Any] = {} if refresh else session.cached_profiles()
    if known:
        names = ", ".join(sorted(known))
        display.say(f"profile of {names}: taken from an earlier run (measured again with --refresh-profile)")
    profiles: dict[str, Json] = dict(known)
    if len(known) < len(session.job.pools):
        driven: Driven = drive(session, display, profiles=known)
        if driven.status.phase != Phase.PROFILED:
            failure = driven.status.failure
            code = exit_code(driven.status, driven.interrupted)
            if failure is not None:
                make_console(stderr=True).print(render_failure(failure.to_json()))
                if machine:
                    write_refusal(failure.to_json(), code)
            return None, code
        profiles = driven.profiles
    for warning in profile_warnings({pool.name: profiles[pool.name] for pool in session.job.pools}):
        display.say(f"warning: {warning}")
    return build_problem(session.job, profiles), EXIT_OK


def render_profile(problem: Json) -> RenderableType:
    """Render a problem's layers as tables: time per batch on one unit, and the share that more units reduce."""
    return Group(*(_layers(one, title) for title, one in _variants(problem, "")))


def _variants(problem: Json, title: str) -> Iterator[tuple[str, Json]]:
    """The problems of a file, with titles."""
    key = next((key for key in (PRECISIONS, EXCHANGES) if key in problem), None)
    if key is None:
        yield title, problem
        return
    for name, one in problem[key].items():
        yield from _variants(one, f"{title}{name}: ")


def _layers(problem: Json, precision: str) -> Table:
    pools = [pool["name"] for pool in problem["pools"]]
    batch = problem["batchSize"]
    table = Table(
        title=f"{precision}one batch of {batch:,} samples, forward and backward, on one unit",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("layer", overflow="fold")
    table.add_column("kind", overflow="fold")
    for pool in pools:
        for head in (f"{pool}\ncompute ms", "\nshared", "\nsend ms", "\nspread"):
            table.add_column(head, justify="right", no_wrap=True)
    for layer in problem["layers"]:
        cells = []
        for pool in pools:
            times = layer["pools"].get(pool) or {}
            cells += _cells(times) if times else ["cannot run", "", "", ""]
        table.add_row(layer["name"], layer.get("kind", ""), *cells)
    return table


def _cells(times: Json) -> list[str]:
    return [
        f"{times['computeSeconds'] * 1e3:.3f}",
        f"{times['parallelFraction']:.0%}",
        f"{times.get('transferSeconds', 0) * 1e3:.3f}",
        f"{times.get('spread', 0):.1%}",
    ]


def _writable(name: str) -> Path:
    """Return the output file; checked before minutes of measuring."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--to {name}: must be a file in a folder that exists")
    return path
