"""A pytest plugin that records the results of a run, as pytest counts them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write how many tests passed, failed and so on")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results, also of an aborted run, unless this is a worker process."""
    file: Path | None = session.config.getoption("--results")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if file is None or hasattr(session.config, "workerinput"):
        return
    assert isinstance(reporter, TerminalReporter)
    counts = {kind: len(reporter.stats.get(kind, ())) for kind in ("passed", "failed", "error")}
    file.write_text(json.dumps({**counts, "skipped": Counter(map(_reason, reporter.stats.get("skipped", ())))}))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test, or a file of tests, was skipped, on one line."""
    assert isinstance(report.longrepr, tuple)
    return " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
