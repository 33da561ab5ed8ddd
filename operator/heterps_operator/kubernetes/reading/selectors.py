"""CEL selectors of devices: which devices of ResourceSlices belong to a DeviceClass. Pure.

A selector sees a device as the scheduler shows it: its driver, and its attributes and capacity by domain and name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from heterps_operator.api.cel import RuleError, evaluate
from heterps_operator.api.quantity import parse_quantity
from heterps_operator.api.semver import Version
from heterps_operator.documents import Json

__all__ = ["SelectorError", "selects"]

_VISIBLE = ("allowMultipleAllocations", "attributes", "capacity")
_LONGEST_REASON = 200  # characters
_SCOPE = " (in activation"  # cel-python lists all that an expression can see


class SelectorError(Exception):
    """A selector cannot be evaluated for a device."""


def selects(selectors: Iterable[Json], driver: str, device: Json) -> bool:
    """Whether a device fulfils all selectors of a DeviceClass.

    Args:
        selectors: `spec.selectors` of the class; without any, every device of every driver belongs to it.
        driver: the device's driver.
        device: an entry of `spec.devices` of a ResourceSlice.

    Raises:
        SelectorError: the scheduler would fail at a selector, too, or HeterPS does not know a function of it.
    """
    seen = {"driver": driver, **{key: device[key] for key in _VISIBLE if device.get(key)}}
    text = json.dumps(seen, sort_keys=True)
    for selector in selectors:
        expression = (selector.get("cel") or {}).get("expression")
        if expression is None:
            raise SelectorError("a selector of another kind than cel")
        result = _evaluate(str(expression), text)
        if isinstance(result, str):
            raise SelectorError(result)
        if not result:
            return False
    return True


@functools.lru_cache(maxsize=16_384)  # cel-python is slow, and a cluster has thousands of devices
def _evaluate(expression: str, seen: str) -> bool | str:
    """Return the value of an expression for a device, or why it has none."""
    from celpy.celtypes import BoolType

    try:
        result = evaluate(expression, {"device": _device(json.loads(seen))})
    except (RuleError, ValueError) as error:
        return str(error).partition(_SCOPE)[0][:_LONGEST_REASON]
    return bool(result) if isinstance(result, BoolType | bool) else f"{expression}: is no condition"


def _device(seen: Mapping[str, Any]) -> Any:
    from celpy.celtypes import BoolType, MapType, StringType

    class ByDomain(MapType):
        """Names by domain; a domain that the device lacks is empty, as for the scheduler."""

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key) if key in self else MapType()

    def by_domain(values: Mapping[str, Any]) -> Any:
        domains: dict[str, dict[Any, Any]] = {}
        for qualified, value in values.items():
            domain, slash, name = qualified.rpartition("/")
            domains.setdefault(domain if slash else seen["driver"], {})[StringType(name)] = value
        return ByDomain({StringType(domain): MapType(names) for domain, names in domains.items()})

    attributes = {name: _attribute(value) for name, value in seen.get("attributes", {}).items()}
    capacity = {name: parse_quantity(str(value["value"])) for name, value in seen.get("capacity", {}).items()}
    return MapType({
        StringType("driver"): StringType(seen["driver"]),
        StringType("allowMultipleAllocations"): BoolType(seen.get("allowMultipleAllocations", False)),
        StringType("attributes"): by_domain(attributes),
        StringType("capacity"): by_domain(capacity),
    })  # fmt: skip


def _attribute(value: Json) -> Any:
    from celpy.adapter import json_to_cel

    if "version" in value:
        return Version.parse(str(value["version"]))
    found = next((value[kind] for kind in ("int", "bool", "string") if kind in value), None)
    return json_to_cel(found)
