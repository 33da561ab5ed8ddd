# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Write helm/heterps/README.md: every value of the chart, from values.yaml and its comments.

    python docs/generate_chart_readme.py

A value's comment stands behind it, or in whole lines above it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["PAGE", "Value", "render", "values"]

CHART = Path(__file__).parents[1] / "helm" / "heterps"
PAGE = CHART / "README.md"
_COMMENT = re.compile(r"(?:^|\s)# ?(.*)$")
_LONGEST = 60  # characters of a default; longer ones are in values.yaml

_HEAD = """# The chart of the HeterPS operator

```
helm install heterps helm/heterps --namespace heterps-system --create-namespace
```

[install.md](../../docs/install.md) explains rights, namespaces, two replicas and access to jobs. Every value is
validated against `values.schema.json`: a misspelt one is an error. `python docs/generate_chart_readme.py` writes this
page from `values.yaml`.

| value | default | meaning |
|---|---|---|
"""


@dataclass(frozen=True)
class Value:
    """A value of the chart.

    Attributes:
        path: with dots.
        default: as JSON; empty: it has fields, which follow.
        meaning: its comment.
    """

    path: str
    default: str
    meaning: str


def values(text: str) -> list[Value]:
    """Return the values in values.yaml, with their comments."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, text.splitlines(), ""))


def _values(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style and bool(value.value)
        meaning = _comment_of(key.start_mark.line, lines)
        if not nested:
            yield Value(path, json.dumps(yaml.safe_load(yaml.serialize(value))), meaning)
            continue
        if meaning:
            yield Value(path, "", meaning)
        yield from _values(value, lines, f"{path}.")


def _comment_of(line: int, lines: list[str]) -> str:
    """Return the comment behind a line, or else the whole lines above it."""
    if found := _COMMENT.search(lines[line]):
        return found[1]
    above: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].lstrip("# "))
    return " ".join(above)


def render() -> str:
    """Return the page."""
    rows = []
    for value in values((CHART / "values.yaml").read_text()):
        default = f"`{value.default}`" if value.default else ""
        if len(default) > _LONGEST:
            default = "see `values.yaml`"
        rows.append(f"| `{value.path}` | {default} | {value.meaning.replace('|', chr(92) + '|')} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(render())
