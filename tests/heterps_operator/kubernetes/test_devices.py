"""Devices of ResourceSlices as units of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.kubernetes.reading.claims import ORPHANED
from heterps_operator.kubernetes.reading.devices import Offer, PoolDevices, class_devices, offers_of
from heterps_operator.kubernetes.reading.pools import Capacity, pool_capacity, pool_limit, pool_status
from tests.heterps_operator.helpers.devices import (
    CLASS,
    DRIVER,
    card_node,
    card_pool,
    make_claim,
    make_class,
    make_device,
    make_slice,
)
from tests.heterps_operator.helpers.documents import NOW
from tests.heterps_operator.helpers.nodes import condition, make_node, price_of

Json = dict[str, Any]

FOUR = make_slice("a", [make_device(f"gpu-{number}") for number in range(4)])


def counted(
    *slices: Json, device_class: Json | None = None, nodes: tuple[str, ...] = ("a", "b")
) -> dict[str, list[str]]:
    """Return the names of the devices that count, by node."""
    found = class_devices(device_class or make_class(), slices, nodes).by_node
    return {node: sorted(name for _, _, name in ids) for node, ids in found.items()}


def notes(*slices: Json, device_class: Json | None = None) -> tuple[str, ...]:
    return class_devices(device_class or make_class(), slices, ("a", "b")).notes


def capacity(devices: PoolDevices, nodes: list[Json], **spec: Any) -> Capacity:
    return pool_capacity(card_pool(**spec), nodes, None, devices)


def test_a_class_has_the_devices_that_its_selectors_choose_on_the_nodes_of_the_pool() -> None:
    mixed = make_slice("b", [make_device("old", "y"), make_device("new"), make_device("other", "z")])
    model = make_class(f'device.attributes["{DRIVER}"].model == "x"')
    assert counted(FOUR, mixed, device_class=model) == {"a": ["gpu-0", "gpu-1", "gpu-2", "gpu-3"], "b": ["new"]}
    assert counted(FOUR, mixed, device_class=model, nodes=("b",)) == {"b": ["new"]}


def test_only_the_newest_generation_of_a_driver_s_pool_counts_with_all_its_slices() -> None:
    slices = [
        make_slice("a", [make_device("gone")], generation=1),
        make_slice("a", [make_device("gpu-0")], generation=2, number=0),
        make_slice("a", [make_device("gpu-1")], generation=2, number=1),
        make_slice("a", [make_device("nic")], generation=1, driver="nic.example.com"),
    ]
    assert counted(*slices) == {"a": ["gpu-0", "gpu-1"]}
    assert counted(*reversed(slices)) == {"a": ["gpu-0", "gpu-1"]}


LEFT_OUT: list[tuple[Json, str]] = [
    (make_device("d", consumesCounters=[{"counterSet": "s", "counters": {}}]), "parts of a device that can be divided"),
    (make_device("d", allowMultipleAllocations=True), "several claims may share them"),
    (make_device("d", taints=[{"key": "dead", "effect": "NoExecute"}]), "the taint dead:NoExecute"),
    (make_device("d", taints=[{"key": "old", "effect": "NoSchedule"}]), "the taint old:NoSchedule"),
]  # fmt: skip


@pytest.mark.parametrize(("device", "words"), LEFT_OUT)
def test_a_device_that_is_no_whole_healthy_unit_does_not_count(device: Json, words: str) -> None:
    part = make_slice("a", [device, make_device("gpu-0")])
    assert counted(part) == {"a": ["gpu-0"]}
    [note] = notes(part)
    assert note.startswith("1 device is not counted: ")
    assert words in note


def test_a_taint_that_keeps_no_claims_away_costs_nothing() -> None:
    part = make_slice("a", [make_device("gpu-0", taints=[{"key": "warm", "effect": "None"}])])
    assert (counted(part), notes(part)) == ({"a": ["gpu-0"]}, ())


@pytest.mark.parametrize("where", [{"allNodes": True}, {"nodeSelector": {}}, {"perDeviceNodeSelection": True}])
def test_devices_that_belong_to_no_node_do_not_count(where: Json) -> None:
    part = make_slice("", [make_device("gpu-0"), make_device("gpu-1")], nodeName=None, **where)
    assert counted(part) == {}
    assert notes(part) == ("2 devices are not counted: their ResourceSlices name no node (spec.nodeName)",)


def test_a_selector_that_fails_costs_the_node_and_is_told_once() -> None:
    """The scheduler gives up a claim at the first error, whatever other devices there are."""
    model = make_class(f'device.attributes["{DRIVER}"].model == "x"')
    slices = [make_slice(node, [make_device("good"), {"name": "bare"}]) for node in ("a", "b")]
    whole = make_slice("c", [make_device("good")])
    found = class_devices(model, [*slices, whole], ("a", "b", "c"))
    assert set(found.by_node) == {"c"}
    [note] = found.notes
    assert f"a selector of DeviceClass {CLASS} fails at device bare of {DRIVER}: " in note
    assert note.endswith("; nothing on a, b counts")


def offers(*claims: Json, users: dict[str, tuple[str, int]] | None = None) -> Offer:
    devices = class_devices(make_class(), [FOUR], ("a",))
    return offers_of("card", devices, claims, users or {})["a"]


def test_devices_of_other_claims_are_taken() -> None:
    assert offers() == Offer(4, 4)
    stranger, shared = make_claim("stranger", "a", "gpu-0", "gpu-1"), make_claim("", "a", "gpu-2")
    assert offers(stranger, shared) == Offer(4, 1)
    assert offers(make_claim("waits", "a")) == Offer(4, 4)
    assert offers(make_claim("elsewhere", "b", "gpu-0")) == Offer(4, 4)


def test_a_claim_with_admin_access_only_watches() -> None:
    assert offers(make_claim("monitor", "a", "gpu-0", adminAccess=True)) == Offer(4, 4)


def test_devices_of_the_pool_s_own_pods_are_in_the_ledger_and_not_taken() -> None:
    claims = [make_claim("own", "a", "gpu-0"), make_claim("other", "a", "gpu-1"), make_claim("orphan", "a", "gpu-2")]
    users = {"own": ("card", 1), "other": ("other-pool", 1), "orphan": (ORPHANED, 0)}
    assert offers(*claims, users=users) == Offer(4, 2, orphaned=1)


def test_a_pod_has_no_more_devices_for_its_units_than_these() -> None:
    """A template of the same name that asks for more would otherwise hide devices from the ledger."""
    assert offers(make_claim("own", "a", "gpu-0", "gpu-1", "gpu-2"), users={"own": ("card", 1)}) == Offer(4, 2)


def test_the_capacity_is_what_ready_nodes_offer() -> None:
    devices = PoolDevices({"a": Offer(4, 3, 1), "b": Offer(2, 2), "c": Offer(2, 2)}, ("2 devices are this",))
    nodes = [card_node("a"), card_node("b", cordoned=True), card_node("c", ready="False"), make_node("d")]
    found = capacity(devices, nodes)
    assert (found.units, found.taken, found.orphaned) == (3, 1, 1)
    assert (found.ready, found.cordoned, found.not_ready) == (("a",), ("b",), ("c",))
    assert pool_limit(card_pool(maxUnits=2), found) == 1


STATUS: list[tuple[str, PoolDevices, list[Json], tuple[str, str, str], str]] = [
    ("there", PoolDevices({"a": Offer(4, 3)}, ("1 device is bad",)), [card_node("a")], ("True", "True", "NodesReady"),
     "1 node with 3 units besides 1 in use by claims of other pods; 1 device is bad"),
    ("none", PoolDevices(), [card_node("a")], ("False", "False", "NoResource"),
     f"the nodes with card=x (a) offer no device of DeviceClass {CLASS}; install its DRA driver, or correct "
     "spec.deviceClassName or spec.nodeSelector"),
    ("no nodes", PoolDevices(), [], ("False", "False", "NoNodes"), "no node with the labels card=x; label nodes"),
    ("problem", PoolDevices(problem=("NoDeviceApi", "because; do this")), [card_node("a")],
     ("False", "False", "NoDeviceApi"), "because; do this"),
    ("all left out", PoolDevices({}, ("4 devices are bad",)), [card_node("a")], ("False", "False", "NoResource"),
     "or spec.nodeSelector; 4 devices are bad"),
    ("all taken", PoolDevices({"a": Offer(1, 0)}), [card_node("a")], ("True", "False", "UnitsInUse"),
     "other pods use all units of the pool; 1 node with 0 units besides 1 in use by claims of other pods"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "nodes", "expected", "words"), [case[1:] for case in STATUS], ids=[case[0] for case in STATUS]
)
def test_the_status_says_why_there_are_no_units(
    devices: PoolDevices, nodes: list[Json], expected: tuple[str, str, str], words: str
) -> None:
    pool = card_pool()
    status = pool_status(pool, capacity(devices, nodes), 0, price_of(pool), now=NOW)
    found, ready = condition(status, "NodesFound"), condition(status, "Ready")
    assert (found["status"], ready["status"], ready["reason"]) == expected
    assert words in ready["message"]
