"""CEL selectors of devices: which devices of ResourceSlices belong to a DeviceClass. Pure.

A selector sees a device as the scheduler shows it: its driver, and its attributes and capacity by domain and name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from heterps_operator.api.cel import RuleError, evaluate, load
from heterps_operator.api.quantity import parse_quantity
from heterps_operator.api.semver import Version
from heterps_operator.documents import Json

__all__ = ["SelectorError", "Selectors"]

_VISIBLE = ("allowMultipleAllocations", "attributes", "capacity")
_LONGEST = 10 << 10  # characters of an expression, as Kubernetes allows
_MOST_STEPS = 20_000  # for one device, about 0.2 s; an expression of the length above without macros takes fewer
_MOST_STEPS_OF_ALL = 2_000_000  # for all devices of a class; common selectors take about 100 for each
_LONGEST_REASON = 240  # characters
_SCOPE = " (in activation"  # cel-python lists all that an expression can see


class SelectorError(Exception):
    """A selector cannot be evaluated for a device."""


class Selectors:
    """The selectors of a DeviceClass, for its devices one after the other.

    The steps of their expressions are limited, for each device and for all of them: cel-python is slow, and macros may
    repeat a step thousands of times.

    Args:
        selectors: `spec.selectors` of the class; without any, every device of every driver belongs to it.
    """

    def __init__(self, selectors: Iterable[Json]) -> None:
        self._selectors = tuple(selectors)
        self._left = _MOST_STEPS_OF_ALL

    def select(self, driver: str, device: Json) -> bool:
        """Whether a device fulfils all selectors.

        Args:
            driver: the device's driver.
            device: an entry of `spec.devices` of a ResourceSlice.

        Raises:
            SelectorError: the scheduler would fail at a selector, too, or HeterPS does not know a function of it, or it
                takes too many steps.
        """
        seen = {"driver": driver, **{key: device[key] for key in _VISIBLE if device.get(key)}}
        text = json.dumps(seen, sort_keys=True)
        taken = 0
        for selector in self._selectors:
            expression = (selector.get("cel") or {}).get("expression")
            if expression is None:
                raise SelectorError("a selector of another kind than cel")
            if len(expression) > _LONGEST:
                raise SelectorError(
                    f"an expression of {len(expression):,} characters; at most {_LONGEST:,} are allowed"
                )
            if self._left <= 0:
                raise SelectorError(f"the selectors take more than {_MOST_STEPS_OF_ALL:,} steps for all devices")
            result, steps = _evaluate(expression, text)
            taken += steps
            self._left -= steps
            if taken > _MOST_STEPS:
                raise SelectorError(f"the selectors take more than {_MOST_STEPS:,} steps for one device")
            if isinstance(result, str):
                raise SelectorError(result)
            if not result:
                return False
        return True


@functools.lru_cache(maxsize=16_384)  # cel-python is slow, and a cluster has thousands of devices
def _evaluate(expression: str, seen: str) -> tuple[bool | str, int]:
    """Return the value of an expression for a device, or why it has none; and the steps that it took."""
    load()
    from celpy.celtypes import BoolType

    from heterps_operator.api.cel_evaluation import Meter

    meter = Meter(_MOST_STEPS)
    try:
        result = evaluate(expression, {"device": _device(json.loads(seen))}, meter)
        if not isinstance(result, BoolType | bool):
            raise RuleError(expression, "is no condition")
    except (RuleError, ValueError) as error:
        return str(error).partition(_SCOPE)[0][:_LONGEST_REASON], meter.taken
    return bool(result), meter.taken


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
