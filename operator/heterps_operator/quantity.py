"""Quantities and decimal numbers of the manifests.

Manifests hold no floating-point numbers (their value would depend on who reads them): sizes are quantities such as
`10Gi`, prices and rates are decimal numbers in strings. Both are exact here until the last conversion.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

__all__ = ["decimal_text", "parse_bytes", "parse_decimal", "parse_quantity"]

# Suffixes of quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_FACTORS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")


def parse_quantity(value: int | str) -> Decimal:
    """Read a Kubernetes quantity, such as `10Gi`, `500m` or 4096.

    Raises:
        ValueError: the text is no quantity.
    """
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity; write a number with an optional suffix, for example 10Gi")
    number, suffix, exponent = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _FACTORS[suffix or ""]


def parse_bytes(value: int | str) -> int:
    """Read a size in bytes; a fraction of a byte is rounded up, as Kubernetes does.

    Raises:
        ValueError: the text is no quantity.
    """
    return math.ceil(parse_quantity(value))


def parse_decimal(value: int | str) -> Decimal:
    """Read a decimal number, such as `"2.42"` or `"1e-8"`.

    Raises:
        ValueError: the text is no decimal number.
    """
    if _DECIMAL.fullmatch(str(value)) is None:
        raise ValueError(f'{value!r} is not a decimal number; write it in quotes, for example "2.42"')
    return Decimal(value)


def decimal_text(value: Decimal | float) -> str:
    """Write a number as manifests hold it: plain digits, no exponent, no zeros at the end."""
    text = format(Decimal(str(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
