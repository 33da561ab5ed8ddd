"""The CRD files themselves: descriptions for users, and limits that protect an API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.api import cel
from heterps_operator.api.defaults import DENSE_OPTIONS, SPARSE_OPTIONS
from heterps_operator.api.schema import crd_folder, load_schemas

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "crds").glob("*.yaml"))
# Every process reads them when it collects tests: libyaml takes an eighth of the time.
CRDS = {file.name: yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in FILES}


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


ALL = [(f"{name}:{path}", node) for name, crd in CRDS.items() for path, node in nodes(schema_of(crd), "")]
OURS = [(path, node) for path, node in ALL if not path.endswith(":.metadata")]
SPEC = [(path, node) for path, node in ALL if ":.spec" in path]


def test_there_is_one_file_for_each_kind() -> None:
    assert {crd["spec"]["names"]["kind"] for crd in CRDS.values()} == {"HeterPSJob", "HeterPSJobState", "DevicePool"}
    for name, crd in CRDS.items():
        assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
        assert name == f"heterps.io_{crd['spec']['names']['plural']}.yaml"


def test_every_field_has_a_description() -> None:
    missing = [path for path, node in OURS if not node.get("description", "").strip().endswith(".")]
    assert missing == []


def test_every_string_is_bounded() -> None:
    unbounded = [
        path
        for path, node in OURS
        if (node.get("type") == "string" or node.get("x-kubernetes-int-or-string"))
        and not ("maxLength" in node or "enum" in node or node.get("format") == "date-time")
        and not re.search(r":\.(apiVersion|kind)$", path)
    ]
    assert unbounded == []


def test_every_list_and_map_is_bounded() -> None:
    lists = [path for path, node in OURS if node.get("type") == "array" and "maxItems" not in node]
    maps = [path for path, node in OURS if "additionalProperties" in node and "maxProperties" not in node]
    assert lists == []
    assert maps == []


def test_every_number_is_bounded_and_none_is_a_float() -> None:
    assert [path for path, node in ALL if node.get("type") == "number"] == []
    numbers = [(path, node) for path, node in SPEC if node.get("type") == "integer"]
    assert len(numbers) >= 20
    assert [path for path, node in numbers if "minimum" not in node or "maximum" not in node] == []


def test_every_list_says_how_it_merges() -> None:
    lists = [(path, node) for path, node in ALL if node.get("type") == "array"]
    assert [path for path, node in lists if "x-kubernetes-list-type" not in node] == []
    for path, node in lists:
        for key in node.get("x-kubernetes-list-map-keys", []):
            assert key in node["items"]["required"], path


def test_unchecked_fields_are_only_those_of_pod_templates_and_the_users_own_arguments() -> None:
    unchecked = [path for path, node in ALL if node.get("x-kubernetes-preserve-unknown-fields")]
    assert unchecked
    template = r"\.(podTemplates\.(all|coordinator|parameterServer|worker|profiler)|podTemplate)\.(metadata|spec)$"
    for path in unchecked:
        assert re.search(template, path) or path.endswith(".spec.model.arguments{}"), path


def test_every_default_is_valid_by_itself() -> None:
    defaults = [(path, node) for path, node in SPEC if "default" in node]
    assert len(defaults) >= 40
    for path, node in defaults:
        value = node["default"]
        if "enum" in node:
            assert value in node["enum"], path
        if node.get("type") == "integer":
            assert node["minimum"] <= value <= node["maximum"], path
        if isinstance(value, dict):
            assert set(value) <= set(node.get("properties", value)), path


def test_the_number_of_servers_has_no_default_because_the_planner_decides_it() -> None:
    servers = load_schemas()["HeterPSJob"].openapi["properties"]["spec"]["properties"]["parameterServer"]["properties"]
    assert "default" not in servers["replicas"]
    assert servers["replicas"]["minimum"] == 1


def test_rules_hold_on_defaults_as_they_are_written() -> None:
    """An API server evaluates them on the raw file, before it fills in nested defaults."""
    defaults = [(path, node) for path, node in SPEC if "default" in node and "x-kubernetes-validations" in node]
    assert len(defaults) >= 8
    for path, node in defaults:
        for rule in node["x-kubernetes-validations"]:
            assert cel.holds(rule["rule"], node["default"], node["default"]), (path, rule["rule"])


def test_every_pattern_comes_with_an_example_that_matches_it() -> None:
    patterns = [(path, node) for path, node in ALL if "pattern" in node and not path.endswith("[]")]
    assert len(patterns) >= 20
    for path, node in patterns:
        assert re.search(node["pattern"], str(node["example"])), path


def test_every_example_is_allowed() -> None:
    for path, node in ALL:
        if "example" in node:
            assert "enum" not in node or node["example"] in node["enum"], path
            if node.get("type") == "integer":
                assert node["minimum"] <= node["example"] <= node["maximum"], path


def test_every_rule_says_what_must_hold_and_what_to_do() -> None:
    rules = [(path, rule) for path, node in ALL for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) >= 50
    for path, rule in rules:
        assert rule["message"].count("; ") == 1, (path, rule["message"])
        assert "\n" not in rule["message"]


@pytest.mark.parametrize("name", ["heterps.io_heterpsjobs.yaml", "heterps.io_devicepools.yaml"])
def test_the_kind_has_a_status_subresource_conditions_and_columns(name: str) -> None:
    crd = CRDS[name]
    version = crd["spec"]["versions"][0]
    conditions = schema_of(crd)["properties"]["status"]["properties"]["conditions"]
    assert version["name"] == "v1alpha1"
    assert version["subresources"]["status"] == {}
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert crd["spec"]["names"]["categories"] == ["all"]
    for column in version["additionalPrinterColumns"]:
        node = schema_of(crd)
        if column["name"] != "Age":
            for step in column["jsonPath"].split(".")[1:]:
                node = node["properties"][step]
            assert node["type"] == column["type"], column["name"]


def test_an_autoscaler_finds_numbers_where_the_scale_subresource_looks() -> None:
    crd = CRDS["heterps.io_heterpsjobs.yaml"]
    scale = crd["spec"]["versions"][0]["subresources"]["scale"]
    for key, kind in (
        ("specReplicasPath", "integer"),
        ("statusReplicasPath", "integer"),
        ("labelSelectorPath", "string"),
    ):
        node = schema_of(crd)
        for step in scale[key].split(".")[1:]:
            node = node["properties"][step]
        assert node["type"] == kind, key
    workers = schema_of(crd)["properties"]["spec"]["properties"]["elasticity"]["properties"]["workers"]
    assert workers["default"] == 0  # an autoscaler ignores objects with 0 replicas


def test_the_job_has_the_columns_and_short_names_of_the_reference() -> None:
    crd = CRDS["heterps.io_heterpsjobs.yaml"]
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if "priority" not in column]
    assert shown == ["State", "Workers", "PS", "Throughput", "Cost/h", "Plan", "Age"]
    assert crd["spec"]["names"]["shortNames"] == ["hpsj"]
    assert crd["spec"]["scope"] == "Namespaced"
    assert CRDS["heterps.io_devicepools.yaml"]["spec"]["names"]["shortNames"] == ["dpool"]
    assert CRDS["heterps.io_devicepools.yaml"]["spec"]["scope"] == "Cluster"


@pytest.mark.parametrize(("kind", "options"), [("dense", DENSE_OPTIONS), ("sparse", SPARSE_OPTIONS)])
def test_options_of_optimizers_are_those_of_the_schema(kind: str, options: dict[str, dict[str, str]]) -> None:
    training = schema_of(CRDS["heterps.io_heterpsjobs.yaml"])["properties"]["spec"]["properties"]["training"]
    node = training["properties"]["optimizer"]["properties"][kind]
    assert set(options) == set(node["properties"]["name"]["enum"])
    assert {name for option in options.values() for name in option} == set(node["properties"]) - {"name"}
    for optimizer, values in options.items():
        for name, value in values.items():
            description = node["properties"][name]["description"]
            assert f'"{value}"' in description, (optimizer, name)
            assert re.search(node["properties"][name]["pattern"], value)


def test_the_files_are_found_in_a_checkout() -> None:
    assert {file.name for file in crd_folder().iterdir()} == {file.name for file in FILES}
    assert set(load_schemas()) == {"HeterPSJob", "DevicePool"}
