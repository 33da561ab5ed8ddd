"""The manifests of the examples: valid pools, and one flights job in both files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from images.building import name_of

from heterps_operator.api.manifest import read_objects
from heterps_operator.api.schema import load_schemas
from heterps_operator.kubernetes.reading.devices import PoolDevices, class_devices, offers_of
from heterps_operator.kubernetes.reading.pools import pool_capacity
from heterps_operator.kubernetes.reading.readable import DEVICE_CLASS, POOL, check
from tests.heterps_operator.helpers.devices import make_slice
from tests.heterps_operator.helpers.nodes import make_node

EXAMPLES = Path(__file__).parents[2] / "examples"
POOLS = EXAMPLES / "pools"
FILES = sorted(POOLS.glob("*.yaml"))


def test_there_are_some() -> None:
    assert [file.name for file in FILES] == ["aks.yaml", "dra.yaml", "eks-karpenter.yaml", "gke.yaml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pools_are_valid_and_select_different_nodes(file: Path) -> None:
    objects: list[Any] = list(yaml.safe_load_all(file.read_text()))
    pools = [item for item in objects if item["kind"] == "DevicePool"]
    classes = [item for item in objects if item["kind"] == "DeviceClass"]
    for device_class in classes:
        check(DEVICE_CLASS, device_class)
    for pool in pools:
        schema = load_schemas()["DevicePool"]
        assert schema.faults(schema.with_defaults(pool)) == []
        check(POOL, pool)
    for pool in pools:
        node = make_node("a", labels=pool["spec"]["nodeSelector"], cards="1")
        assert [other for other in pools if units_on(node, other, classes)] == [pool]


def units_on(node: Any, pool: Any, classes: list[Any]) -> int:
    """Count the units of a pool on a node with one A100, which its device plugin or its DRA driver offers."""
    name = pool["spec"].get("deviceClassName")
    if name is None:
        return pool_capacity(pool, [node]).units
    [device_class] = [item for item in classes if item["metadata"]["name"] == name]
    kind = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA A100-SXM4-80GB"}}
    other = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100"}}
    cards = [{"name": "gpu-0", "attributes": kind}, {"name": "gpu-1", "attributes": other}]
    found = class_devices(device_class, [make_slice("a", cards, driver="gpu.nvidia.com")], ("a",))
    return pool_capacity(pool, [node], None, PoolDevices(offers_of(pool["metadata"]["name"], found, (), {}))).units


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
