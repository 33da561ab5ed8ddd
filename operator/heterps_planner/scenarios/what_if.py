"""A problem with a few numbers changed: `v100.maxUnits=16`.

A setting is a pool's field (`POOL.maxUnits`, `POOL.pricePerUnitHour`, `POOL.interruptionsPerUnitHour`), or a field of
the problem without a pool. The changed problem is validated like one from a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.problem import Problem

__all__ = ["POOL_FIELDS", "PROBLEM_FIELDS", "change", "read_setting"]

POOL_FIELDS = ("maxUnits", "pricePerUnitHour", "interruptionsPerUnitHour")
PROBLEM_FIELDS = ("minSamplesPerSecond", "maxCostPerHour", "parameterServer")
_SERVER_FIELDS = ("pool", "units", "coresPerSamplePerSecond")
_FORM = "must be NAME=VALUE, such as v100.maxUnits=16 or minSamplesPerSecond=50000"


def read_setting(text: str) -> tuple[str, Any]:
    """Split `name=value`; the value is a number, `none`, or a name.

    Raises:
        ProblemError: there is no `=`, or nothing on one side of it.
    """
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals or not name or not value:
        raise ProblemError(f"{text!r}", _FORM)
    if value.lower() in ("none", "null"):
        return name, None
    try:
        number = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    if isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
        return name, number
    return name, value


def change(problem: Problem, settings: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Problem:
    """Return the problem with all settings applied in order.

    Args:
        problem: not modified.
        settings: field (see above; of the servers also `parameterServer.pool`, `.units`, `.coresPerSamplePerSecond`)
            and value; None removes an optional field.

    Raises:
        ProblemError: unknown pool or field (`UnknownNameError`), or an invalid value; the message begins with
            the field as it was given.
    """
    document = problem.to_json()
    pairs = list(settings.items()) if isinstance(settings, Mapping) else list(settings)
    for name, value in pairs:
        _set(document, name, value)
    try:
        return Problem.from_json(document)
    except ProblemError as error:
        for i in range(len(pairs) - 1):
            change(problem, pairs[: i + 1])  # an earlier one may be at fault
        raise ProblemError(pairs[-1][0], error.complaint) from error


def _set(document: dict[str, Any], name: str, value: Any) -> None:
    """Change one field in the content of a problem file."""
    pools = {pool["name"]: pool for pool in document["pools"]}
    owner, dot, field = name.rpartition(".")
    if owner in pools:
        if field not in POOL_FIELDS:
            raise UnknownNameError(name, "field of a pool", field, POOL_FIELDS)
        if value is None:
            raise ProblemError(name, "must be a number, is none")
        pools[owner][field] = value
    elif owner == "parameterServer":
        if field not in _SERVER_FIELDS:
            raise UnknownNameError(name, "field of the parameter servers", field, _SERVER_FIELDS)
        server = dict(document.get("parameterServer") or {})
        if field == "coresPerSamplePerSecond":
            server.pop("units", None)  # the number of servers follows the throughput
        server = {name: number for name, number in (server | {field: value}).items() if number is not None}
        document["parameterServer"] = server
    elif dot:
        raise UnknownNameError(name, "pool", owner, [*pools, "parameterServer"])
    elif name in POOL_FIELDS:
        raise ProblemError(name, f"is a field of a pool; say which, such as {next(iter(pools))}.{name}")
    elif name not in PROBLEM_FIELDS:
        raise UnknownNameError(name, "field", name, [*PROBLEM_FIELDS, *(f"POOL.{field}" for field in POOL_FIELDS)])
    elif name == "parameterServer":
        if value is not None:
            raise ProblemError(name, "can only be none; say parameterServer.units=N or .coresPerSamplePerSecond=N")
        document.pop(name, None)
    elif value is None:
        document.pop(name, None)
    else:
        document[name] = value
