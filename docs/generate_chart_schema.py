# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Write the schema of `pools` into helm/heterps/values.schema.json: that of a DevicePool's spec, from its CRD.

    python docs/generate_chart_schema.py

Helm knows no CEL: the operator checks the rules.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml

__all__ = ["SCHEMA", "render"]

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "helm" / "heterps" / "values.schema.json"
_CRD = ROOT / "crds" / "heterps.io_devicepools.yaml"
_PLACE = '    "devicePool": '
_KEPT = frozenset({
    "type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties",
})  # fmt: skip


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a structural schema as JSON Schema has it: without defaults and descriptions, closed."""
    found = {key: value for key, value in schema.items() if key in _KEPT}
    if "properties" in schema:
        found["additionalProperties"] = False
        found["properties"] = {name: _plain(inner) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = _plain(schema[key])
    return found


def render() -> str:
    """Return the schema of the values."""
    [version] = yaml.safe_load(_CRD.read_text())["spec"]["versions"]
    spec = _plain(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    text = SCHEMA.read_text()
    start = text.index(_PLACE) + len(_PLACE)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[:start] + textwrap.indent(json.dumps(spec, indent=2), "    ").lstrip() + text[end:]


if __name__ == "__main__":
    SCHEMA.write_text(render())
