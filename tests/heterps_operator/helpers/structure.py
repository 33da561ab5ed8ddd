"""Checks documents against the API's published structure, using the models generated from it."""

from __future__ import annotations

import re
from typing import Any

import kubernetes.client

_LIST = re.compile(r"List\[(.+)\]")
_MAP = re.compile(r"Dict\[str, (.+)\]")


def check(document: dict[str, Any]) -> None:
    """Fail if a field is unknown, has the wrong type, or is required and missing."""
    model = f"V1{document['kind']}"
    getattr(kubernetes.client, model).model_validate(document)
    unknown = _unknown(document, model, document["kind"])
    assert not unknown, f"unknown fields: {', '.join(unknown)}"


def _unknown(value: Any, kind: str, path: str) -> list[str]:
    """Yield the paths of fields unknown to the model."""
    if match := _LIST.fullmatch(kind):
        return [fault for i, item in enumerate(value) for fault in _unknown(item, match[1], f"{path}[{i}]")]
    if match := _MAP.fullmatch(kind):
        return [fault for key, item in value.items() for fault in _unknown(item, match[1], f"{path}.{key}")]
    model = getattr(kubernetes.client, kind, None)
    if model is None:
        return []
    kinds = {model.attribute_map[field]: kind for field, kind in model.openapi_types.items()}
    faults = []
    for key, item in value.items():
        faults += _unknown(item, kinds[key], f"{path}.{key}") if key in kinds else [f"{path}.{key}"]
    return faults
