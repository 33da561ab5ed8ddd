"""The DevicePools of the examples are valid, and no node belongs to two of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.api.schema import load_schemas
from heterps_operator.kubernetes.reading.pools import pool_capacity
from heterps_operator.kubernetes.reading.readable import POOL, check
from tests.heterps_operator.helpers.nodes import make_node

POOLS = Path(__file__).parents[2] / "examples" / "pools"
FILES = sorted(POOLS.glob("*.yaml"))


def test_there_are_some() -> None:
    assert [file.name for file in FILES] == ["aks.yaml", "eks-karpenter.yaml", "gke.yaml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pools_are_valid_and_select_different_nodes(file: Path) -> None:
    pools: list[Any] = list(yaml.safe_load_all(file.read_text()))
    for pool in pools:
        schema = load_schemas()["DevicePool"]
        assert schema.faults(schema.with_defaults(pool)) == []
        check(POOL, pool)
    for pool in pools:
        node = make_node("a", labels=pool["spec"]["nodeSelector"], cards="1")
        assert [other for other in pools if pool_capacity(other, [node]).units] == [pool]
