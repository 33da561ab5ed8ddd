"""Every field of the schemas with every kind of wrong value; tests/cluster runs the same against an API server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from heterps_operator.api.schema import load_schemas
from heterps_operator.api.structure import Structure
from heterps_operator.api.yaml_source import path_text
from tests.heterps_operator.api.mutations import FULL, LEFT_OUT, Mutation, boundaries, fields, mutations


def places(mutation: Mutation) -> list[str]:
    """Paths at which the command line reports structural faults."""
    schema = load_schemas()[mutation.manifest["kind"]]
    value = schema.with_defaults(mutation.manifest)
    return [path_text(path) for path, *_ in Structure(schema.openapi).faults(value, {})]


@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_the_full_objects_are_valid_and_have_every_field(manifest: dict[str, Any]) -> None:
    schema = load_schemas()[manifest["kind"]]
    assert schema.faults(schema.with_defaults(manifest)) == []

    def every(node: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, inner in node.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from every(inner, f"{path}.{name}")
        yield from every(node["items"], f"{path}[]") if "items" in node else ()

    present = {re.sub(r"\[\d+\]", "[]", path_text(path)) for path, *_ in fields(manifest)}
    assert set(every(schema.openapi["properties"]["spec"], "spec")) - present <= LEFT_OUT


@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_every_wrong_value_is_found_where_it_is(manifest: dict[str, Any]) -> None:
    every = list(mutations(manifest))
    assert len(every) >= (50 if manifest["kind"] == "DevicePool" else 400)
    missed = [str(mutation) for mutation in every if not any(p.startswith(mutation.field) for p in places(mutation))]
    assert missed == []


@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_the_smallest_and_largest_values_are_taken(manifest: dict[str, Any]) -> None:
    assert [str(mutation) for mutation in boundaries(manifest) if places(mutation)] == []
