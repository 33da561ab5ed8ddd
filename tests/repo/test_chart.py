"""The chart agrees with the rest of the repository. tests/cluster renders it with Helm."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from tests.repo.scripts import load_script

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "heterps"


def test_the_chart_installs_the_custom_resources_of_the_repository() -> None:
    """A link, whose content Helm packs: a copy would become stale."""
    assert (CHART / "files" / "crds").resolve() == ROOT / "crds"
    assert len(list((CHART / "files" / "crds").glob("*.yaml"))) == 3


def test_an_annotation_finds_its_place_in_every_custom_resource() -> None:
    """The template puts `helm.sh/resource-policy` below the only unindented `metadata:`."""
    for path in (CHART / "files" / "crds").glob("*.yaml"):
        assert path.read_text().count("\nmetadata:\n") == 1
        assert "annotations" not in yaml.safe_load(path.read_text())["metadata"]


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def keys(values: Any, schema: Any, where: str = "") -> list[str]:
    """Return every value with a fixed set of fields, and fields that only one of the two files knows."""
    if "properties" not in schema or not isinstance(values, dict):
        return []
    assert schema["additionalProperties"] is False, f"{where or 'values'} takes misspelt fields"
    known = set(schema["properties"]) - {"global", "claims"}
    optional = {"requests", "limits"}
    different = [f"{where}{name}" for name in sorted((known ^ set(values)) - optional)]
    for name in known & set(values):
        different += keys(values[name], schema["properties"][name], f"{where}{name}.")
    return different


def test_every_value_has_a_default_and_a_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert keys(values, schema) == []


def test_pools_of_the_chart_have_the_schema_of_a_device_pool() -> None:
    script = load_script("generate_chart_schema")
    assert script.SCHEMA.read_text() == script.render(), "run `python docs/generate_chart_schema.py`"
    schema = json.loads(script.render())["definitions"]["devicePool"]
    Draft7Validator.check_schema(schema)
    pool = {"deviceType": "CPU", "maxUnits": 4, "pricePerUnitHour": "0.04", "tolerations": [{"operator": "Exists"}]}
    wrong = {"maxUnits": 0, "deviceType": "TPU", "pricePerUnitHour": 1, "taints": [], "tolerations": [{"keys": "a"}]}
    assert [*Draft7Validator(schema).iter_errors(pool)] == []
    for name, value in wrong.items():
        assert len([*Draft7Validator(schema).iter_errors({**pool, name: value})]) == 1, name


def test_every_value_is_documented() -> None:
    readme = load_script("generate_chart_readme")
    assert readme.PAGE.read_text() == readme.render(), "run `python docs/generate_chart_readme.py`"
    values = readme.values((CHART / "values.yaml").read_text())
    # The fields of security contexts are Kubernetes' own.
    assert [value.path for value in values if not value.meaning and "ecurityContext." not in value.path] == []


def test_the_comment_of_a_value_stands_behind_it_or_above_it() -> None:
    text = "# Above,\n# in two lines.\na:\n  b: 1 # behind\n  c: {d: '#e'}\n"
    values = load_script("generate_chart_readme").values(text)
    assert [(value.path, value.default, value.meaning) for value in values] == [
        ("a", "", "Above, in two lines."),
        ("a.b", "1", "behind"),
        ("a.c", '{"d": "#e"}', ""),
    ]


def test_no_rule_says_everything() -> None:
    for path in (CHART / "templates").glob("*"):
        assert not re.search(r"""["']\*["']|\[\*\]""", path.read_text()), path.name
