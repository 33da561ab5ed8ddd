"""The operator's log as text and as JSON."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from heterps_operator.cli.log_format import log_to_stderr

Json = dict[str, Any]
Stderr = Callable[[], str]  # what was written since the last call


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Stderr]:
    """What is written to stderr; the settings of logging are restored after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("kopf", "urllib3", "aiohttp", "asyncio")}
    root.handlers[:] = []  # `force` closes those that it finds
    yield lambda: capsys.readouterr().err
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def lines(stderr: Stderr) -> list[Json]:
    return [json.loads(line) for line in stderr().splitlines()]


def test_a_record_is_one_line_of_json(stderr: Stderr) -> None:
    log_to_stderr("json", verbose=False)
    before = datetime.now(UTC).replace(microsecond=0)
    logging.getLogger("heterps.operator").warning('two\nlines of "%s"', "text")
    [line] = lines(stderr)
    assert before <= datetime.fromisoformat(line.pop("ts").replace("Z", "+00:00")) <= datetime.now(UTC)
    assert line == {"level": "WARNING", "logger": "heterps.operator", "message": 'two\nlines of "text"'}


def test_a_traceback_is_one_field(stderr: Stderr) -> None:
    log_to_stderr("json", verbose=False)
    try:
        raise ValueError("s3://KEY:SECRET@bucket/c")
    except ValueError:
        logging.getLogger("heterps.operator").exception("the turn failed")
    text = stderr()
    line = json.loads(text)
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith("ValueError: s3://***@bucket/c")
    assert "SECRET" not in text


def test_the_job_or_pool_of_a_record_is_told(stderr: Stderr) -> None:
    log_to_stderr("json", verbose=False)
    log = logging.getLogger("heterps.operator")
    for kind in ("HeterPSJob", "DevicePool", "Pod"):
        log.info("x", extra={"k8s_ref": {"kind": kind, "namespace": "ml", "name": "a"}})
    log.info("x")
    found = [{key: line[key] for key in ("namespace", "job", "pool") if key in line} for line in lines(stderr)]
    assert found == [{"namespace": "ml", "job": "a"}, {"namespace": "ml", "pool": "a"}, {"namespace": "ml"}, {}]


def test_warnings_are_lines_of_the_log(stderr: Stderr) -> None:
    log_to_stderr("json", verbose=False)
    warnings.showwarning("old", DeprecationWarning, "x.py", 1)
    [line] = lines(stderr)
    assert (line["logger"], "DeprecationWarning: old" in line["message"]) == ("py.warnings", True)


def test_text_is_for_people(stderr: Stderr) -> None:
    log_to_stderr("text", verbose=False)
    logging.getLogger("heterps.operator").info("active: %s", "all namespaces")
    assert stderr().endswith(" INFO heterps.operator: active: all namespaces\n")
