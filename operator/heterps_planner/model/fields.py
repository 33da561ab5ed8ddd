"""Validation of untrusted JSON field by field, so that every error names its field.

`Fields` wraps one JSON object together with its path; each `take_*` method checks type and range of one field, and
`finish` rejects the remaining fields. Used by `problem` and `evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from heterps_planner.errors import ProblemError, UnknownNameError

__all__ = ["Fields", "check_integer", "check_number"]

_ABSENT: Any = object()
_SHOWN_CHARACTERS = 60  # of an invalid value, so that a message stays one line
_MOST_CHARACTERS = 1_000  # of a name


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def check_number(
    path: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """Return `value` as a finite float within the given range.

    Args:
        path: path of the field, for the message.
        value: value of the field.
        above: exclusive lower bound.
        least: inclusive lower bound.
        most: inclusive upper bound.

    Raises:
        ProblemError: not a number, NaN, infinite, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(path, f"must be a number, is {_show(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ProblemError(path, f"must be a finite number, is {_show(value)}")
    if above is not None and not number > above:
        raise ProblemError(path, f"must be > {above:g}, is {_show(value)}")
    if least is not None and not number >= least:
        raise ProblemError(path, f"must be >= {least:g}, is {_show(value)}")
    if most is not None and not number <= most:
        raise ProblemError(path, f"must be <= {most:g}, is {_show(value)}")
    return number


def check_integer(path: str, value: Any, *, least: int, most: int) -> int:
    """Return `value` as an int in `least..most`; a float without a fraction (1e10) counts as one.

    Raises:
        ProblemError: not a whole number, or out of range.
    """
    number = check_number(path, value, least=least, most=most)
    if number != int(number):
        raise ProblemError(path, f"must be a whole number, is {_show(value)}")
    return int(value)


class Fields:
    """One JSON object under validation.

    Attributes:
        path: path of the object.
        value: the object itself.
    """

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise ProblemError(path, f"must be an object, is {_show(value)}")
        for key in value:
            if not isinstance(key, str):
                raise ProblemError(path, f"field names must be strings, one is {_show(key)}")
        self.path = path
        self.value: dict[str, Any] = value
        self._taken: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def at(self, name: str) -> str:
        """Return the path of the field `name`."""
        return f"{self.path}.{name}"

    def take(self, name: str, default: Any = _ABSENT) -> Any:
        """Return the field unchecked.

        Raises:
            ProblemError: the field is missing and has no default.
        """
        self._taken.append(name)
        if name in self.value:
            return self.value[name]
        if default is _ABSENT:
            raise ProblemError(self.at(name), "is missing")
        return default

    def take_number(
        self,
        name: str,
        default: Any = _ABSENT,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
    ) -> float:
        """Return a finite number within the given range."""
        value = self.take(name, default)
        return check_number(self.at(name), value, above=above, least=least, most=most)

    def take_integer(self, name: str, default: Any = _ABSENT, *, least: int, most: int) -> int:
        """Return a whole number in `least..most`."""
        return check_integer(self.at(name), self.take(name, default), least=least, most=most)

    def take_flag(self, name: str) -> bool:
        """Return true or false; false if it is absent."""
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise ProblemError(self.at(name), f"must be true or false, is {_show(value)}")
        return value

    def take_name(self, name: str, default: Any = _ABSENT) -> str:
        """Return a non-empty string of one line."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise ProblemError(self.at(name), f"must be a string, is {_show(value)}")
        if not value and value != default:
            raise ProblemError(self.at(name), "must not be empty")
        if len(value) > _MOST_CHARACTERS:
            raise ProblemError(self.at(name), f"must have at most {_MOST_CHARACTERS} characters, has {len(value)}")
        if not value.isprintable():
            raise ProblemError(self.at(name), f"must be one line of printable characters, is {_show(value)}")
        return value

    def take_choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`."""
        value = self.take_name(name)
        if value not in choices:
            raise UnknownNameError(self.at(name), "value", value, choices)
        return value

    def take_list(self, name: str, *, most: int) -> Iterator[tuple[str, Any]]:
        """Return (path, item) of a list with 1..`most` items."""
        value = self.take(name)
        if not isinstance(value, list):
            raise ProblemError(self.at(name), f"must be a list, is {_show(value)}")
        if not value:
            raise ProblemError(self.at(name), "must not be empty")
        if len(value) > most:
            raise ProblemError(self.at(name), f"must have at most {most} entries, has {len(value)}")
        return ((f"{self.at(name)}[{i}]", item) for i, item in enumerate(value))

    def finish(self) -> None:
        """Reject the fields that were not taken.

        Raises:
            UnknownNameError: the first such field, with the nearest known name.
        """
        for name in self.value:
            if name not in self._taken:
                raise UnknownNameError(self.at(name), "field", name, [n for n in self._taken if n not in self.value])
