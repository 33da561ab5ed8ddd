"""Prices of pools while the operator runs: from which moment they are in force, and what happens without one."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.controller.pools import PoolKeeper
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import config_map_path, object_path
from tests.heterps_operator.helpers.job_world import World
from tests.heterps_operator.helpers.nodes import condition, make_node

CONFIG = config_map_path("heterps-system", "heterps-prices")
FROM = {"configMapKeyRef": {"name": "heterps-prices", "key": "cpu"}}


class Keeper:
    """The keeper of the pools of an operator, whose pool cpu has its price from a ConfigMap."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.cluster.nodes.put(make_node("a", "64"))
        self.edit(priceFrom=FROM)
        self.restart()

    def edit(self, **spec: Any) -> None:
        [pool] = [pool for pool in self.world.pools if pool["metadata"]["name"] == "cpu"]
        pool["spec"] |= spec
        self.world.cluster.pools.put(dict(pool))

    def restart(self) -> None:
        """Another operator takes over; it knows what the API server has."""
        cluster = self.world.make_cluster()
        cluster.nodes.put(make_node("a", "64"))
        for pool in self.world.cluster.pools.all():
            cluster.pools.put(pool)
        self.world.cluster = cluster
        self.problems = ProblemRecorder(self.world.server, cluster.clock, pause_seconds=0.0)
        self.keeper = PoolKeeper(cluster, self.problems, lambda: None)

    def write(self, price: str) -> None:
        self.world.server.put(CONFIG, data={"cpu": price})

    def look(self, seconds: float = 10.0) -> Any:
        """Return the status of the pool after a while."""
        cluster = self.world.cluster
        self.world.now += seconds
        self.keeper.refresh()
        self.keeper.read_prices()
        for pool in cluster.pools.all():
            self.world.server.put(f"{object_path(pool)}/status", **pool)  # the answer is the whole pool
            self.keeper._publish(pool)
        return (cluster.pools.get("", "cpu") or {})["status"]

    def steps(self) -> list[tuple[str, float]]:
        [history] = self.world.cluster.prices.histories(["cpu"]).values()
        return [(str(step.price), step.since - 1_700_000_000.0) for step in history]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path)


def test_a_price_is_in_force_from_the_moment_it_was_read(keeper: Keeper) -> None:
    keeper.write("0.05")
    keeper.look()
    keeper.write("0.03")
    status = keeper.look()
    assert (status["pricePerUnitHour"], status["priceSince"]) == ("0.03", "2023-11-14T22:13:40Z")
    assert condition(status, "PriceCurrent")["status"] == "True"
    keeper.look()
    assert keeper.steps() == [("0.05", 10.0), ("0.03", 20.0)]


def test_the_spec_s_price_may_be_edited_in_place(keeper: Keeper) -> None:
    keeper.edit(priceFrom={"configMapKeyRef": {"name": "heterps-prices", "key": "absent"}}, pricePerUnitHour="0.04")
    assert keeper.look()["pricePerUnitHour"] == "0.04"
    [pool] = [pool for pool in keeper.world.pools if pool["metadata"]["name"] == "cpu"]
    del pool["spec"]["priceFrom"]
    keeper.edit(pricePerUnitHour="0.06")
    status = keeper.look()
    assert (status["pricePerUnitHour"], condition(status, "PriceCurrent")["reason"]) == ("0.06", "InSpec")
    assert keeper.steps() == [("0.04", 10.0), ("0.06", 20.0)]


@pytest.mark.parametrize("price", ["cheap", "-1", "400", "0"])
def test_a_price_that_cannot_be_used_leaves_the_last_one_in_force(keeper: Keeper, price: str) -> None:
    keeper.write("0.05")
    keeper.look()
    keeper.write(price)
    status = keeper.look()
    assert status["pricePerUnitHour"] == "0.05"
    assert condition(status, "PriceCurrent")["status"] == "False"
    assert condition(status, "Ready")["status"] == "True"
    assert keeper.steps() == [("0.05", 10.0)]


def test_a_price_that_never_was_is_that_of_the_spec(keeper: Keeper) -> None:
    status = keeper.look()
    assert (status["pricePerUnitHour"], condition(status, "PriceCurrent")["reason"]) == ("0.04", "PriceMissing")


def test_what_is_wrong_with_a_price_is_an_event_on_the_pool(keeper: Keeper) -> None:
    keeper.write("0.04")
    keeper.look()
    keeper.write("cheap")
    keeper.look()
    keeper.look()
    waiting = keeper.problems._queue
    assert waiting.qsize() == 1, "once"
    found = waiting.get()
    assert found is not None
    assert (found.about["kind"], found.about["name"], found.complaint.reason) == ("DevicePool", "cpu", "PriceInvalid")
    assert found.complaint.message.endswith("is 'cheap'; correct it; until then $0.04 stays in force")


def test_the_next_operator_goes_on_with_the_price_of_the_one_before(keeper: Keeper) -> None:
    keeper.write("0.05")
    keeper.look()
    del keeper.world.server.objects[CONFIG]
    keeper.restart()
    status = keeper.look()
    assert (status["pricePerUnitHour"], status["priceSince"]) == ("0.05", "2023-11-14T22:13:30Z")


@pytest.mark.parametrize("status", [{"pricePerUnitHour": "x"}, {"pricePerUnitHour": "-1", "priceSince": "x"}, 7, None])
def test_a_price_in_a_status_that_others_have_written_is_not_trusted(keeper: Keeper, status: Any) -> None:
    [pool] = [pool for pool in keeper.world.cluster.pools.all() if pool["metadata"]["name"] == "cpu"]
    keeper.world.cluster.pools.put({**pool, "status": status})
    keeper.keeper.read_prices()
    found = keeper.world.cluster.prices.get("cpu")
    assert found is not None
    assert found.price == Decimal("0.04")


def test_a_config_map_is_read_once_for_all_pools_and_not_all_the_time(keeper: Keeper) -> None:
    other = {"configMapKeyRef": {"name": "heterps-prices", "key": "accelerator"}}
    for pool in keeper.world.cluster.pools.all():
        if pool["metadata"]["name"] != "cpu":
            keeper.world.cluster.pools.put({**pool, "spec": {**pool["spec"], "priceFrom": other}})
    for _ in range(10):
        keeper.look(seconds=5.0)
    reads = [path for verb, path in keeper.world.server.requests if verb == "get" and path == CONFIG]
    assert len(reads) == 5


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ApiError(403, "Forbidden", "no"), "PriceUnreadable"), (ApiError(0, "Unreachable", "no answer"), "InConfigMap")],
)
def test_an_api_server_that_refuses_leaves_the_price_in_force(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, error: ApiError, reason: str
) -> None:
    keeper.write("0.05")
    keeper.look()

    def refuse(path: str) -> None:
        raise error

    monkeypatch.setattr(keeper.world.server, "get", refuse)
    status = keeper.look()
    assert (status["pricePerUnitHour"], condition(status, "PriceCurrent")["reason"]) == ("0.05", reason)


def test_a_pool_that_is_deleted_is_forgotten(keeper: Keeper) -> None:
    keeper.look()
    for pool in keeper.world.cluster.pools.all():
        keeper.world.cluster.pools.remove(pool)
    keeper.keeper.read_prices()
    assert keeper.world.cluster.prices.get("cpu") is None
