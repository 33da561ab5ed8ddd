"""The table of parsers in docs/testing.md names every target, and parsers that exist."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command

_TABLE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text().partition("### What is fuzzed\n")[2]
_ROWS = re.findall(r"^\| `([a-z]+\.[a-z-]+)` \| (.*?) \| (.*?) \|$", _TABLE, re.MULTILINE)
_PARSER = re.compile(r"`(heterps_[\w.]+):([\w.]+)`")


def test_the_table_has_a_row_for_each_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert sorted(target for target, _, _ in _ROWS) == sorted(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(("target", "parsers"), [(target, parsers) for target, parsers, _ in _ROWS])
def test_a_parser_of_the_table_exists(target: str, parsers: str) -> None:
    found = _PARSER.findall(parsers)
    assert found
    for module, name in found:
        assert callable(reduce(getattr, name.split("."), importlib.import_module(module)))
