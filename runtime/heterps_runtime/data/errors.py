"""Errors of training data.

UserError (heterps_runtime.errors, a ValueError)
└── DataError              a field of spec.data, a file, a column or a value is wrong
└── DataCacheError     the local cache cannot be written: maxBytes, a full disk, no permission
TransientError (heterps_runtime.errors)
└── DataUnavailableError   a store does not deliver
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from heterps_runtime.errors import TransientError, UserError

__all__ = ["DataCacheError", "DataError", "DataUnavailableError", "nearest"]


class DataError(UserError):
    """Wrong data: the message names the field or file, the value, and a remedy."""


class DataCacheError(DataError):
    """The local data cache cannot be written."""


class DataUnavailableError(TransientError):
    """A store does not deliver a file that it has listed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'carrier'?` if one of `known` resembles `name`, else an empty string."""
    names = list(known)
    by_lower = {n.lower(): n for n in names}
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""
