"""Prices that change while a job trains: it moves to the cheaper pool, and each price is charged while it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.kubernetes.reading.statuses import unix_seconds
from tests.cluster.cluster import POOL_LABEL
from tests.cluster.faults import COMPARED, held
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

CONFIG = "heterps-prices"


@pytest.fixture
def write(admin: Kubectl) -> Iterator[Callable[[str, str], None]]:
    """Write a price into the ConfigMap of prices, as whatever follows a market would."""

    def written(key: str, price: str) -> None:
        head = {"name": CONFIG, "namespace": NAMESPACE}
        admin.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {key: price}})

    yield written
    admin.try_to("delete", "configmap", CONFIG, f"--namespace={NAMESPACE}")


def test_a_job_moves_when_a_price_of_the_market_makes_it_pay_and_is_charged_for_what_was_valid(
    make: Make, write: Callable[[str, str], None], expected_model: Json
) -> None:
    spec = {**COMPARED, "scheduling": {}, "elasticity": {"cooldownSeconds": 1}}
    job = make("market", spec=spec, pool={"maxUnits": 2, "pricePerUnitHour": "0.04"})
    spot = job.add_pool(
        "spot",
        nodeSelector={POOL_LABEL: "accelerator"},
        priceFrom={"configMapKeyRef": {"name": CONFIG, "key": "accelerator-spot"}},
        spot={"interruptionsPerUnitHour": "0.002"},
    )

    def pool() -> Json:
        status: Json = job.kubectl.get("devicepool", spot).get("status") or {}
        return status

    write("accelerator-spot", "0.01")
    job.kubectl.apply(job.pool, *job.more_pools)
    wait_until("its price is known", lambda: pool().get("pricePerUnitHour") == "0.01", PATIENCE_SECONDS)
    wait_until("its units are there", lambda: pool().get("capacityUnits") == 2, PATIENCE_SECONDS)
    # Hours of training by the profile, so that a move pays, in a layer that more workers do not speed up.
    job.profile["layers"][0] |= {"computeSeconds": 15.0, "processorSeconds": 15.0, "parallelFraction": 0.0}
    with held(job):
        job.submit().wait_for_step(6)
        [worker] = job.pods("worker")
        plan = job.status()["plan"]
        assert plan["summary"] == f"{spot} x1 [tables..output]"
        [server] = job.pods("ps")  # its loss would cost more than its discount
        assert server["metadata"]["labels"]["heterps.io/pool"] == job.pool_name

        write("accelerator-spot", "not a price")
        wait_until("it is told", lambda: condition(pool())["reason"] == "PriceInvalid", PATIENCE_SECONDS)
        assert pool()["pricePerUnitHour"] == "0.01"
        write("accelerator-spot", "0.36")
        wait_until("it moves", lambda: job.told("Replanned"), PATIENCE_SECONDS, more=job.story)
        wait_until("it goes on", lambda: job.told("Resumed"), PATIENCE_SECONDS, more=job.story)
    [text] = job.told("Replanned")
    assert text.startswith(f"pool {spot} costs $0.36 per unit and hour after $0.01: the rest of training costs $")
    assert f"with {job.pool_name} x1 [tables..output], and the move $" in text
    plan = job.status()["plan"]
    assert (plan["revision"], plan["reason"]) == (2, "Replanned")
    assert plan["summary"] == f"{job.pool_name} x1 [tables..output]"
    status = job.wait_for_phase("Succeeded")
    assert (status["progress"]["step"], status["restarts"]) == (400, 0)
    assert_same_model(job.model(), expected_model)

    # The bill has a line for each price, and the change lies where the pool says.
    state = job.kubectl.get("heterpsjobstate", job.name)["data"]
    bill = json.loads(state["bill.json"])
    lines = {(line["pool"], line["pricePerUnitHour"]): line["unitMicroseconds"] for line in bill["pools"]}
    assert set(lines) == {(job.pool_name, "0.04"), (spot, "0.01"), (spot, "0.36")}
    began, changed = unix_seconds(worker["metadata"]["creationTimestamp"]), unix_seconds(pool()["priceSince"])
    assert began is not None
    assert changed is not None
    assert lines[spot, "0.01"] / 1e6 == pytest.approx(changed - began, abs=2)  # both are whole seconds
    total = sum(Decimal(price) * units for (_, price), units in lines.items()) / 3_600_000_000
    shown = {pool["name"]: [line["pricePerUnitHour"] for line in pool["prices"]] for pool in status["cost"]["pools"]}
    assert shown == {job.pool_name: ["0.04"], spot: ["0.01", "0.36"]}
    assert float(status["cost"]["total"]) == pytest.approx(float(total), abs=1e-6)


def condition(status: Json) -> Json:
    """The pool's condition about its price."""
    found: Json = next((c for c in status.get("conditions") or () if c["type"] == "PriceCurrent"), {"reason": ""})
    return found
