"""`heterps model ACTION`: export a checkpoint's model, make a delta between two models, apply it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from heterps_operator.cli.runtime_tool import ask_runtime, checkpoints_of
from heterps_operator.cli.session import Programs
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.model_lines import render_applied, render_delta, render_export
from heterps_runtime.contract import EXIT_OK

__all__ = ["model"]


def model(arguments: Namespace, programs: Programs) -> int:
    """Carry out the action of the command line; return the exit code.

    Raises:
        HeterpsError: there is no such checkpoint, model or delta, one is damaged, or the store fails.
    """
    match arguments.action:
        case "export":
            options = [] if arguments.checkpoint is None else [f"--checkpoint={arguments.checkpoint}"]
            options, places = [*options, f"--to={arguments.to}"], [checkpoints_of(arguments)]
            render = render_export
        case "delta":
            options, places = [f"--to={arguments.to}"], [arguments.before, arguments.after]
            render = render_delta
        case _:
            options, places = [], [arguments.model, arguments.delta]
            render = render_applied
    document = ask_runtime(programs, "model", [arguments.action, *options], places)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        make_console().print(render(document))
    return EXIT_OK
