"""The manifests of the examples: valid pools, and one flights job in both files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from images.building import name_of

from heterps_operator.api.manifest import read_objects
from heterps_operator.api.schema import load_schemas
from heterps_operator.kubernetes.reading.pools import pool_capacity
from heterps_operator.kubernetes.reading.readable import POOL, check
from tests.heterps_operator.helpers.nodes import make_node

EXAMPLES = Path(__file__).parents[2] / "examples"
POOLS = EXAMPLES / "pools"
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


def test_the_flights_job_is_the_same_on_a_cluster() -> None:
    here, cluster = (documents(EXAMPLES / "flights" / name) for name in ("job.yaml", "cluster.yaml"))
    read_objects(cluster["HeterPSJob"], [cluster["DevicePool"]])  # raises an error if they are not valid
    mine, theirs = here["HeterPSJob"]["spec"], cluster["HeterPSJob"]["spec"]
    assert (mine["model"], mine["training"]) == (theirs["model"], theirs["training"])
    assert mine["data"] | {"train": "/shared/data/train", "evaluation": "/shared/data/test"} == theirs["data"]
    assert mine["checkpoint"] | {"path": "/shared/flights"} == theirs["checkpoint"]
    template = theirs["podTemplates"]["all"]["spec"]
    assert {theirs["image"], *(c["image"] for c in template["initContainers"])} == {name_of("flights")}
    [volume] = template["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == cluster["PersistentVolumeClaim"]["metadata"]["name"]


def documents(path: Path) -> dict[str, Any]:
    """Return the last object of each kind in a file."""
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}
