"""Commands that the runtime carries out in a child process, because the command line loads no clients of stores."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from heterps_operator.addresses import is_uri
from heterps_operator.api.manifest import load_manifest
from heterps_operator.cli.session import JOB_FILES, Programs
from heterps_operator.errors import StoreError, UsageError
from heterps_operator.local.children import guarded
from heterps_operator.local.workspace import work_directory

__all__ = ["ask_runtime", "checkpoints_of"]


def ask_runtime(programs: Programs, tool: str, options: Sequence[str], places: Sequence[str]) -> dict[str, Any]:
    """Return the answer of a tool of the runtime; its progress goes to stderr.

    Args:
        programs: the runtime.
        tool: "checkpoint" or "model".
        options: the action and its options.
        places: folders or addresses.

    Raises:
        UsageError: something is wrong with the command line.
        StoreError: the store fails, or the process ended without an answer.
    """
    command = [*programs.runtime, tool, *options, "--", *places]
    ended = subprocess.run(guarded(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    try:
        document: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise StoreError(
            f"the process that reads {tool}s ended with exit code {ended.returncode}; its messages stand above. It "
            "needs the runtime's packages: pip install 'heterps[runtime]'"
        ) from None
    if (error := document.get("error")) is not None:
        raise (UsageError if error["reason"] == "BadInput" else StoreError)(error["message"])
    return document


def checkpoints_of(arguments: Namespace) -> str:
    """Return the folder or address of the checkpoints that the command line names."""
    place: str = arguments.place
    if is_uri(place) or not place.endswith(JOB_FILES):
        if arguments.work_directory is not None:
            raise UsageError("--work-directory: is for a job file (.yaml); leave it out")
        return place
    job = load_manifest(place).job
    path: str | None = job["spec"]["checkpoint"].get("path")
    return path or str(work_directory(job["metadata"]["name"], arguments.work_directory) / "checkpoints")
