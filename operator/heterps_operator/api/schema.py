"""Validation of objects against the CRD files, the way an API server does it, but in words for people.

The files in `crds/` are the only description of the manifests. Here they are read, their defaults applied, their
structural schemas checked (jsonschema knows all of it but the `x-kubernetes-*` keywords) and their rules evaluated
(`cel`). Where an API server stops at the first group of errors, everything is reported at once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

import yaml

from heterps_operator.api import cel
from heterps_operator.api.structure import OBJECT_META, structural_faults
from heterps_operator.api.yaml_source import Path, path_text
from heterps_operator.errors import MISSING, FieldError, InstallationError

__all__ = ["Fault", "Schema", "crd_folder", "load_schemas"]

_CHAIN = re.compile(r"\bself((?:\.[A-Za-z]+\b(?!\())*)")


@dataclass(frozen=True)
class Fault:
    """A problem whose place is still a path, so that its line can be found."""

    path: Path
    value: object
    message: str
    fix: str

    def problem(self, document: str = "", source: str = "") -> FieldError:
        """The fault as users see it."""
        return FieldError(path_text(self.path), self.value, self.message, self.fix, document, source)


@dataclass(frozen=True)
class Schema:
    """The schema of one kind of object."""

    kind: str
    namespaced: bool
    openapi: Mapping[str, Any]  # spec.versions[].schema.openAPIV3Schema, with that of metadata put in

    def with_defaults(self, value: Any) -> Any:
        """A copy of an object as an API server stores it: defaults filled in, null taken for "not given"."""
        result = copy.deepcopy(value)
        _apply_defaults(self.openapi, result)
        return result

    def faults(self, value: Any, old: Any = MISSING, texts: Mapping[Path, str] | None = None) -> list[Fault]:
        """Find everything that is wrong with an object.

        Args:
            value: the object, with defaults.
            old: the object that it replaces, with defaults; rules about changes need it.
            texts: scalars of the file as they were written, where that differs from their value.
        """
        structural = [Fault(*fault) for fault in structural_faults(self.openapi, value, texts or {})]
        broken = {fault.path for fault in structural}
        return structural + list(_rule_faults(self.openapi, value, old, (), broken))


def crd_folder() -> Traversable:
    """The folder of the CRD files: inside the installed package, or at the root of a checkout.

    Raises:
        InstallationError: they are in neither place.
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
    """The schemas of all kinds, by kind.

    Raises:
        InstallationError: the CRD files are missing.
    """
    schemas = {}
    for file in sorted(crd_folder().iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".yaml"):
            continue
        spec = yaml.load(file.read_text(encoding="utf-8"), Loader=_loader())["spec"]  # noqa: S506  # a safe loader
        openapi = spec["versions"][0]["schema"]["openAPIV3Schema"]
        openapi["properties"]["metadata"] = OBJECT_META
        openapi["required"] = [*openapi["required"], "metadata"]  # an API server demands a name of every object
        kind = spec["names"]["kind"]
        schemas[kind] = Schema(kind, spec["scope"] == "Namespaced", openapi)
    return schemas


def _loader() -> Any:
    """PyYAML's loader on libyaml where it has that (8 times faster), its Python one otherwise."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _apply_defaults(schema: Mapping[str, Any], value: Any) -> None:
    """Fill in defaults as structural defaulting does, from the outside inwards."""
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
    for rule in schema.get("x-kubernetes-validations", ()):
        if cel.is_transition_rule(rule["rule"]) and old is MISSING:
            continue
        read = _fields_read(rule["rule"], path)
        if any(place[: len(field)] == field or field[: len(place)] == place for place in broken for field in read):
            continue  # what it reads has a fault of its own, so the rule would judge something that nobody wrote
        target = next(iter(read)) if len(read) == 1 else path
        if "fieldPath" in rule:
            target = (*path, *rule["fieldPath"].split(".")[1:])
        message, fix = rule["message"].split("; ", maxsplit=1)
        if not cel.holds(rule["rule"], value, old):
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
    """The fields that a rule reads, from its text; functions called on a field are none."""
    return frozenset((*path, *chain.split(".")[1:]) for chain in _CHAIN.findall(rule))


def _same_item(schema: Mapping[str, Any], item: Any, old: Any) -> Any:
    """The item of the old list with the same keys; lists without keys have no such thing."""
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return MISSING
    return next((before for before in old if all(before.get(key) == item.get(key) for key in keys)), MISSING)


def _at(value: Any, path: Path) -> Any:
    """The value at a path if it is one that a message can show."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return MISSING
        value = value[step]
    return MISSING if isinstance(value, dict | list) else value
