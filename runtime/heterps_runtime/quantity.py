"""Kubernetes quantities in manifests."""

from __future__ import annotations

import re
from decimal import Decimal

from heterps_runtime.errors import UserError

__all__ = ["parse_bytes"]

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def parse_bytes(value: str | int, field: str) -> int:
    """Read a quantity such as `10Gi`, `500M` or `1.5Gi` as a number of bytes.

    Raises:
        UserError: the value is not a quantity, or not above zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(value).strip())
    if match is None or match[2] not in _UNITS:
        raise UserError(f"{field}: must be a quantity such as 10Gi or 500M, is {value!r}")
    size = int(Decimal(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise UserError(f"{field}: must be above zero, is {value!r}")
    return size
