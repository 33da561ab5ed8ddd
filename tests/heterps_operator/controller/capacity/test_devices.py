"""Pools with a DeviceClass get their units from what the operator has seen of devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.devices import KINDS, DeviceStores
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.reading.readable import CLAIM, DEVICE_CLASS, SLICE
from tests.heterps_operator.helpers.devices import (
    CLASS,
    card_node,
    card_pool,
    claiming_pod,
    make_claim,
    make_class,
    make_device,
    make_slice,
)
from tests.heterps_operator.helpers.lists import JOBS, NODES, PODS, POOLS, Lists
from tests.heterps_operator.helpers.nodes import make_pool

Json = dict[str, Any]

DEVICES = {kind: f"/apis/resource.k8s.io/v1/{plural}" for kind, plural in KINDS.items()}
JOB = {"metadata": {"name": "a", "namespace": "ml", "uid": "a"}, "spec": {"pools": [{"name": "card"}]}}
FOUR = make_slice("n", [make_device(f"gpu-{number}") for number in range(4)])


class Cluster(Lists):
    """A cluster that may lack resource.k8s.io/v1."""

    serves = True

    def each(self, path: str, label_selector: str = "") -> Iterator[Json]:
        if path in DEVICES.values() and not self.serves:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return super().each(path, label_selector)


@pytest.fixture
def lists() -> Cluster:
    found = Cluster()
    found.items = {
        POOLS: [card_pool()], NODES: [card_node("n")], JOBS: [JOB],
        DEVICES[DEVICE_CLASS]: [make_class()], DEVICES[SLICE]: [FOUR], DEVICES[CLAIM]: [],
    }  # fmt: skip
    return found


def operator(lists: Lists, folder: Path, *, reads: bool = True) -> Supervisor:
    context = OperatorContext(cast("KubernetesApi", lists), folder, devices=DeviceStores() if reads else None)
    return Supervisor(context)


def problem(supervisor: Supervisor) -> tuple[str, str]:
    found = supervisor.pools._capacities["card"].problem
    assert found is not None
    return found


def test_capacity_follows_slices_classes_and_claims(lists: Cluster, tmp_path: Path) -> None:
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    ledger, see = supervisor._cluster.ledger, supervisor.reflector.device_seen
    assert ledger.free("card") == 4
    three = make_slice("n", [make_device(f"gpu-{number}") for number in range(3)], generation=2)
    steps: list[tuple[str, Json, bool, int]] = [
        (SLICE, three, False, 3),
        (CLAIM, make_claim("stranger", "n", "gpu-0"), False, 2),
        (CLAIM, make_claim("stranger", "n", "gpu-0"), True, 3),
        (DEVICE_CLASS, make_class('device.driver == "other"'), False, 0),
        (DEVICE_CLASS, make_class(), False, 3),
        (SLICE, three, True, 4),
    ]
    for kind, item, gone, free in steps:
        supervisor.pools.changed.clear()
        see(kind, item, gone=gone)
        assert supervisor.pools.changed.is_set()
        supervisor.pools.refresh()
        assert ledger.free("card") == free, (kind, gone)


def test_a_job_s_own_devices_are_counted_once(lists: Cluster, tmp_path: Path) -> None:
    """Also by a new operator, which sees pods, claims and jobs at the same time."""
    lists.items[PODS] = [claiming_pod("w-1", node="n"), claiming_pod("w-2", node="n")]
    lists.items[DEVICES[CLAIM]] = [make_claim("w-1", "n", "gpu-0"), make_claim("w-2", "n", "gpu-1")]
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    ledger = supervisor._cluster.ledger
    assert ledger.held_by("ml/a") == {"card": 2}
    assert ledger.free("card") == 2
    assert supervisor.pools._capacities["card"].units == 4


def test_pods_whose_job_is_gone_keep_their_devices_until_they_end(lists: Cluster, tmp_path: Path) -> None:
    lists.items[PODS], lists.items[JOBS] = [claiming_pod("w-1", node="n")], []
    lists.items[DEVICES[CLAIM]] = [make_claim("w-1", "n", "gpu-0")]
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    capacity = supervisor.pools._capacities["card"]
    assert (capacity.units, capacity.orphaned) == (3, 1)
    supervisor.reflector.pod_seen(lists.items[PODS][0], gone=True)
    supervisor.reflector.device_seen(CLAIM, lists.items[DEVICES[CLAIM]][0], gone=True)
    supervisor.pools.refresh()
    assert supervisor._cluster.ledger.free("card") == 4


def test_a_claim_that_changes_without_its_devices_wakes_no_one(lists: Cluster, tmp_path: Path) -> None:
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    claim = make_claim("stranger", "n", "gpu-0")
    supervisor.reflector.device_seen(CLAIM, claim)
    supervisor.pools.changed.clear()
    supervisor.reflector.device_seen(CLAIM, {**claim, "spec": {"changed": True}})
    assert not supervisor.pools.changed.is_set()


def test_devices_matter_only_to_pools_with_a_class(lists: Cluster, tmp_path: Path) -> None:
    lists.items[POOLS] = [make_pool()]
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    supervisor.pools.changed.clear()
    supervisor.reflector.device_seen(SLICE, FOUR, gone=True)
    assert not supervisor.pools.changed.is_set()
    assert supervisor._cluster.ledger.free("cpu") == 4


def test_an_operator_that_does_not_read_devices_says_how_it_would(lists: Cluster, tmp_path: Path) -> None:
    supervisor = operator(lists, tmp_path, reads=False)
    supervisor.reflector.synchronize()
    assert supervisor._cluster.ledger.free("card") == 0
    reason, message = problem(supervisor)
    assert reason == "DevicesNotRead"
    assert "dynamicResourceAllocation.enabled=true" in message


def test_a_cluster_without_the_api_works_and_says_what_it_lacks(lists: Cluster, tmp_path: Path) -> None:
    lists.items[POOLS].append(make_pool())
    lists.serves = False
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    assert supervisor._cluster.ledger.free("cpu") == 4
    assert supervisor._cluster.ledger.free("card") == 0
    reason, message = problem(supervisor)
    assert reason == "NoDeviceApi"
    assert "resource.k8s.io/v1" in message
    assert "Kubernetes 1.34" in message


def test_a_cluster_that_gains_or_loses_the_api_is_noticed_by_the_next_list(lists: Cluster, tmp_path: Path) -> None:
    supervisor = operator(lists, tmp_path)
    for serves, free in ((False, 0), (True, 4), (False, 0)):
        lists.serves = serves
        supervisor.reflector.synchronize()
        assert supervisor._cluster.ledger.free("card") == free


def test_another_refusal_of_the_api_server_is_an_error_and_forgets_nothing(
    lists: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    each = lists.each

    def forbidden(path: str, label_selector: str = "") -> Iterator[Json]:
        if path == DEVICES[CLAIM]:
            raise ApiError(403, "Forbidden", "resourceclaims is forbidden")
        return each(path, label_selector)

    monkeypatch.setattr(lists, "each", forbidden)
    with pytest.raises(ApiError, match="forbidden"):
        supervisor.reflector.synchronize()
    supervisor.pools.refresh()
    assert supervisor._cluster.ledger.free("card") == 4


def test_a_class_that_does_not_exist_is_named(lists: Cluster, tmp_path: Path) -> None:
    lists.items[DEVICES[DEVICE_CLASS]] = [make_class(name="another")]
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    reason, message = problem(supervisor)
    assert reason == "NoDeviceClass"
    assert message.startswith(f"there is no DeviceClass {CLASS}; ")


def test_selectors_are_not_evaluated_again_for_claims(
    lists: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = operator(lists, tmp_path)
    supervisor.reflector.synchronize()
    looked: list[object] = []
    module = "heterps_operator.controller.capacity.devices.class_devices"
    monkeypatch.setattr(module, lambda *arguments: looked.append(arguments))
    supervisor.reflector.device_seen(CLAIM, make_claim("stranger", "n", "gpu-0"))
    supervisor.pools.refresh()
    assert supervisor._cluster.ledger.free("card") == 3
    assert looked == []
