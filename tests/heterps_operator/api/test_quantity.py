"""Quantities of the manifests."""

from __future__ import annotations

from decimal import Decimal

import pytest

from heterps_operator.api.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30), ("1Ki", 1024), ("2k", 2000), ("3M", 3_000_000), ("1.5Mi", 1_572_864), (4096, 4096),
        ("0.5", "0.5"), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("100m", "0.1"), ("2Ti", 2**41), ("1P", 10**15),
        ("0", 0),
    ],
)  # fmt: skip
def test_sizes_are_read_as_kubernetes_reads_them(text: int | str, value: int | str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "10GB", "10 Gi", "1e", "ten", "1.2.3", "10Gi\n"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity; .* for example 10Gi"):
        parse_quantity(text)
