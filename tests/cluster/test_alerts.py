"""The chart's alerts, with promtool: each fires when it should, and is silent otherwise."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.building import ROOT
from tests.cluster.conftest import unbuilt
from tests.cluster.debian import missing
from tests.cluster.helm import CHART, Helm
from tests.cluster.prometheus import promtool

Json = dict[str, Any]

TESTS = Path(__file__).parent / "alerts_test.yaml"
ENABLED = "metrics.prometheusRule.enabled=true"
ALL = f"{ENABLED},metrics.prometheusRule.thresholds.namespaceCostPerHour=50"
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def rendered(helm: Helm, settings: str = ALL) -> Json:
    """Return the PrometheusRule."""
    answer = helm("template", "heterps", str(CHART), "--show-only=templates/prometheusrule.yaml", f"--set={settings}")
    assert answer.code == 0, answer.errors
    rule: Json = yaml.safe_load(answer.output)
    return rule


def alerts(rule: Json) -> list[Json]:
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


@pytest.fixture
def folder(tmp_path: Path, helm: Helm) -> Path:
    """A folder with the rules and their tests."""
    if missing():
        unbuilt("promtool is")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rendered(helm)["spec"]))
    shutil.copy(TESTS, tmp_path / "alerts_test.yaml")
    return tmp_path


def test_alerts_fire_when_they_should_and_are_silent_otherwise(folder: Path) -> None:
    answer = promtool("test", "rules", "alerts_test.yaml", folder=folder)
    assert answer.code == 0, answer.output + answer.errors


def test_every_alert_is_tested_both_ways(helm: Helm) -> None:
    cases = [case for group in yaml.safe_load(TESTS.read_text())["tests"] for case in group["alert_rule_test"]]
    names = {alert["alert"] for alert in alerts(rendered(helm))}
    assert names == {case["alertname"] for case in cases if case["exp_alerts"]}
    assert names == {case["alertname"] for case in cases if not case["exp_alerts"]}


def test_an_alert_that_never_fires_fails_the_tests(folder: Path) -> None:
    rules = yaml.safe_load((folder / "rules.yaml").read_text())
    rules["groups"][0]["rules"][0]["expr"] = "vector(1) > 2"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    answer = promtool("test", "rules", "alerts_test.yaml", folder=folder)
    assert answer.code
    assert "HeterPSThroughputBelowFloor" in answer.output + answer.errors


def test_every_alert_has_a_section_in_the_runbooks(helm: Helm) -> None:
    sections = re.findall(r"^## (HeterPS\w+)$", RUNBOOKS.read_text(), re.M)
    assert sections == [alert["alert"] for alert in alerts(rendered(helm))]
    for alert in alerts(rendered(helm, f"{ALL},metrics.prometheusRule.runbookUrl=https://wiki/x")):
        assert alert["annotations"]["runbook_url"] == f"https://wiki/x#{alert['alert'].lower()}"
    for section in RUNBOOKS.read_text().split("\n## ")[1:]:
        parts = re.findall(r"^\*\*(.+?)\*\*", section, re.M)
        assert parts == ["Meaning.", "How to look.", "What to do."], section.splitlines()[0]


def test_values_change_thresholds_and_labels(helm: Helm) -> None:
    before = alerts(rendered(helm, ENABLED))
    assert "HeterPSNamespaceCostAboveLimit" not in {alert["alert"] for alert in before}
    changed = "metrics.prometheusRule.labels.release=prometheus,metrics.prometheusRule.alertLabels.team=ml"
    thresholds = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["prometheusRule"]["thresholds"]
    others = ",".join(f"metrics.prometheusRule.thresholds.{name}={value + 7}" for name, value in thresholds.items())
    rule = rendered(helm, f"{ENABLED},{changed},{others}")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    after = {alert["alert"]: alert for alert in alerts(rule)}
    for alert in before:
        assert after[alert["alert"]]["labels"] == {**alert["labels"], "team": "ml"}
        old, new = (json.dumps([a["expr"], a.get("for")]) for a in (alert, after[alert["alert"]]))
        assert old != new, f"no threshold changes {alert['alert']}"
    critical = rendered(helm, f"{ENABLED},metrics.prometheusRule.alertLabels.severity=page")
    assert {alert["labels"]["severity"] for alert in alerts(critical)} == {"page"}


def test_there_is_no_rule_unless_it_is_wanted(helm: Helm) -> None:
    answer = helm("template", "heterps", str(CHART))
    assert answer.code == 0
    assert "PrometheusRule" not in answer.output
