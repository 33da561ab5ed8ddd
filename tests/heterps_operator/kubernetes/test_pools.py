"""Capacity of a pool's nodes, and the pool's status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from heterps_operator.kubernetes.reading.pools import Capacity, pool_capacity, pool_limit, pools_apart
from tests.heterps_operator.helpers.nodes import condition, make_node, make_pool, status_of

NOW = 1_700_000_000.0
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("quantity", "per_pod", "units"),
    [("4", 1, 4), ("3920m", 1, 3), ("3920m", 2, 2), ("0.5", 1, 0), ("16", 5, 15), ("1k", 1, 1000)],
)
def test_a_node_gives_whole_pods(quantity: str, per_pod: int, units: int) -> None:
    assert pool_capacity(make_pool(unitsPerPod=per_pod), [make_node("a", quantity)]).units == units


def test_units_are_lost_on_every_node_not_once() -> None:
    assert pool_capacity(make_pool(unitsPerPod=2), [make_node("a", "3"), make_node("b", "3")]).units == 4


@pytest.mark.parametrize(
    ("tolerations", "tolerated"),
    [
        ([], False),
        ([{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}], True),
        ([{"key": "dedicated", "value": "ml"}], True),
        ([{"key": "dedicated", "operator": "Equal", "value": "web"}], False),
        ([{"key": "dedicated", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "other", "operator": "Exists"}], False),
    ],
)
def test_taints_are_tolerated_as_kubernetes_says(tolerations: list[dict[str, str]], tolerated: bool) -> None:
    node = make_node("a", taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])
    capacity = pool_capacity(make_pool(tolerations=tolerations), [node])
    assert (capacity.units == 4) is tolerated
    assert capacity.tainted == (() if tolerated else ("a (dedicated=ml:NoSchedule)",))


def test_a_taint_that_only_prefers_excludes_no_node() -> None:
    node = make_node("a", taints=[{"key": "slow", "effect": "PreferNoSchedule"}])
    assert pool_capacity(make_pool(), [node]).units == 4


def test_a_pool_without_selector_has_every_node_with_the_resource() -> None:
    pool = make_pool(deviceType="GPU", resourceName="nvidia.com/gpu")
    capacity = pool_capacity(pool, [make_node("a"), make_node("b", cards="8")])
    assert (capacity.units, capacity.ready, capacity.without_resource) == (8, ("b",), ())


def test_pools_are_apart_if_they_select_by_one_label_with_different_values() -> None:
    selectors = {
        "any": {},
        "cores": {"kind": "cpu"},
        "fast": {"kind": "cpu", "disk": "fast"},
        "slow": {"kind": "cpu", "disk": "slow"},
        "cards": {"card": "v100"},
        "other cards": {"card": "h100", "kind": "gpu"},
    }
    apart = pools_apart({name: make_pool(nodeSelector=selector) for name, selector in selectors.items()})
    assert apart == {
        "any": frozenset(),
        "cores": {"other cards"},
        "fast": {"slow", "other cards"},
        "slow": {"fast", "other cards"},
        "cards": {"other cards"},
        "other cards": {"cores", "fast", "slow", "cards"},
    }


READY = make_node("a")
CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]], int, tuple[str, str], str]] = [
    ("all is well", {}, [READY], 2, ("True", "NodesReady"), "1 node with 4 units"),
    ("none", {}, [], 0, ("False", "NoNodes"), "no node that offers cpu; "),
    ("no label", {"nodeSelector": {"disk": "fast"}}, [READY], 0, ("False", "NoNodes"), "with the labels disk=fast; "),
    (
        "no plug-in",
        {"deviceType": "GPU", "resourceName": "nvidia.com/gpu", "nodeSelector": {"card": "v100"}},
        [make_node("g", labels={"card": "v100"})],
        0,
        ("False", "NoResource"),
        "the nodes with card=v100 (g) offer no nvidia.com/gpu; install its device plugin",
    ),
    ("not ready", {}, [make_node("a", ready="Unknown")], 0, ("False", "NodesNotReady"), "not ready: a"),
    ("cordoned", {}, [make_node("a", cordoned=True)], 0, ("False", "NodesNotReady"), "cordoned: a"),
    (
        "tainted",
        {},
        [make_node("a", taints=[{"key": "gpu", "effect": "NoSchedule"}])],
        0,
        ("False", "TaintsNotTolerated"),
        "with a taint that the pool does not tolerate: a (gpu:NoSchedule)",
    ),
    ("some away", {}, [READY, make_node("b", ready="False")], 0, ("True", "NodesReady"), "4 units; not ready: b"),
    ("shrunk", {}, [READY], 6, ("False", "Shrunk"), "jobs hold 6 units, the limit is 32 and the nodes have 4"),
    ("lowered", {"maxUnits": 1}, [READY], 2, ("False", "Shrunk"), "jobs hold 2 units, the limit is 1"),
    ("small", {"unitsPerPod": 8}, [READY], 0, ("False", "NodesTooSmall"), "no node has the 8 units of one pod"),
    (
        "many",
        {},
        [make_node(f"n{i}", ready="False") for i in range(5)],
        0,
        ("False", "NodesNotReady"),
        "n0, n1, n2 and 2 more",
    ),
]


@pytest.mark.parametrize(
    ("spec", "nodes", "held", "expected", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_status_says_what_is_the_matter_and_fits_the_schema(
    spec: dict[str, Any], nodes: list[dict[str, Any]], held: int, expected: tuple[str, str], words: str
) -> None:
    status = status_of(make_pool(**spec), nodes, held)
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == expected
    assert words in ready["message"]
    assert status["observedGeneration"] == ready["observedGeneration"] == 3
    assert status["allocatedUnits"] == held
    crd = yaml.safe_load((ROOT / "crds" / "heterps.io_devicepools.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    Draft202012Validator(schema).validate(status)
    assert set(status) <= set(schema["properties"])


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    pool = make_pool()
    first = status_of(pool, [READY])
    second = status_of(pool | {"status": first}, [READY, make_node("b")], now=NOW + 60)
    third = status_of(pool | {"status": second}, [make_node("a", ready="False")], now=NOW + 120)
    times = [condition(status, "Ready")["lastTransitionTime"] for status in (first, second, third)]
    assert times == ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", "2023-11-14T22:15:20Z"]
    assert condition(second, "Ready")["message"] == "2 nodes with 8 units"


def test_the_same_world_gives_the_same_status_in_whatever_order_the_nodes_come() -> None:
    nodes = [make_node(f"n{i}", ready="True" if i % 2 else "False") for i in range(8)]
    status = status_of(make_pool(), nodes)
    assert status_of(make_pool() | {"status": status}, nodes[::-1], now=NOW + 30) == status


def test_the_limit_is_the_smaller_of_maxunits_and_what_the_nodes_have() -> None:
    assert pool_limit(make_pool(), Capacity(4)) == 4
    assert pool_limit(make_pool(maxUnits=3), Capacity(4)) == 3
    assert pool_limit(make_pool(autoscaled=True), Capacity(0)) == 32, "nodes come when pods wait for them"
