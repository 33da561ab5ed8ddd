"""Versions of stored formats: the rule that every reader follows (docs/compatibility.md).

Each document has a whole number `version`. Additions keep it, because readers ignore fields that they do not know. A
change that an older reader would misunderstand raises it, and an older reader refuses the document.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from heterps_runtime.errors import UserError

__all__ = ["UnsupportedVersionError", "check_version", "known_fields"]


class UnsupportedVersionError(UserError):
    """A document has a newer version than this program can read."""


def check_version(document: str, found: object, supported: int) -> None:
    """Check that this program can read a document.

    Args:
        document: what it is and where, for the message.
        found: its `version`.
        supported: the newest version that this program reads.

    Raises:
        UnsupportedVersionError: the version is newer.
        ValueError: it is not a whole number of at least 1.
    """
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"{document}: version must be a whole number >= 1, is {found!r}")
    if found > supported:
        raise UnsupportedVersionError(
            f"{document} has version {found}, but this program reads versions up to {supported}; "
            "use the HeterPS release that wrote it, or a later one"
        )


def known_fields(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that a document has; others belong to a later release and are ignored.

    Raises:
        TypeError: the document is not an object, or a field has another type than declared. Types of entries in lists
            and objects are not checked.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{kind.__name__} must be an object, is {type(document).__name__}")
    hints = _hints(kind)  # type: ignore[arg-type]  # to mypy, a type is not hashable
    found = {name: value for name, value in document.items() if name in hints}
    for name, value in found.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is of the type {type(value).__name__}")
    return found


def _fits(value: Any, declared: Any) -> bool:
    """Whether a JSON value can be the value of a field."""
    if isinstance(declared, types.UnionType):
        return any(_fits(value, one) for one in get_args(declared))
    kind = get_origin(declared) or declared
    if isinstance(value, bool):  # a subclass of int
        return bool(kind is bool)
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, list if kind is tuple else kind)


_hints = functools.cache(get_type_hints)
