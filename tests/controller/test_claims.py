"""What pods of HeterPS request of nodes is not there for a pool's units."""

from __future__ import annotations

import copy
import random
from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.controller.store import PodStore
from heterps_operator.kubernetes.claims import Claims, claim_of
from heterps_operator.kubernetes.names import process_text
from heterps_operator.kubernetes.pools import pool_capacity, pool_limit, pool_status
from heterps_operator.values import ProcessSpec
from tests.controller.kubernetes.documents import COORDINATOR, CPU_WORKER, GPU_WORKER, POOLS, observed, pod_of
from tests.controller.test_pools import NOW, condition, make_node, make_pool

Json = dict[str, Any]


def pod_on(node: str, name: str, cpu: str, process: ProcessSpec = COORDINATOR, **spec: Any) -> Json:
    """A pod whose only container requests so many cores."""
    return {
        "metadata": {
            "namespace": "ml", "name": name, "labels": {"heterps.io/job": "a"},
            "annotations": {"heterps.io/process": process_text(process)},
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}], **spec},
        "status": {"phase": "Running"},
    }  # fmt: skip


@pytest.mark.parametrize(("pods", "units"), [(0, 4), (1, 3), (10, 3), (11, 2), (40, 0), (50, 0)])
def test_coordinators_take_units_from_a_node_of_whole_cores(pods: int, units: int) -> None:
    store = PodStore()
    for number in range(pods):
        store.put(pod_on("a", f"coordinator-{number}", "100m"))
    nodes = [make_node("a", "4"), make_node("b", "1")]
    assert pool_capacity(make_pool(), nodes, store.claimed()).units == units + 1
    assert pool_limit(make_pool(), pool_capacity(make_pool(), nodes, store.claimed())) == units + 1


def test_a_share_of_a_core_that_is_over_costs_nothing() -> None:
    store = PodStore()
    store.put(pod_on("a", "coordinator", "100m"))
    capacity = pool_capacity(make_pool(), [make_node("a", "3920m")], store.claimed())
    assert (capacity.units, capacity.taken) == (3, 0)


def test_units_of_the_pool_itself_are_counted_by_the_ledger_and_those_of_another_one_here() -> None:
    store = PodStore()
    store.put(pod_on("a", "worker", "2", CPU_WORKER))  # of pool cpu
    nodes = [make_node("a", "4")]
    assert pool_capacity(make_pool(), nodes, store.claimed()).units == 4
    other = make_pool()
    other["metadata"]["name"] = "other"
    assert pool_capacity(other, nodes, store.claimed()).units == 2
    cards = make_pool(deviceType="GPU", resourceName="nvidia.com/gpu")
    assert pool_capacity(cards, [make_node("a", cards="8")], store.claimed()).units == 8


def test_the_pool_says_what_is_missing() -> None:
    store = PodStore()
    store.put(pod_on("a", "coordinator", "100m"))
    capacity = pool_capacity(make_pool(), [make_node("a", "4")], store.claimed())
    status = pool_status(make_pool(), capacity, 0, now=NOW)
    assert status["capacityUnits"] == 3
    said = condition(status, "Ready")["message"]
    assert said == "1 node with 3 units besides the place of 1 that other pods of HeterPS take, such as coordinators"


def test_pods_claim_what_the_scheduler_counts() -> None:
    pod = pod_on(
        "a", "coordinator", "100m",
        initContainers=[
            {"resources": {"requests": {"cpu": "2"}}},
            {"resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
            {"resources": {"requests": {"cpu": "1"}}},
            {},
        ],
        overhead={"cpu": "250m", "memory": "1Mi"},
    )  # fmt: skip
    claim = claim_of(pod)
    assert claim is not None
    assert claim.requests == {"cpu": Decimal("2.75")}
    worker = claim_of(observed(GPU_WORKER, phase="Running"))
    assert worker is not None
    assert (worker.node, worker.pool) == ("node-7", "v100")
    assert worker.requests == {"nvidia.com/gpu": 1, "cpu": 1}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_wait_or_are_of_others_claim_nothing(phase: str) -> None:
    pod = pod_on("a", "coordinator", "100m")
    assert claim_of(pod) is not None
    assert claim_of({**pod, "status": {"phase": phase}}) is None
    assert claim_of({**pod, "spec": {**pod["spec"], "nodeName": None}}) is None
    foreign = copy.deepcopy(pod)
    del foreign["metadata"]["annotations"]
    assert claim_of(foreign) is None


def test_sums_are_those_of_the_pods_that_are_there_whatever_has_happened() -> None:
    random_numbers = random.Random(0)
    claims, there = Claims(), {}
    for _ in range(2000):
        name = ("ml", f"pod-{random_numbers.randrange(20)}")
        process = random_numbers.choice((COORDINATOR, CPU_WORKER))
        pod = pod_on(random_numbers.choice("ab"), name[1], f"{random_numbers.randrange(1, 30)}0m", process)
        there[name] = claim_of(pod) if random_numbers.random() < 0.7 else None
        claims.note(name, there[name])
    sums: dict[str, dict[tuple[str, str], Decimal]] = {}
    for claim in there.values():
        if claim is not None:
            amounts = sums.setdefault(claim.node, {})
            amounts["cpu", claim.pool] = amounts.get(("cpu", claim.pool), Decimal(0)) + claim.requests["cpu"]
    assert claims.by_node() == sums
    for name in there:
        claims.note(name, None)
    assert claims.by_node() == {}


def test_only_what_takes_units_away_is_news() -> None:
    store = PodStore()
    store.put(pod_on("a", "worker", "2", CPU_WORKER))
    assert (store.claims_version, store.claims_version_beside) == (1, 0)
    coordinator = pod_on("a", "coordinator", "100m")
    store.put({**coordinator, "spec": {}})  # not on a node yet
    assert store.claims_version_beside == 0
    store.put(coordinator)
    store.put({**coordinator, "status": {"phase": "Running", "podIP": "10.0.0.7"}})
    assert store.claims_version_beside == 1
    store.remove(coordinator)
    assert (store.claims_version, store.claims_version_beside) == (3, 2)
    assert store.claimed() == {"a": {("cpu", "cpu"): 2}}


def test_the_coordinator_leaves_the_nodes_of_pools_to_them() -> None:
    def weights(*pools: Json) -> list[tuple[int, str, str]]:
        spec = pod_of(COORDINATOR, pools=pools)["spec"]
        terms = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        found = []
        for term in terms:
            [expression] = term["preference"]["matchExpressions"]
            assert expression["operator"] == "NotIn"
            found.append((term["weight"], expression["key"], *expression["values"]))
        return found

    cheap = copy.deepcopy(POOLS["v100"])
    cheap["spec"] |= {"pricePerUnitHour": "0.605", "nodeSelector": {"zone": "a", "kind": "k80"}}
    assert weights(POOLS["cpu"], POOLS["v100"], cheap) == [
        (100, "node.example.com/gpu", "v100"), (62, "kind", "k80"), (62, "zone", "a"),
    ]  # fmt: skip
    free = copy.deepcopy(POOLS["v100"])
    free["spec"]["pricePerUnitHour"] = "0"
    assert weights(free) == [(100, "node.example.com/gpu", "v100")]
    assert "affinity" not in pod_of(COORDINATOR, pools=[POOLS["cpu"]])["spec"], "its nodes are told by nothing"
    assert "affinity" not in pod_of(GPU_WORKER, pools=POOLS.values())["spec"]
