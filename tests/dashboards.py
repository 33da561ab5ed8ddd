"""The chart's Grafana dashboards: panels and queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "helm" / "heterps" / "dashboards"


@dataclass(frozen=True)
class Query:
    """A query of a panel."""

    dashboard: str
    panel: str
    legend: str
    expression: str  # with Grafana's variables

    def of(self, namespace: str, job: str, interval: str = "1m") -> str:
        """The query that Grafana sends when these are chosen."""
        values = {"$namespace": namespace, "$job": job, "$__rate_interval": interval}
        text = self.expression
        for variable, value in values.items():
            text = text.replace(variable, value)
        assert "$" not in text, f"{self.dashboard}: {self.panel} uses an unknown variable: {text}"
        return text


def dashboards() -> dict[str, Json]:
    """Return the dashboards by the names of their files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: Json) -> list[Json]:
    """Return the panels that show something: all but rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    """Yield the queries of all panels."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield Query(name, panel["title"], target["legendFormat"], target["expr"])
