"""Validation of objects against the CRD files, as an API server validates them, but with helpful messages.

The files in `crds/` are the only description of the manifests. This module reads them, applies their defaults, checks
their structural schemas (jsonschema knows all keywords except `x-kubernetes-*`) and evaluates their rules (`cel`). An
API server stops at the first group of errors; this module reports all of them at once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

import yaml

from heterps_operator.api import cel
from heterps_operator.api.structure import OBJECT_META, Structure
from heterps_operator.api.yaml_source import Path, path_text
from heterps_operator.errors import MISSING, FieldError, InstallationError

__all__ = ["Fault", "Schema", "crd_folder", "load_schemas"]

_CHAIN = re.compile(r"\bself((?:\.[A-Za-z]+\b(?!\())*)")


@dataclass(frozen=True)
class Fault:
    """A problem located by a path, which leads to its line."""

    path: Path
    value: object
    message: str
    fix: str

    def problem(self, document: str = "", source: str = "") -> FieldError:
        """Return the fault as users see it."""
        return FieldError(path_text(self.path), self.value, self.message, self.fix, document, source)


@dataclass(frozen=True)
class Schema:
    """The schema of one kind."""

    kind: str
    openapi: Mapping[str, Any]  # spec.versions[].schema.openAPIV3Schema, with that of metadata added

    @cached_property
    def _structure(self) -> Structure:
        return Structure(self.openapi)

    def with_defaults(self, value: Any) -> Any:
        """Return a copy of an object as an API server stores it: defaults filled in, null meaning "not given"."""
        result = copy.deepcopy(value)
        _apply_defaults(self.openapi, result)
        return result

    def faults(self, value: Any, old: Any = MISSING, texts: Mapping[Path, str] | None = None) -> list[Fault]:
        """Return all faults of an object.

        Args:
            value: the object, with defaults.
            old: the object that it replaces, with defaults; transition rules need it.
            texts: scalars as written in the file, where that differs from their value.
        """
        structural = [Fault(*fault) for fault in self._structure.faults(value, texts or {})]
        broken = {fault.path for fault in structural}
        return structural + list(_rule_faults(self.openapi, value, old, (), broken))


def crd_folder() -> Traversable:
    """Return the folder of the CRD files, in the installed package or at the root of a checkout.

    Raises:
        InstallationError: it is in neither place.
    """
    packaged = resources.files("heterps_operator") / "crds"
    if packaged.is_dir():
        return packaged
    checkout = FilePath(__file__).resolve().parents[3] / "crds"
    if checkout.is_dir():
        return checkout
    raise InstallationError(f"the CRD files are missing, looked in {packaged} and {checkout}; install heterps again")


@lru_cache(maxsize=1)
def load_schemas() -> Mapping[str, Schema]:
    """Return the schemas of the kinds that users write, by kind.

    Raises:
        InstallationError: the CRD files are missing.
    """
    schemas = {}
    for file in sorted(crd_folder().iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".yaml"):
            continue
        spec = yaml.load(file.read_text(encoding="utf-8"), Loader=_loader())["spec"]  # noqa: S506  # a safe loader
        openapi = spec["versions"][0]["schema"]["openAPIV3Schema"]
        if "spec" not in openapi["properties"]:  # HeterPSJobState: users write none
            continue
        openapi["properties"]["metadata"] = OBJECT_META
        openapi["required"] = [*openapi["required"], "metadata"]  # an API server requires every object to have a name
        kind = spec["names"]["kind"]
        schemas[kind] = Schema(kind, openapi)
    return schemas


def _loader() -> Any:
    """Return PyYAML's libyaml loader (8 times faster) if available, its Python loader otherwise."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _apply_defaults(schema: Mapping[str, Any], value: Any) -> None:
    """Fill in defaults as structural defaulting does, from the outside in."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties")
        for name in [name for name, item in value.items() if item is None]:
            inner = properties.get(name, additional)
            if isinstance(inner, dict) and not inner.get("nullable"):
                del value[name]
        for name, inner in properties.items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
        for name, item in value.items():
            inner = properties.get(name, additional)
            if isinstance(inner, dict):
                _apply_defaults(inner, item)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _apply_defaults(schema["items"], item)


def _rule_faults(schema: Mapping[str, Any], value: Any, old: Any, path: Path, broken: set[Path]) -> Iterator[Fault]:
    """Evaluate the rules of a schema and of everything in it."""
    known: bytes | None = None
    for rule in schema.get("x-kubernetes-validations", ()):
        if cel.is_transition_rule(rule["rule"]) and old is MISSING:
            continue
        read = _fields_read(rule["rule"], path)
        if any(place[: len(field)] == field or field[: len(place)] == place for place in broken for field in read):
            continue  # a field that it reads is faulty, so the rule would judge a value that the user did not write
        target = next(iter(read)) if len(read) == 1 else path
        if "fieldPath" in rule:
            target = (*path, *rule["fieldPath"].split(".")[1:])
        message, fix = rule["message"].split("; ", maxsplit=1)
        known = known or cel.fingerprint(value, old)  # the same for all rules
        if not cel.holds(rule["rule"], value, old, known):
            yield Fault(target, _at(value, target[len(path) :]), message, fix)
    if isinstance(value, dict):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(inner, dict):
                before = old[name] if isinstance(old, dict) and name in old else MISSING
                yield from _rule_faults(inner, item, before, (*path, name), broken)
    elif isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            before = _same_item(schema, item, old)
            yield from _rule_faults(schema["items"], item, before, (*path, i), broken)


@lru_cache(maxsize=256)
def _fields_read(rule: str, path: Path) -> frozenset[Path]:
    """Fields that a rule reads, found in its text; method calls are excluded."""
    return frozenset((*path, *chain.split(".")[1:]) for chain in _CHAIN.findall(rule))


def _same_item(schema: Mapping[str, Any], item: Any, old: Any) -> Any:
    """Return the item of the old list with the same keys; lists without keys have none."""
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return MISSING
    return next((before for before in old if all(before.get(key) == item.get(key) for key in keys)), MISSING)


def _at(value: Any, path: Path) -> Any:
    """Return the value at a path if a message can show it."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return MISSING
        value = value[step]
    return MISSING if isinstance(value, dict | list) else value
