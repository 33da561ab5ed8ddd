"""The chart's dashboards are sound, and they and the alerts use series and labels that exist."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.measure.metrics import JOB_SERIES, OPERATOR_SERIES, POOL_SERIES
from heterps_runtime.coordinator.figures import JobMetrics
from heterps_runtime.wire.messages import Pulse
from tests.dashboards import Query, dashboards, panels, queries
from tests.heterps_runtime.helpers.coordinator_world import EVERY
from tests.heterps_runtime.helpers.coordinator_world import World as CoordinatorWorld

Json = dict[str, Any]

RULES = Path(__file__).parents[2] / "helm" / "heterps" / "templates" / "prometheusrule.yaml"
VARIABLES = {"ml-engineer": ["datasource", "namespace", "job"], "platform": ["datasource", "namespace"]}
GRAFANA_10 = 38  # the schemaVersion of Grafana 10.0; later ones convert it when they load it
UNITS = {"bytes", "none", "ops", "percentunit", "reqps", "s", "short"}  # of @grafana/data's valueFormats
DASHBOARDS = dashboards()


def known_series() -> dict[str, set[str]]:
    """Return the labels of every series of operator and coordinator, by the names that queries use."""
    found = {series.name: set(series.labels) for series in (*OPERATOR_SERIES, *JOB_SERIES, *POOL_SERIES)}
    for name in [name for name in found if name.endswith("_seconds")]:
        found[f"{name}_bucket"] = found[name] | {"le"}
    world = CoordinatorWorld([("cpu", 0, 2), ("card", 2, 1)]).begin()
    world.step(EVERY)
    world.save()
    assert world.core.membership.roster is not None
    world.core.membership.roster.all_workers()[0].observe_step({"forward": 0.5, "compute": 0.6})
    world.say(world.workers[0], Pulse(0, "running", {"memory": 1e9, "operations": 1e6, "round-trip": 0.1}))
    for metric in JobMetrics(world.core, world.config, lambda: world.now).collect():
        assert metric.samples, metric.name
        found[metric.name] = set(metric.samples[0].labels)
    return found


SERIES = known_series()


@pytest.mark.parametrize("name", VARIABLES)
def test_a_dashboard_is_one_that_grafana_10_loads(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["schemaVersion"] == GRAFANA_10
    assert dashboard["uid"] == f"heterps-{name}"
    assert len(dashboard["uid"]) <= 40
    assert "id" not in dashboard, "Grafana assigns it"
    variables = dashboard["templating"]["list"]
    assert [variable["name"] for variable in variables] == VARIABLES[name]
    for variable in variables[1:]:
        assert variable["datasource"]["uid"] == "${datasource}"
        assert set(re.findall(r"heterps_\w+", variable["query"])) <= set(SERIES)


def test_there_are_no_others() -> None:
    assert set(DASHBOARDS) == set(VARIABLES)
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", VARIABLES)
def test_panels_lie_side_by_side(name: str) -> None:
    every = DASHBOARDS[name]["panels"]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] >= 0 <= place["y"]
        assert place["w"] > 0 < place["h"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(every, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{one['title']} covers {other['title']}"


@pytest.mark.parametrize("name", VARIABLES)
def test_a_panel_says_what_it_shows(name: str) -> None:
    titles = [panel["title"] for panel in panels(DASHBOARDS[name])]
    assert len(set(titles)) == len(titles)
    for panel in panels(DASHBOARDS[name]):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["description"].endswith(".")
        assert defaults["unit"] in UNITS
        assert defaults["thresholds"]["steps"][0]["value"] is None
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends)
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in legends


def check_labels(expression: str, legend: str = "") -> None:
    """Check that every series exists and has the labels by which an expression chooses and groups it."""
    names = re.findall(r"\b(heterps_\w+)", expression)
    assert names
    for name in names:
        assert name in SERIES, f"{name} does not exist"
    grouped = {label for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in by.replace(",", " ").split()}
    chosen = {
        label for braces in re.findall(r"{([^}]*)}", expression) for label in re.findall(r"(\w+)\s*[=!]~?", braces)
    }
    assert grouped | chosen <= set.union(*(SERIES[name] for name in names)), expression
    for name, braces in re.findall(r"\b(heterps_\w+){([^}]*)}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]~?\"", braces)) <= SERIES[name], expression
    assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped, f"{legend}: the query drops a label"


@pytest.mark.parametrize("query", list(queries()), ids=lambda query: f"{query.dashboard}: {query.panel}")
def test_a_query_uses_series_and_labels_that_exist(query: Query) -> None:
    check_labels(query.of("ml", "flights"), query.legend)


def test_alerts_use_series_and_labels_that_exist() -> None:
    expressions = re.findall(r"^ +expr: (?:\|\n((?: {12}.*\n)+)|(.+)\n)", RULES.read_text(), re.M)
    assert len(expressions) == RULES.read_text().count("- alert: ")
    for block, line in expressions:
        check_labels(re.sub(r"{{[^}]*}}", "1", block or line))


def test_the_check_sees_wrong_names() -> None:
    for wrong in ("heterps_job_costs", 'heterps_job_cost{pool="x"}', "sum by (pool) (heterps_job_cost)"):
        with pytest.raises(AssertionError):
            check_labels(wrong)
    with pytest.raises(AssertionError, match="drops a label"):
        check_labels("sum by (namespace) (heterps_job_cost)", "{{job_name}}")


def test_the_floor_is_drawn_beside_the_throughput() -> None:
    for title in ("Throughput", "Throughput of each stage alone"):
        [panel] = [panel for panel in panels(DASHBOARDS["ml-engineer"]) if panel["title"] == title]
        assert "floor" in [target["legendFormat"] for target in panel["targets"]]
        [floor] = [o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == "floor"]
        assert {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}} in floor["properties"]
