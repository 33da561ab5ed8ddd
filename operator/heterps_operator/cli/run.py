"""`heterps run JOB`: train on this machine with the control loop that clusters use."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace

from heterps_operator.cli.session import Programs, Session, drive, open_session
from heterps_operator.documents import Json
from heterps_operator.errors import WorkspaceError
from heterps_operator.local.workspace import fingerprints
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Phase, Status
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.display import Display, make_display
from heterps_operator.terminal.report import build_report, render_report

__all__ = ["run"]


def run(arguments: Namespace, programs: Programs) -> int:
    """Run the job of the command line; return the exit code."""
    machine = arguments.output == "json"
    # A program reads stdout, so messages go to stderr.
    console = make_console(stderr=machine)
    display = make_display(console, quiet=arguments.quiet, verbose=arguments.verbose)
    session = open_session(arguments.job, arguments.work_directory, programs)
    with session.workspace.locked():
        report = _run(session, display, arguments)
    if machine:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    if not arguments.quiet or report["failure"] is not None:
        (make_console(stderr=True) if arguments.quiet else console).print(render_report(report, arguments.job))
    code: int = report["exitCode"]
    return code


def _run(session: Session, display: Display, arguments: Namespace) -> Json:
    workspace, logs = session.workspace, str(session.workspace.path / "logs")
    prints = fingerprints(session.configuration)
    if arguments.fresh:
        workspace.clear(session.checkpoints)
    status, bill = _earlier(session, display, prints)
    if status.phase == Phase.SUCCEEDED:
        display.say(f"{session.job.name} is already trained; to start over: heterps run {session.path} --fresh")
        return build_report(session.job, status, bill, interrupted=False, logs=logs)
    profiles = {} if arguments.refresh_profile else session.cached_profiles()
    if arguments.refresh_profile:
        status = status.without_plan("the layers are measured again (--refresh-profile)")
    if profiles and status.plan is None:
        names = ", ".join(sorted(profiles))
        display.say(f"profile of {names}: taken from an earlier run; --refresh-profile measures again")
    driven = drive(
        session,
        display,
        profiles=profiles,
        status=status,
        bill=bill,
        save=lambda status, bill: workspace.save(status, bill, prints),
        port=arguments.port,
    )
    return build_report(session.job, driven.status, driven.bill, interrupted=driven.interrupted, logs=logs)


def _earlier(session: Session, display: Display, prints: Json) -> tuple[Status, Bill]:
    """Return the status and bill to resume from.

    Raises:
        WorkspaceError: the earlier run trained a different model.
    """
    loaded = session.workspace.load()
    if loaded is None:
        return Status(), Bill()
    status, bill, old = loaded
    step = int((status.result or {}).get("committedSteps") or 0)
    if old.get("training") != prints["training"]:
        if step:
            raise WorkspaceError(
                f"{session.workspace.path}: an earlier run trained with a different model, data or training section "
                f"up to step {step}; start over with --fresh, restore the manifest, or choose another --work-directory"
            )
        return Status(), bill
    if status.phase == Phase.SUCCEEDED:
        return status, bill
    now = status.phase_since  # the loop's first turn sets the times of this run
    again = replace(status.begin_again(now), started=None)
    if old.get("planning") != prints["planning"]:
        why = "pools, objective or scheduling have changed"
        if status.plan is not None:
            display.say(f"{why}: replanning")
        again = again.without_plan(why)
    display.say(f"resuming an earlier run ({status.phase}, step {step})")
    return again, bill
