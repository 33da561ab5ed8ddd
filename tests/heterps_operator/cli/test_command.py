"""The start of the command."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_runtime.contract import EXIT_INTERRUPTED


class Interrupted(ModuleType):
    """A module during whose import Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_ends_the_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "heterps_operator.cli.command", Interrupted("heterps_operator.cli.command"))
    assert main(["run", "job.yaml"]) == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "")
