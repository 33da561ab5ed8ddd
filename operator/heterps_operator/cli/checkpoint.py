"""`heterps checkpoint ACTION WHERE`: list, verify, compare and delete a job's checkpoints.

The runtime does the work in a child process, because the command line loads no clients of stores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from typing import Any

from heterps_operator.addresses import is_uri
from heterps_operator.api.manifest import load_manifest
from heterps_operator.cli.session import JOB_FILES, Programs
from heterps_operator.errors import StoreError, UsageError
from heterps_operator.local.processes import guarded
from heterps_operator.local.workspace import work_directory
from heterps_operator.terminal.checkpoint_tables import render_checkpoints, render_comparison, render_pruned
from heterps_operator.terminal.console import make_console
from heterps_runtime.contract import EXIT_FAILED, EXIT_OK

__all__ = ["checkpoint"]


def checkpoint(arguments: Namespace, programs: Programs) -> int:
    """Carry out the action of the command line; return the exit code, 1 if it verified and found damage.

    Raises:
        HeterpsError: there is no such checkpoint, or the store fails.
    """
    document = _ask(arguments, programs)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        render = {"diff": render_comparison, "prune": render_pruned}.get(arguments.action, render_checkpoints)
        make_console().print(render(document))
    if arguments.action == "verify" and any(one["health"] == "Damaged" for one in document["checkpoints"]):
        return EXIT_FAILED
    return EXIT_OK


def _ask(arguments: Namespace, programs: Programs) -> dict[str, Any]:
    """Return the answer of the runtime; its progress goes to stderr.

    Raises:
        UsageError: something is wrong with the command line.
        StoreError: the store fails, or the process ended without an answer.
    """
    options = []
    for name in ("checkpoint", "before", "after", "keep"):
        if (value := getattr(arguments, name, None)) is not None:
            options += [f"--{name}={value}"]
    if getattr(arguments, "dry_run", False):
        options += ["--dry-run"]
    command = [*programs.runtime, "checkpoint", arguments.action, *options, "--", _address(arguments)]
    ended = subprocess.run(guarded(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    try:
        document: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise StoreError(
            f"the process that reads checkpoints ended with exit code {ended.returncode}; its messages stand above. It "
            "needs the runtime's packages: pip install 'heterps[runtime]'"
        ) from None
    if (error := document.get("error")) is not None:
        raise (UsageError if error["reason"] == "BadInput" else StoreError)(error["message"])
    return document


def _address(arguments: Namespace) -> str:
    """Return the folder or address of the checkpoints that the command line names."""
    place: str = arguments.place
    if is_uri(place) or not place.endswith(JOB_FILES):
        if arguments.work_directory is not None:
            raise UsageError("--work-directory: is for a job file (.yaml); leave it out")
        return place
    job = load_manifest(place).job
    path: str | None = job["spec"]["checkpoint"].get("path")
    return path or str(work_directory(job["metadata"]["name"], arguments.work_directory) / "checkpoints")
