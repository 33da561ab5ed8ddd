"""The chart's dashboards: their ConfigMaps, and their queries as Prometheus parses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.conftest import unbuilt
from tests.cluster.debian import missing
from tests.cluster.helm import CHART, Helm
from tests.cluster.prometheus import promtool
from tests.dashboards import dashboards, queries

ENABLED = "metrics.dashboards.enabled=true"


def config_maps(helm: Helm, *settings: str) -> list[dict[str, Any]]:
    """Return the ConfigMaps that the chart makes of the dashboards."""
    answer = helm("template", "heterps", str(CHART), *(f"--set-json={setting}" for setting in settings))
    assert answer.code == 0, answer.errors
    return [item for item in yaml.safe_load_all(answer.output) if item and item["kind"] == "ConfigMap"]


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    if missing():
        unbuilt("promtool is")
    rules = [{"record": f"panel:{n}", "expr": query.of("ml", "flights")} for n, query in enumerate(queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    answer = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert answer.code == 0, answer.output + answer.errors
    assert f"SUCCESS: {len(rules)} rules found" in answer.output


def test_each_dashboard_is_a_config_map_for_grafana_s_sidecar(helm: Helm) -> None:
    assert config_maps(helm) == []
    found = {item["metadata"]["name"]: item for item in config_maps(helm, ENABLED)}
    assert set(found) == {f"heterps-{name}" for name in dashboards()}
    for name, dashboard in dashboards().items():
        item = found[f"heterps-{name}"]
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "HeterPS"}
        assert {key: json.loads(text) for key, text in item["data"].items()} == {f"heterps-{name}.json": dashboard}


def test_values_change_labels_and_folder(helm: Helm) -> None:
    labels, folder = 'metrics.dashboards.labels={"team":"ml"}', 'metrics.dashboards.annotations={"folder":"ML"}'
    for item in config_maps(helm, ENABLED, labels, folder):
        assert item["metadata"]["labels"]["team"] == "ml"
        assert item["metadata"]["annotations"] == {"folder": "ML", "grafana_folder": "HeterPS"}
