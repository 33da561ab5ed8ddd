"""Structural schemas as JSON Schema, with errors that name the fix.

jsonschema checks types, bounds, lengths and enumerations. This module adds what an API server does differently (unknown
fields, int-or-string, lists that are sets or maps, Go's regular expressions) and turns each error into a path, a value,
what must hold, and a fix.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from heterps_operator.api.yaml_source import Path, path_text
from heterps_operator.errors import MISSING

__all__ = ["OBJECT_META", "Structure"]

_TEXTS = {
    "type": "object",
    "maxProperties": 256,
    "additionalProperties": {"type": "string", "maxLength": 262144},
}
# The metadata fields that users write, and those that `kubectl get -o yaml` adds. Names are DNS-1123 subdomains:
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
OBJECT_META: Mapping[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 253,
            "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            "description": "Name of the object: a-z, 0-9, '-' and '.', beginning and ending with a letter or digit.",
            "example": "flights",
        },
        "namespace": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "example": "default",
        },
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "managedFields": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "generateName": {"type": "string"},
        "uid": {"type": "string"},
        "resourceVersion": {"type": "string"},
        "generation": {"type": "integer"},
        "creationTimestamp": {"type": "string"},
        "deletionTimestamp": {"type": "string"},
        "deletionGracePeriodSeconds": {"type": "integer"},
        "selfLink": {"type": "string"},
    },
}

_Found = tuple[Path, object, str, str]  # path, value, message, fix
_NOUNS = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
    "object": "a mapping of fields",
    "array": "a list",
}
_MOST_NAMES = 20  # names listed in a fix


class Structure:
    """A structural schema, prepared for checks.

    Args:
        openapi: the schema of the whole object.
    """

    def __init__(self, openapi: Mapping[str, Any]) -> None:
        self._openapi = openapi
        self._validator = _Validator(_adapted(copy.deepcopy(dict(openapi))))

    def faults(self, value: Any, texts: Mapping[Path, str]) -> Iterator[_Found]:
        """Check an object.

        Args:
            value: the object, with defaults.
            texts: scalars as written in the file, where that differs from their value.

        Yields:
            Path, value, what must hold, and what to do.
        """
        errors = list(self._validator.iter_errors(value))
        mistyped = {tuple(error.absolute_path) for error in errors if error.validator == "type"}
        for error in errors:
            path = tuple(error.absolute_path)
            if path in mistyped and error.validator == "enum":
                continue  # the type error says enough
            schema = error.schema
            assert isinstance(schema, dict)
            if error.validator == "required":
                inner = schema["properties"][path[-1]]
                yield path, MISSING, "is required", _add(str(path[-1]), inner)
            elif error.validator == "additionalProperties":
                yield path, error.instance[path[-1]], "is not a field", self._suggest(schema, str(path[-1]))
            elif error.validator == "x-kubernetes-list-type":
                yield path, MISSING, error.message, "remove or rename one of the two"
            else:
                yield path, _shown(error.instance), *_bound(error, schema, texts.get(path))

    def _suggest(self, schema: Mapping[str, Any], name: str) -> str:
        """Suggest the place of a misplaced field."""
        names = [*schema.get("properties", {})]
        near = _nearest(name, names)
        if near:
            return f"did you mean {near}?"
        place = self._places.get(_plain(name))
        if place is not None:
            return f"did you mean {path_text(place)}?"
        if not names:
            return "remove it, nothing can be set here"
        rest = ", ..." if len(names) > _MOST_NAMES else ""
        return f"remove it, or use one of {', '.join(names[:_MOST_NAMES])}{rest}"

    @cached_property
    def _places(self) -> Mapping[str, Path]:
        """The outermost field of each name that users set."""
        found: dict[str, Path] = {}
        for place in _places(self._openapi, ()):
            if place[0] != "status":
                found.setdefault(_plain(str(place[-1])), place)
        return found


def _bound(error: ValidationError, schema: dict[str, Any], text: str | None) -> tuple[str, str]:
    """Message and fix for a present value that violates its schema."""
    limit: Any = error.validator_value
    match error.validator:
        case "type":
            return _wrong_type(limit, error.instance, schema, text)
        case "enum":
            names = [str(name) for name in limit]
            near = _nearest(str(error.instance), names)
            hint = f"did you mean {near}?" if near else f"choose {'one of them' if len(names) > 1 else 'it'}"
            return f"must be one of {', '.join(names)}", hint
        case "minimum":
            return f"must be at least {limit}", _example(schema, f"give a number from {limit}{_upper(schema)}")
        case "maximum":
            lower = schema.get("minimum")
            return f"must be at most {limit}", f"give a number {'up' if lower is None else f'from {lower}'} to {limit}"
        case "minLength":
            return "must not be empty", _example(schema, "give a value, or remove the field")
        case "maxLength":
            return f"must have at most {limit} characters", "shorten it"
        case "minItems":
            return f"must have at least {limit} item{'s' if limit > 1 else ''}", "add one"
        case "maxItems" | "maxProperties":
            return f"must have at most {limit} items", "shorten it"
        case "pattern":
            meaning = schema.get("description", "")
            example = json.dumps(schema["example"]) if "example" in schema else f"text that matches {limit}"
            return f"must be like {example}", f"correct it ({meaning.rstrip('.')})" if meaning else "correct it"
    raise AssertionError(f"crds/ use {error.validator}, which has no message yet")


def _wrong_type(types: list[str], value: Any, schema: dict[str, Any], text: str | None) -> tuple[str, str]:
    message = "must be " + " or ".join(_NOUNS[name] for name in types if name != "null")
    if "string" in types and isinstance(value, bool | int | float):
        written = text if text is not None else json.dumps(value)
        reason = f"YAML reads {written} as {json.dumps(value)}, " if isinstance(value, bool) else ""
        return message, f'{reason}write it in quotes: "{written}"'
    if "integer" in types and isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return message, f"write it without quotes: {value.strip()}"
    if "boolean" in types and str(value).lower() in ("true", "false"):
        return message, f"write it without quotes: {str(value).lower()}"
    return message, _example(schema, "see its description in docs/api.md")


def _places(schema: Mapping[str, Any], path: Path) -> Iterator[Path]:
    """Paths of all fields, outer ones first."""
    properties = schema.get("properties", {})
    for name in properties:
        yield (*path, name)
    for name, inner in properties.items():
        yield from _places(inner, (*path, name))
    if "items" in schema:
        yield from _places(schema["items"], (*path, 0))


def _nearest(name: str, names: Sequence[str]) -> str | None:
    by_plain = {_plain(candidate): candidate for candidate in names}
    found = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.7)
    return by_plain[found[0]] if found else None


def _plain(name: str) -> str:
    """A name without capitals, dashes and underscores, which are easily confused."""
    return name.lower().replace("_", "").replace("-", "")


def _add(name: str, schema: Mapping[str, Any]) -> str:
    if "example" in schema:
        return f"add it, for example {name}: {json.dumps(schema['example'])}"
    if "items" in schema and schema["items"].get("required"):
        inner = schema["items"]
        fields = {key: inner["properties"][key].get("example", "...") for key in inner["required"]}
        return f"add it, for example {name}: [{_flow(fields)}]"
    if schema.get("required"):
        fields = {key: schema["properties"][key].get("example", "...") for key in schema["required"]}
        return f"add it, for example {name}: {_flow(fields)}"
    return "add it"


def _flow(fields: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in fields.items()) + "}"


def _example(schema: Mapping[str, Any], otherwise: str) -> str:
    if "example" in schema:
        return f"give a value such as {json.dumps(schema['example'])}"
    return otherwise


def _upper(schema: Mapping[str, Any]) -> str:
    return f" to {schema['maximum']}" if "maximum" in schema else " upwards"


def _shown(value: Any) -> object:
    return MISSING if isinstance(value, dict | list) and len(value) > 0 else value


# --- jsonschema, adapted ----------------------------------------------------------------------------------------------


def _adapted(schema: dict[str, Any]) -> dict[str, Any]:
    """Translate a structural schema to JSON Schema."""
    result = dict(schema)
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    elif "type" in schema:
        result["type"] = [schema["type"], "null"] if schema.get("nullable") else [schema["type"]]
    if "pattern" in schema:
        # In Python, $ also matches before a final line feed; in Go it does not.
        result["pattern"] = schema["pattern"].removesuffix("$") + r"\Z"
    if "properties" in schema:
        result["properties"] = {name: _adapted(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        result["items"] = _adapted(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _adapted(schema["additionalProperties"])
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def _required(validator: Any, names: list[str], instance: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
    """As in JSON Schema, but each error is located at the missing field."""
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield ValidationError("is required", path=(name,))


def _additional(validator: Any, inner: Any, instance: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
    """As in JSON Schema, but each error is located at the unknown field."""
    if not isinstance(instance, dict):
        return
    for name in instance:
        if name in schema.get("properties", {}):
            continue
        if inner is False:
            yield ValidationError("is not a field", path=(name,))
        else:
            yield from validator.descend(instance[name], inner, path=name)


def _list_type(validator: Any, kind: str, instance: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
    """Reject duplicate items of sets and duplicate keys of maps."""
    if not isinstance(instance, list) or kind == "atomic":
        return
    keys = schema.get("x-kubernetes-list-map-keys", [])
    first: dict[str, int] = {}
    for i, item in enumerate(instance):
        if kind == "map" and not (isinstance(item, dict) and all(key in item for key in keys)):
            continue  # a separate fault
        identity = json.dumps([item[key] for key in keys] if kind == "map" else item)
        if identity in first:
            path = (i, keys[0]) if kind == "map" else (i,)
            value = item[keys[0]] if kind == "map" else item
            message = f"must not be in the list twice, {json.dumps(value)} is item {first[identity]} already"
            yield ValidationError(message, path=path)
        first.setdefault(identity, i)


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"required": _required, "additionalProperties": _additional, "x-kubernetes-list-type": _list_type},
)
