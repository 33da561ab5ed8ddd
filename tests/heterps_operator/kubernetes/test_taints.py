"""Which pods have to leave a node."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.kubernetes.reading.taints import departure
from heterps_operator.state.values import Departure
from tests.heterps_operator.helpers.nodes import make_node, pod_on

TAINT = {"key": "aws-node-termination-handler/spot-itn", "value": "1733", "effect": "NoSchedule"}


def leaves(node: dict[str, Any], *tolerations: dict[str, str]) -> Departure | None:
    return departure(pod_on("a", "worker", "1", tolerations=list(tolerations)), node)


def test_pods_stay_on_a_node_that_takes_pods() -> None:
    assert leaves(make_node("a")) is None
    assert leaves(make_node("a", ready="False")) is None, "Kubernetes says when such a node is lost"


def test_a_cordoned_node_is_left() -> None:
    assert leaves(make_node("a", cordoned=True)) == Departure("a", "is cordoned")


@pytest.mark.parametrize(
    ("taint", "why"),
    [
        (TAINT, "has the taint aws-node-termination-handler/spot-itn=1733:NoSchedule"),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"},
         "has the taint ToBeDeletedByClusterAutoscaler=1:NoSchedule"),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, "has the taint karpenter.sh/disrupted:NoSchedule"),
    ],
)  # fmt: skip
def test_a_node_that_will_be_removed_is_left_in_any_case(taint: dict[str, str], why: str) -> None:
    assert leaves(make_node("a", taints=[taint])) == Departure("a", why, announced=True)
    both = leaves(make_node("a", taints=[taint], cordoned=True))
    assert both is not None
    assert both.announced


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
        {"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"},
        {**TAINT, "effect": "PreferNoSchedule"},
    ],
)
def test_other_taints_say_nothing_of_the_pods_that_run_there(taint: dict[str, str]) -> None:
    assert leaves(make_node("a", taints=[taint])) is None


def test_a_pod_that_would_be_placed_there_again_stays() -> None:
    everything = {"operator": "Exists"}
    assert leaves(make_node("a", cordoned=True), everything) is None
    assert leaves(make_node("a", taints=[TAINT]), everything) is None
    assert leaves(make_node("a", cordoned=True), {"key": "dedicated", "operator": "Exists"}) is not None
