"""Shape checks of API values before they are read. Pure.

The API server stores unchecked data: annotations with any text, and custom objects of an older schema. A shape is a
function that takes a value and the path of its field, and raises `UnreadableError` at the first mismatch. Fields that a
shape does not name are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.documents import MOST_LEVELS

__all__ = [
    "Shape",
    "UnreadableError",
    "amount",
    "check_levels",
    "fields",
    "items",
    "matching",
    "moment",
    "number",
    "optional",
    "plain",
    "real",
    "table",
    "text",
    "truth",
]

Shape = Callable[[Any, str], None]

_LONGEST_SHOWN = 60  # characters of the value in a message
_LONGEST_PATH = 160
_LONGEST_NUMBER = 40  # characters of a quantity
_MOST = 10**15  # of a resource; sums of thousands of them stay exact
_LARGEST = 1e300  # far from overflowing in a sum


class UnreadableError(ValueError):
    """An unreadable object.

    Attributes:
        field: path of the faulty field.
        found: its value; None if it is missing.
        expected: description of valid values.
    """

    def __init__(self, field: str, found: object, expected: str) -> None:
        place = field if len(field) <= _LONGEST_PATH else f"{field[:_LONGEST_PATH]}..."
        words = f"{place} must be {expected}, {_shown(found)}"
        super().__init__(words.encode("utf-8", "backslashreplace").decode())
        self.field = field
        self.found = found
        self.expected = expected


def text(*, least: int = 0, most: int | None = None, among: Collection[str] = ()) -> Shape:
    """Shape of a text.

    Args:
        least: minimum number of characters.
        most: maximum number of characters; None: no limit.
        among: the only valid texts; empty: any.
    """
    expected = f"one of {', '.join(among)}" if among else "a text"
    if most is not None:
        expected += f" of {least} to {most} characters"
    elif least:
        expected += " that is not empty"

    def check(value: Any, path: str) -> None:
        known = isinstance(value, str) and (not among or value in among) and (value.isascii() or _can_be_sent(value))
        if not known or len(value) < least or (most is not None and len(value) > most):
            raise UnreadableError(path, value, expected)

    return check


def matching(pattern: str, expected: str) -> Shape:
    """Shape of a text that matches a regular expression as a whole.

    Args:
        pattern: the expression; bound each repetition.
        expected: its description in words.
    """
    compiled = re.compile(pattern)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise UnreadableError(path, value, expected)

    return check


def number(least: int, most: int) -> Shape:
    """Shape of a whole number within bounds; booleans are not numbers."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UnreadableError(path, value, f"a whole number from {least} to {most}")

    return check


def real(least: float, most: float) -> Shape:
    """Shape of a finite number within bounds; booleans are not numbers."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise UnreadableError(path, value, f"a number from {least:g} to {most:g}")

    return check


def plain(depth: int) -> Shape:
    """Shape of any JSON value with finite numbers.

    Args:
        depth: levels of objects and lists in it, at most.
    """

    def check(value: Any, path: str) -> None:
        _check_plain(value, path, depth)

    return check


def _check_plain(value: Any, path: str, depth: int) -> None:
    if isinstance(value, Mapping | list):
        if depth == 0:
            raise UnreadableError(path, value, "a value without further levels")
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_plain(item, f"{path}[{key}]", depth - 1)
    elif isinstance(value, int | float):
        _FINITE(value if not isinstance(value, bool) else 0, path)
    elif value is not None:
        _ANY_TEXT(value, path)


def check_levels(value: Any) -> None:
    """Check that no more than `MOST_LEVELS` objects and lists are nested, so that recursive code can read the value.

    Raises:
        UnreadableError: there are more; the error names the outermost fields around them.
    """
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return
    field, found = _deepest(value)
    raise UnreadableError(field, found, f"nested in at most {MOST_LEVELS} levels")


def _children(value: Any) -> list[Any]:
    """Objects and lists directly in a value."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _deepest(value: Any) -> tuple[str, Any]:
    """Return path and value of the field with the most levels: the outermost list, or the innermost object."""
    level: list[tuple[str, Any, Any]] = [("", value, value)]  # path and value of the field, and what is looked at
    while True:
        below: list[tuple[str, Any, Any]] = []
        for field, found, parent in level:
            for key, item in parent.items() if isinstance(parent, dict) else enumerate(parent):
                if not isinstance(item, dict | list):
                    continue
                if isinstance(found, list):
                    below.append((field, found, item))
                else:
                    below.append((f"{field}.{key}".lstrip(".")[: _LONGEST_PATH + 1], item, item))
        if not below:
            return level[0][:2]
        level = below


def truth(value: Any, path: str) -> None:
    """Shape of a boolean."""
    if not isinstance(value, bool):
        raise UnreadableError(path, value, "true or false")


def amount(value: Any, path: str) -> None:
    """Shape of a resource quantity, such as `500m`, as text or number."""
    try:
        known = isinstance(value, str | int) and not isinstance(value, bool)
        if known and len(str(value)) <= _LONGEST_NUMBER and 0 <= parse_quantity(value) <= _MOST:
            return
    except ValueError:
        pass
    raise UnreadableError(path, value, f"a quantity from 0 to {_MOST:.0e}, such as 500m or 4")


def moment(value: Any, path: str) -> None:
    """Shape of a timestamp with a time zone, in the API's format."""
    try:
        if isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None:
            return
    except ValueError:
        pass
    raise UnreadableError(path, value, "a time such as 2026-03-01T10:00:00Z")


def items(shape: Shape, most: int | None = None) -> Shape:
    """Shape of a list.

    Args:
        shape: shape of each item.
        most: maximum number of items; None: no limit.
    """

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            raise UnreadableError(path, value, "a list" if most is None else f"a list of at most {most} items")
        for index, item in enumerate(value):
            shape(item, f"{path}[{index}]")

    return check


def table(shape: Shape, only: Callable[[str], bool] = lambda key: True) -> Shape:
    """Shape of an object with arbitrary keys.

    Args:
        shape: shape of each value.
        only: keys whose values are checked.
    """

    def check(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise UnreadableError(path, value, "an object")
        for key, item in value.items():
            if only(key):
                shape(item, f"{path}[{key}]")

    return check


def optional(shape: Shape) -> Shape:
    """Shape of a value that may be null."""

    def check(value: Any, path: str) -> None:
        if value is not None:
            shape(value, path)

    return check


def fields(known: Mapping[str, Shape], required: Collection[str] = ()) -> Shape:
    """Shape of an object with known fields.

    Args:
        known: shapes by field; missing and null fields are not checked.
        required: fields that must be present.
    """

    def check(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise UnreadableError(path or "the object", value, "an object")
        head = f"{path}." if path else ""
        for key, shape in known.items():
            item = value.get(key)
            if item is not None:
                shape(item, head + key)
            elif key in required:
                raise UnreadableError(head + key, None, "there")

    return check


_FINITE, _ANY_TEXT = real(-_LARGEST, _LARGEST), text()


def _can_be_sent(value: str) -> bool:
    """Whether a text can be encoded as UTF-8; JSON may contain lone surrogates, which cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """Describe a value in a few words."""
    if value is None:
        return "is missing"
    if isinstance(value, Mapping):
        return "is an object"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"is a text of {len(value)} characters"
    if isinstance(value, int) and not -_MOST <= value <= _MOST:  # a larger number cannot even be formatted
        return "is a number out of range"
    return f"is {json.dumps(value, ensure_ascii=False, default=str)}"
