"""Type checks of values that were read back. Pure.

Dataclasses do not check types. Administrators and other versions of the operator may write a HeterPSJobState, too: a
wrong type must be found when it is read, not in the middle of a turn.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from heterps_operator.api.shapes import UnreadableError

__all__ = ["check_types"]


def check_types(value: Any, declared: Any, path: str) -> None:
    """Check a value against its declared type: dataclasses, strings, numbers, booleans, tuples, mappings, and unions.

    Args:
        value: the value that was read.
        declared: the type.
        path: path of the value, for messages.

    Raises:
        UnreadableError: the value has another type.
    """
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if declared is Any:
        return
    if origin in (types.UnionType, typing.Union):
        if not any(_fits(value, one, path) for one in inner):
            raise UnreadableError(path, value, _name(declared))
    elif dataclasses.is_dataclass(declared) and isinstance(declared, type):
        _check_plain(value, declared, path)
        for name, hint in _hints(declared).items():
            check_types(getattr(value, name), hint, f"{path}.{name}")
    elif origin is tuple:
        _check_plain(value, tuple, path)
        each = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(value) != len(each):
            raise UnreadableError(path, value, _name(declared))
        for index, (item, one) in enumerate(zip(value, each, strict=True)):
            check_types(item, one, f"{path}[{index}]")
    elif origin is Mapping:
        _check_plain(value, Mapping, path)
        for key, item in value.items():
            check_types(item, inner[1], f"{path}[{key}]")
    else:
        _check_plain(value, (int, float) if declared is float else declared, path)


def _fits(value: Any, declared: Any, path: str) -> bool:
    try:
        check_types(value, declared, path)
    except UnreadableError:
        return False
    return True


def _check_plain(value: Any, declared: Any, path: str) -> None:
    truth = isinstance(value, bool) and declared is not bool  # in Python, bool is a subclass of int
    if truth or not isinstance(value, declared):
        raise UnreadableError(path, value, _name(declared))


@functools.cache
def _hints(declared: type) -> dict[str, Any]:
    hints = typing.get_type_hints(declared)
    return {field.name: hints[field.name] for field in dataclasses.fields(declared)}


def _name(declared: Any) -> str:
    if isinstance(declared, tuple):
        return "a number"
    if isinstance(declared, type) and typing.get_origin(declared) is None:
        return f"of the type {declared.__name__}"
    return f"of the type {declared}"
