"""Quantities in manifests, such as `10Gi`: exact, as Kubernetes parses them."""

from __future__ import annotations

import functools
import re
from decimal import Decimal

__all__ = ["parse_quantity"]

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


@functools.lru_cache(maxsize=4096)  # thousands of nodes and pods share a few values
def parse_quantity(value: int | str) -> Decimal:
    """Parse a Kubernetes quantity, such as `10Gi`, `500m` or 4096.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity; write a number with an optional suffix, for example 10Gi")
    number, suffix, exponent = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _FACTORS[suffix or ""]
