"""Jobs that are refused whatever their pools are cost nothing until they change themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.controller.supervisor import Supervisor
from tests.heterps_operator.helpers.job_world import KEY, PODS, STATE, World

Json = dict[str, Any]
Change = Callable[[Json], None]


def invalid(spec: Json) -> None:
    spec["training"]["globalBatchSize"] = -1


def without_checkpoints(spec: Json) -> None:
    del spec["checkpoint"]["path"]  # valid on one machine


def managed_by_another(spec: Json) -> None:
    spec["managedBy"] = "example.com/other"


def without_pool(spec: Json) -> None:
    spec["pools"][0]["name"] = "later"


def invalid_and_without_pool(spec: Json) -> None:
    invalid(spec)
    without_pool(spec)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def supervisor(world: World) -> Supervisor:
    return Supervisor(world.cluster)


def show(world: World, supervisor: Supervisor, change: Change) -> None:
    """Report the job with a changed spec, as its watch does."""
    job = copy.deepcopy(world.job)
    change(job["spec"])
    world.job["metadata"]["generation"] += 1
    job["metadata"]["generation"] = world.job["metadata"]["generation"]
    supervisor.reflector.job_seen(job)


def change_pools(world: World, supervisor: Supervisor) -> None:
    """Report a change of each pool, and a new one, and that units are free."""
    for pool in [*world.pools, {**world.pools[0], "metadata": {"name": "later", "uid": "later"}}]:
        changed = copy.deepcopy(pool)
        changed["spec"]["maxUnits"] += 1
        changed["metadata"]["generation"] = 2
        supervisor.reflector.pool_seen(changed)
    supervisor.wake_waiting()


def turns(supervisor: Supervisor) -> list[float | None]:
    """Give the job each turn that it is woken for, and return the pause after each."""
    pauses = []
    while supervisor.queue.known():
        key = supervisor.queue.take()
        assert key == KEY
        pauses.append(supervisor._turn(key))
        supervisor.queue.done(key, None)
    return pauses


@pytest.mark.parametrize("refused", [invalid, without_checkpoints, invalid_and_without_pool, managed_by_another])
def test_pools_and_units_do_not_wake_a_job_that_they_cannot_help(
    world: World, supervisor: Supervisor, refused: Change
) -> None:
    show(world, supervisor, refused)
    assert turns(supervisor) == [None], "nothing but its own change can help"
    if refused is not managed_by_another:
        assert world.condition("Planned")["reason"] == "InvalidSpec"
    world.server.requests.clear()
    change_pools(world, supervisor)
    assert turns(supervisor) == []
    assert world.server.requests == []
    show(world, supervisor, lambda spec: None)
    assert len(turns(supervisor)) == 1
    assert world.names(PODS) == {"flights-coordinator-1-1"}
    change_pools(world, supervisor)
    supervisor.reflector.pool_seen(world.pools[0])
    assert len(turns(supervisor)) == 1, "it heeds its pools again"


def test_a_job_that_a_pool_can_help_is_woken_by_it(world: World, supervisor: Supervisor) -> None:
    show(world, supervisor, without_pool)
    [pause] = turns(supervisor)
    assert pause is not None
    assert world.condition("Planned")["reason"] == "PoolNotFound"
    change_pools(world, supervisor)
    assert len(turns(supervisor)) == 1
    assert "PoolNotFound" not in {condition["reason"] for condition in world.status["conditions"]}


def test_the_state_of_an_invalid_job_is_read_once(world: World, supervisor: Supervisor) -> None:
    def worse(spec: Json) -> None:
        spec["training"]["globalBatchSize"] = -2

    for change in (invalid, worse, invalid):
        show(world, supervisor, change)
        assert turns(supervisor) == [None]
    assert [verb for verb, path in world.server.requests if path == STATE] == ["get"]


def test_an_invalid_job_with_an_earlier_spec_heeds_its_pools(world: World, supervisor: Supervisor) -> None:
    show(world, supervisor, lambda spec: None)
    turns(supervisor)
    successor = Supervisor(world.make_cluster())
    show(world, successor, invalid)
    [pause] = turns(successor)
    assert pause is not None, "it goes on with the spec of its state"
    assert world.condition("Planned")["reason"] == "InvalidSpec"
    change_pools(world, successor)
    assert len(turns(successor)) == 1


def test_a_text_that_utf_8_cannot_hold_is_told_escaped(world: World, supervisor: Supervisor) -> None:
    def odd(spec: Json) -> None:
        spec["data"]["format"] = "\ud800"
        spec["\udfff"] = 1

    show(world, supervisor, odd)
    assert turns(supervisor) == [None]
    message = world.status["message"]
    assert r"\ud800" in message
    assert r"\udfff" in message
    message.encode()
