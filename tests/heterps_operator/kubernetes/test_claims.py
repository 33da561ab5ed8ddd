"""Node requests of HeterPS pods reduce the units of a pool."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import pytest

from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.controller.stores.slimming import slim_pod
from heterps_operator.kubernetes.building.pods import build_pod
from heterps_operator.kubernetes.reading.claims import Charge, Claims, charge_of, claim_of, requests_of
from heterps_operator.kubernetes.reading.pools import pool_capacity, pool_limit, pool_status
from tests.heterps_operator.helpers.documents import (
    COORDINATOR,
    CPU_WORKER,
    GPU_WORKER,
    NOW,
    POOLS,
    make_job,
    observed,
    pod_of,
)
from tests.heterps_operator.helpers.nodes import condition, make_node, make_pool, pod_on, price_of

Json = dict[str, Any]

RESOURCES = {"cpu": "cpu", "v100": "nvidia.com/gpu"}


def core(cpu: str, *, sidecar: bool = False) -> Json:
    """An init container."""
    return {"resources": {"requests": {"cpu": cpu}}, **({"restartPolicy": "Always"} if sidecar else {})}


def store_of(*pods: Json, known: bool = True, resources: Mapping[str, str] = RESOURCES) -> PodStore:
    """Return a store with the pods of the job `a`."""
    store = PodStore()
    store.set_resources(resources)
    store.know_job("ml", "a", known=known)
    for pod in pods:
        store.put(pod)
    return store


def kept(pod: Json) -> Json:
    """Return the stored form of a pod."""
    return cast("Json", slim_pod(pod))


@pytest.mark.parametrize(("pods", "units"), [(0, 4), (1, 3), (10, 3), (11, 2), (40, 0), (50, 0)])
def test_coordinators_take_units_from_a_node_of_whole_cores(pods: int, units: int) -> None:
    store = store_of(*(pod_on("a", f"coordinator-{number}", "100m") for number in range(pods)))
    nodes = [make_node("a", "4"), make_node("b", "1")]
    assert pool_capacity(make_pool(), nodes, store.claimed()).units == units + 1
    assert pool_limit(make_pool(), pool_capacity(make_pool(), nodes, store.claimed())) == units + 1


def test_a_share_of_a_core_that_is_over_costs_nothing() -> None:
    store = store_of(pod_on("a", "coordinator", "100m"))
    capacity = pool_capacity(make_pool(), [make_node("a", "3920m")], store.claimed())
    assert (capacity.units, capacity.taken) == (3, 0)


def test_units_of_the_pool_itself_are_counted_by_the_ledger_and_those_of_another_one_here() -> None:
    store = store_of(pod_on("a", "worker", "2", CPU_WORKER))  # of pool cpu
    nodes = [make_node("a", "4")]
    assert pool_capacity(make_pool(), nodes, store.claimed()).units == 4
    other = make_pool()
    other["metadata"]["name"] = "other"
    assert pool_capacity(other, nodes, store.claimed()).units == 2
    cards = make_pool(deviceType="GPU", resourceName="nvidia.com/gpu")
    assert pool_capacity(cards, [make_node("a", cards="8")], store.claimed()).units == 8


def test_the_pool_says_what_is_missing() -> None:
    store = store_of(pod_on("a", "coordinator", "100m"))
    capacity = pool_capacity(make_pool(), [make_node("a", "4")], store.claimed())
    status = pool_status(make_pool(), capacity, 0, price_of(make_pool()), now=NOW)
    assert status["capacityUnits"] == 3
    said = condition(status, "Ready")["message"]
    assert said == "1 node with 3 units besides 1 in use by other HeterPS pods, such as coordinators"


@pytest.mark.parametrize(
    ("spec", "cores"),
    [
        ({}, "0.1"),
        ({"initContainers": [core("2"), core("500m", sidecar=True), core("1"), {}]}, "2"),
        ({"initContainers": [core("500m", sidecar=True), core("2")]}, "2.5"),
        ({"initContainers": [core("3", sidecar=True), core("1")]}, "4"),
        ({"initContainers": [core("3", sidecar=True)]}, "3.1"),
        ({"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}, "3"),
        ({"resources": {"requests": {"memory": "1Gi"}}, "initContainers": [core("1")]}, "1"),
        ({"resources": {"requests": {"cpu": "50m"}}, "overhead": {"cpu": "250m", "memory": "1Mi"}}, "0.3"),
        ({"overhead": {"cpu": "250m"}, "initContainers": [core("2")]}, "2.25"),
    ],
    ids=[
        "plain",
        "init",
        "sidecar before",
        "sidecar and init",
        "sidecar",
        "whole",
        "memory",
        "overhead",
        "init+",
    ],
)
def test_pods_request_what_the_scheduler_counts(spec: Json, cores: str) -> None:
    """`PodRequests` of k8s.io/component-helpers/resource."""
    assert requests_of(pod_on("a", "coordinator", "100m", **spec)["spec"]) == {"cpu": Decimal(cores)}


def test_what_is_no_pools_is_claimed_beside_it() -> None:
    worker = pod_on("a", "worker", "2", CPU_WORKER)  # its annotation claims four
    worker["spec"]["containers"].append({"resources": {"requests": {"cpu": "750m", "example.com/nic": "1"}}})
    charge = charge_of(kept(worker), RESOURCES)
    assert charge == Charge("cpu", "cpu", 2, 4)
    claim = claim_of(kept(worker), charge)
    assert claim is not None
    assert claim.amounts == {("cpu", "cpu"): 2, ("cpu", ""): Decimal("0.75"), ("example.com/nic", ""): 1}
    gpu = kept(observed(GPU_WORKER, phase="Running"))
    claim = claim_of(gpu, charge_of(gpu, RESOURCES))
    assert claim is not None
    assert (claim.node, claim.pool) == ("node-7", "v100")
    assert claim.amounts == {("nvidia.com/gpu", "v100"): 1, ("cpu", ""): 1}
    assert charge_of(kept(pod_on("a", "coordinator", "100m")), RESOURCES) is None
    assert charge_of(kept(worker), {}) is None, "its pool is not there"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_or_wait_claim_nothing(phase: str) -> None:
    pod = pod_on("a", "worker", "2", CPU_WORKER)
    assert claim_of(kept(pod), None) is not None
    ended = kept({**pod, "status": {"phase": phase}})
    assert claim_of(ended, None) is None
    assert charge_of(ended, RESOURCES) is None
    waiting = kept({**pod, "spec": {**pod["spec"], "nodeName": None}})
    assert claim_of(waiting, None) is None
    assert charge_of(waiting, RESOURCES) == Charge("cpu", "cpu", 2, 4)


def test_a_stranger_takes_what_it_has_on_a_node_and_no_units_of_a_pool() -> None:
    """Whatever its annotation claims."""
    stranger = pod_on("a", "stranger", "2", CPU_WORKER)
    del stranger["metadata"]["ownerReferences"]
    store = store_of(stranger, pod_on("b", "worker", "3", CPU_WORKER))
    assert store.occupied("ml", "a") == {"cpu": 3}
    assert store.charge(stranger) is None
    capacity = pool_capacity(make_pool(), [make_node("a", "4"), make_node("b", "4")], store.claimed())
    assert (capacity.units, capacity.taken) == (6, 2)
    del stranger["spec"]["nodeName"]
    store.put(stranger)
    assert pool_capacity(make_pool(), [make_node("a", "4")], store.claimed()).units == 4


def test_pods_of_a_job_that_nobody_knows_count_against_the_limit_only_as_far_as_they_have_a_place() -> None:
    """The job was deleted while no operator ran. Two jobs must not together get the units that its pods still hold."""
    left = [pod_on("a", "worker", "2", CPU_WORKER), pod_on("gone", "other", "2", CPU_WORKER)]
    waiting = pod_on("a", "waiting", "900", CPU_WORKER)
    del waiting["spec"]["nodeName"]
    store = store_of(*left, waiting, known=False)
    nodes = [make_node("a", "4"), make_node("b", "4", cordoned=True)]
    capacity = pool_capacity(make_pool(), nodes, store.claimed())
    assert (capacity.units, capacity.orphaned) == (2, 2)
    assert pool_limit(make_pool(), capacity) == 2
    assert pool_limit(make_pool(maxUnits=3), capacity) == 1
    autoscaled = make_pool(maxUnits=3, autoscaled=True)
    assert pool_limit(autoscaled, capacity) == 1
    status = pool_status(make_pool(), capacity, 0, price_of(make_pool()), now=NOW)
    assert "2 units belong to pods whose jobs are gone, until they end" in condition(status, "Ready")["message"]
    store.put(pod_on("a", "liar", "900", CPU_WORKER))  # more than its node has: no kubelet has accepted it
    assert pool_capacity(make_pool(), nodes, store.claimed()).orphaned == 4
    store.know_job("ml", "a")
    assert store.occupied("ml", "a")["cpu"] == 2 + 2 + 900 + 900
    assert pool_capacity(make_pool(), nodes, store.claimed()).orphaned == 0


def test_sums_are_those_of_the_pods_that_are_there_whatever_has_happened() -> None:
    random_numbers = random.Random(0)
    claims, there = Claims(), {}
    for _ in range(2000):
        name = ("ml", f"pod-{random_numbers.randrange(20)}")
        process = random_numbers.choice((COORDINATOR, CPU_WORKER))
        pod = pod_on(random_numbers.choice("ab"), name[1], f"{random_numbers.randrange(1, 300)}0m", process)
        charge = charge_of(kept(pod), RESOURCES)
        there[name] = claim_of(kept(pod), charge) if random_numbers.random() < 0.7 else None
        claims.note(name, there[name])
    sums: dict[str, dict[tuple[str, str], Decimal]] = {}
    for claim in there.values():
        if claim is not None:
            amounts = sums.setdefault(claim.node, {})
            for place, amount in claim.amounts.items():
                amounts[place] = amounts.get(place, Decimal(0)) + amount
    assert claims.by_node() == sums
    for name in there:
        claims.note(name, None)
    assert claims.by_node() == {}


def test_only_what_takes_units_away_is_news() -> None:
    store = store_of(pod_on("a", "worker", "2", CPU_WORKER))
    assert (store.claims_version, store.claims_version_beside) == (1, 0)
    coordinator = pod_on("a", "coordinator", "100m")
    store.put({**coordinator, "spec": {}})  # not scheduled yet
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
    spot = copy.deepcopy(cheap)
    spot["spec"] |= {"spot": {"interruptionsPerUnitHour": "0.002"}, "nodeSelector": {"kind": "k80-spot"}}
    assert weights(POOLS["v100"], spot)[1] == (100, "kind", "k80-spot"), "its loss would cost more than a card"
    free = copy.deepcopy(POOLS["v100"])
    free["spec"]["pricePerUnitHour"] = "0"
    assert weights(free) == [(100, "node.example.com/gpu", "v100")]
    assert "affinity" not in pod_of(COORDINATOR, pools=[POOLS["cpu"]])["spec"], "its nodes are told by nothing"
    assert "affinity" not in pod_of(GPU_WORKER, pools=POOLS.values())["spec"]


def test_pods_of_cores_leave_the_nodes_of_cards_to_their_processes() -> None:
    [term] = pod_of(CPU_WORKER, pools=POOLS.values())["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["weight"] == 100
    assert term["preference"] == {
        "matchExpressions": [{"key": "node.example.com/gpu", "operator": "NotIn", "values": ["v100"]}]
    }
    assert "affinity" not in pod_of(CPU_WORKER, pools=[POOLS["cpu"]])["spec"]
    own = copy.deepcopy(POOLS["v100"])
    own["metadata"]["name"], own["spec"]["deviceType"] = "cpu", "CPU"
    pod = build_pod(make_job(), own, CPU_WORKER, coordinator="http://10.0.0.7:7400", pools=[own, POOLS["v100"]])
    assert "affinity" not in pod["spec"], "its nodes are those with cards"
