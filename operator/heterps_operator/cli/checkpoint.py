"""`heterps checkpoint ACTION WHERE`: list, verify, compare and delete a job's checkpoints."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from heterps_operator.cli.runtime_tool import ask_runtime, checkpoints_of
from heterps_operator.cli.session import Programs
from heterps_operator.terminal.checkpoint_tables import render_checkpoints, render_comparison, render_pruned
from heterps_operator.terminal.console import make_console
from heterps_runtime.contract import EXIT_FAILED, EXIT_OK

__all__ = ["checkpoint"]


def checkpoint(arguments: Namespace, programs: Programs) -> int:
    """Carry out the action of the command line; return the exit code, 1 if it verified and found damage.

    Raises:
        HeterpsError: there is no such checkpoint, or the store fails.
    """
    options = [arguments.action]
    for name in ("checkpoint", "before", "after", "keep"):
        if (value := getattr(arguments, name, None)) is not None:
            options += [f"--{name}={value}"]
    if getattr(arguments, "dry_run", False):
        options += ["--dry-run"]
    document = ask_runtime(programs, "checkpoint", options, [checkpoints_of(arguments)])
    if arguments.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        render = {"diff": render_comparison, "prune": render_pruned}.get(arguments.action, render_checkpoints)
        make_console().print(render(document))
    if arguments.action == "verify" and any(one["health"] == "Damaged" for one in document["checkpoints"]):
        return EXIT_FAILED
    return EXIT_OK
