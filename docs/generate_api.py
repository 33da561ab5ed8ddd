# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Generates the manifest reference in docs/api.md from the CRD files: `python docs/generate_api.py`.

Descriptions, defaults, bounds and rules are those that the API server enforces, so the reference cannot disagree with
it; a test compares the file with the output of this script. Text outside the marks is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heterps_operator.api.schema import Schema, load_schemas

TARGET = Path(__file__).with_name("api.md")

BEGIN, END = "<!-- begin: generated from crds/ -->\n", "<!-- end: generated from crds/ -->\n"

INTRODUCTION = """\
# Manifests

Written by `docs/generate_api.py` from the files in `crds/`; edit those. `kubectl explain heterpsjob.spec --recursive`
shows the same on a cluster.

A job file holds one HeterPSJob and the DevicePools that it names, as YAML documents divided by `---`. `heterps run`,
`heterps plan` and `heterps profile` read it on any machine, `kubectl apply -f` on a cluster; both check it against the
same schemas and rules. Differences between the two:

- Relative paths are taken from the folder of the file, which is also where Python modules are looked for, when the
  file is run on one machine. On a cluster give absolute paths of mounted volumes, or URIs.
- DevicePools belong to the whole cluster there; a job's file may leave out those that exist already.

Decimal numbers (prices, rates, options of optimizers) are written in quotes, sizes as quantities such as `10Gi`. Words
that YAML takes for true or false (`Off`, `y`) need quotes too. A field set to `null` counts as not given.
"""


def updated(text: str) -> str:
    """Return the text of docs/api.md with an updated reference."""
    parts = [INTRODUCTION]
    for kind in ("HeterPSJob", "DevicePool"):
        parts += list(_kind(load_schemas()[kind]))
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n".join(parts) + END + rest.partition(END)[2]


def _kind(schema: Schema) -> Iterator[str]:
    spec = schema.openapi["properties"]["spec"]
    yield f"## {schema.kind}\n\n{schema.openapi['description']}\n"
    yield "| Field | Value | Default | Meaning |\n|---|---|---|---|"
    yield from _rows(spec, "spec")
    rules = list(_rules(schema.openapi, ""))
    yield "\nRules:\n"
    yield from (f"- {rule}" for rule in rules)
    yield "\nStatus:\n\n| Field | Meaning |\n|---|---|"
    yield from (
        f"| `{path}` | {node['description']} |"
        for path, node in _fields(schema.openapi["properties"]["status"], "status")
    )
    yield ""


def _fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in node.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from _fields(inner, f"{path}.{name}")
        if "items" in inner:
            yield from _fields(inner["items"], f"{path}.{name}[]")


def _rows(spec: dict[str, Any], path: str) -> Iterator[str]:
    required = {f"{path}.{name}" for name in spec.get("required", ())}
    fields = list(_fields(spec, path))
    for place, node in [(path, spec), *fields]:
        required |= {f"{place}.{name}" for name in node.get("required", ())}
        required |= {f"{place}[].{name}" for name in node.get("items", {}).get("required", ())}
    for place, node in fields:
        default = "**required**" if place in required else _default(node)
        yield f"| `{place}` | {_value(node)} | {default} | {node['description']} |"


def _default(node: dict[str, Any]) -> str:
    value = node.get("default")
    return "" if value is None or value == {} else f"`{json.dumps(value)}`"


def _value(node: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{name}`" for name in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "number or string"
    if node["type"] == "integer":
        return f"{node['minimum']} to {node['maximum']}"
    return {"object": "fields", "array": "list", "boolean": "`true`, `false`", "string": "string"}[node["type"]]


def _rules(node: Mapping[str, Any], path: str) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield (f"`{path.removeprefix('.')}`: " if path else "") + rule["message"].split("; ")[0] + "."
    for name, inner in node.get("properties", {}).items():
        yield from _rules(inner, f"{path}.{name}")
    if "items" in node:
        yield from _rules(node["items"], f"{path}[]")


if __name__ == "__main__":
    TARGET.write_text(updated(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
