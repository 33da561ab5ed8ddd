"""DevicePools in a file are validated as the API server validates them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from heterps_operator.api.pool_list import PoolList, read_pools
from heterps_operator.errors import ManifestError

Json = dict[str, Any]


def pool(name: str = "cpu", **spec: Any) -> Json:
    base = {"deviceType": "CPU", "maxUnits": 4, "pricePerUnitHour": "0.04"}
    return {
        "apiVersion": "heterps.io/v1alpha1", "kind": "DevicePool", "metadata": {"name": name}, "spec": base | spec,
    }  # fmt: skip


def read(*documents: Any, before: PoolList | None = None) -> PoolList:
    return read_pools(yaml.safe_dump_all(documents), "pools.yaml", {} if before is None else before.pools)


def test_pools_get_the_defaults_of_their_schema() -> None:
    found = read(pool(), pool("fast", deviceType="GPU"))
    assert not found.refused
    assert {name: item["spec"]["unitsPerPod"] for name, item in found.pools.items()} == {"cpu": 1, "fast": 1}
    assert read_pools("", "pools.yaml", {}) == PoolList()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"maxUnits": 0}, "pools.yaml:1: DevicePool cpu: spec.maxUnits: must be at least 1, is 0"),
        ({"maxUnit": 3}, "spec.maxUnit: is not a field"),
        ({"pricePerUnitHour": 0.04}, 'write it in quotes: "0.04"'),
        # Rules in CEL.
        ({"deviceType": "XPU"}, "an XPU pool must have a resourceName"),
        ({"unitsPerPod": 8}, "spec.unitsPerPod: unitsPerPod must not be greater than maxUnits"),
        ({"pricePerUnitHour": "0"}, "must be greater than 0"),
    ],
)
def test_a_pool_that_the_api_server_would_refuse_is_refused_and_the_others_are_used(spec: Json, words: str) -> None:
    found = read(pool(**spec), pool("other"))
    assert set(found.pools) == {"other"}
    assert words.removeprefix("pools.yaml:1: ") in found.refused["cpu"]


def test_a_name_that_is_too_long_for_a_label_is_refused() -> None:
    assert "at most 63 characters" in read(pool("p" * 64)).refused["p" * 64]


def test_a_pool_that_becomes_invalid_stays_as_it_was() -> None:
    before = read(pool())
    for change, words in (({"maxUnits": 0}, "must be at least 1"), ({"deviceType": "GPU"}, "cannot be changed")):
        found = read(pool(**change), before=before)
        assert found.pools == before.pools
        assert words in found.refused["cpu"]
    assert read(pool(maxUnits=9), before=before).pools["cpu"]["spec"]["maxUnits"] == 9
    assert read(before=before) == PoolList()


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ((pool(), pool()), "metadata.name: a DevicePool of this name comes earlier in the file"),
        (({**pool(), "kind": "HeterPSJob"},), "kind: must be DevicePool, is \"HeterPSJob\""),
        (({**pool(), "apiVersion": "v1"},), "apiVersion: must be heterps.io/v1alpha1"),
        (({**pool(), "metadata": {"name": "A b"}},), "metadata.name: must be a name"),
        (({**pool(), "metadata": []},), "metadata.name: must be a name"),
        (([pool()],), "the document is not a mapping of fields"),
    ],
)  # fmt: skip
def test_a_file_that_names_no_pools_is_refused_as_a_whole(documents: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(*documents)
    assert words in str(caught.value)


def test_a_file_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"pools.yaml:\d+: .*not valid YAML"):
        read_pools("a: [", "pools.yaml", {})
