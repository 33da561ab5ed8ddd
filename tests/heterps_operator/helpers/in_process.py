"""The runtime's tools without processes of their own, which cost half a second of imports each."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from heterps_operator.local.children import guarded
from heterps_operator.local.processes import RUNTIME_COMMAND
from heterps_runtime.__main__ import main


def run_tools_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `heterps checkpoint` and `heterps model` call the runtime's program; other programs remain processes."""
    program = guarded(RUNTIME_COMMAND)

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        if command[: len(program)] != program:
            return subprocess.run(command, **options)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(command[len(program) :])
        return subprocess.CompletedProcess(command, code, out.getvalue().encode())

    replacement = SimpleNamespace(run=run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("heterps_operator.cli.runtime_tool.subprocess", replacement)
