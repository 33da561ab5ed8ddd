"""Batch sizes follow the workers' speeds, without hidden state."""

from __future__ import annotations

import pytest

from heterps_operator.job import Balancing
from heterps_operator.status import Status
from heterps_operator.values import SubmitAllocation
from tests.controller.world import World, make_job


def run_for(world: World, seconds: float, speeds: dict[str, float]) -> list[tuple[tuple[int, ...], ...]]:
    """Let time pass; each worker takes `speeds` seconds per sample. Returns the allocations made."""
    made = []
    for _ in range(int(seconds)):
        world.time += 1
        for name, speed in speeds.items():
            member = world.member(name)
            member["computeSeconds"] = member["batchSize"] * speed
        made += [action.batches for action in world.settle() if isinstance(action, SubmitAllocation)]
    return made


def test_a_worker_of_half_the_speed_gets_half_the_samples() -> None:
    world = World().training()
    made = run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4})
    assert made
    assert made[-1][1] == (512,), "a stage of one worker keeps the whole batch"
    assert all(sum(stage) == 512 for batches in made for stage in batches)
    fast, slow = made[-1][0]
    assert abs(fast - 2 * slow) <= 4
    assert world.status.condition("Rebalanced").message.startswith("stage-0: 256+256 -> ")


def test_equal_workers_are_left_alone() -> None:
    world = World().training()
    assert run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 1.01e-4, "worker-1-0": 1e-4}) == []


def test_policy_equal_moves_nothing() -> None:
    world = World(make_job(balancing=Balancing(policy="equal"))).training()
    assert run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4}) == []


@pytest.mark.parametrize("policy", ["bno", "random"])
def test_policies_that_are_there_to_compare_with_keep_the_global_batch_too(policy: str) -> None:
    world = World(make_job(balancing=Balancing(policy=policy, seed=9))).training()
    made = run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4})
    assert len(made) == 1, "it is followed once, then all is as it says"
    assert [sum(stage) for stage in made[0]] == [512, 512]
    if policy == "bno":
        assert made[0][0] == (299, 213), "199 : 142 by the rule"


def test_no_decision_comes_before_the_interval_is_over() -> None:
    world = World().training()
    assert run_for(world, 9, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4}) == []


def test_a_missing_worker_stops_balancing_until_it_is_back() -> None:
    world = World().training()
    world.member("worker-0-1")["state"] = "lost"
    assert run_for(world, 40, {"worker-0-0": 1e-4, "worker-1-0": 1e-4}) == []


def test_the_observations_survive_a_restart_of_the_controller() -> None:
    world = World().training()
    run_for(world, 8, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4})
    assert world.status.speeds
    assert Status.from_json(world.status.to_json()) == world.status
