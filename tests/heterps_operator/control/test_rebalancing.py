"""Batch sizes follow the workers' speeds, without hidden state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heterps_operator.control.tuning.rebalancing import rebalance
from heterps_operator.measure.measurement import Figures, WorkerFigures, measured
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView, Observed, SubmitAllocation
from heterps_planner.balancing import Pace
from tests.heterps_operator.helpers.world import JOB_PLAN, World, make_job


def run_for(world: World, seconds: float, speeds: dict[str, float]) -> list[tuple[tuple[int, ...], ...]]:
    """Advance time; each worker takes `speeds` seconds per sample. Return the allocations made."""
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
    world = World(make_job(balancing={"policy": "equal"})).training()
    assert run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4}) == []


@pytest.mark.parametrize("policy", ["bno", "random"])
def test_policies_that_are_there_to_compare_with_keep_the_global_batch_too(policy: str) -> None:
    world = World(make_job(balancing={"policy": policy, "seed": 9})).training()
    made = run_for(world, 60, {"worker-0-0": 1e-4, "worker-0-1": 2e-4, "worker-1-0": 1e-4})
    assert len(made) == 1, "it is followed once, then all is as it says"
    assert [sum(stage) for stage in made[0]] == [512, 512]
    if policy == "bno":
        assert made[0][0] == (299, 213), "199 : 142 by the rule"


def test_bno_divides_by_what_is_measured_of_its_nodes() -> None:
    world = World(make_job(balancing={"policy": "bno"})).training()
    series = {"worker-0-0": (3e9, 4e8, 0.02), "worker-0-1": (1e9, 6e8, 0.01)}
    status, made = world.status, []
    for second in range(30):
        assert world.document is not None
        view = CoordinatorView.from_json(world.document)
        figures = {
            (member.stage, member.index): WorkerFigures(
                member.batch_size, 0.1, 1e-4 * member.batch_size, 0.05, *series.get(member.name, ())
            )
            for member in view.members
            if member.role == "worker" and member.stage is not None
        }
        view = measured(view, Figures(workers=figures))
        observed = Observed(world.time + second, status, coordinator=view)
        status, actions = rebalance(world.job, observed, status, JOB_PLAN)
        for action in actions:
            made.append(action.batches)
            for name, batch in zip(series, action.batches[0], strict=True):
                world.member(name)["batchSize"] = batch
    assert made == [((276, 236), (512,))], "230 : 197 by the rule, though both take the same time"


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


def run_beside(load: Callable[[float], float], *, noise: float = 0.03, seed: int = 0) -> tuple[int, float]:
    """Train for an hour with two equal workers, one of them under load.

    Args:
        load: seconds -> slowdown factor of that worker.
        noise: relative standard deviation of a step.
        seed: seed of the noise.

    Returns:
        Changes of the division, and steps relative to those of an equal division.
    """
    world, rng = World().training(), np.random.default_rng(seed)
    changes, steps, equal = 0, 0.0, 0.0
    for turn in range(1_000):
        world.time += 3.6
        factors = {"worker-0-0": load(3.6 * turn), "worker-0-1": 1.0, "worker-1-0": 0.1}
        times = {}
        for name, factor in factors.items():
            member = world.member(name)
            times[name] = (0.005 + member["batchSize"] * 1e-4) * factor
            member["computeSeconds"] = times[name] * float(np.exp(noise * rng.standard_normal()))
        steps += 1 / max(times.values())
        equal += 1 / max((0.005 + 256e-4) * factors[name] for name in ("worker-0-0", "worker-0-1"))
        changes += sum(isinstance(action, SubmitAllocation) for action in world.turn().actions)
    return changes, steps / equal


@pytest.mark.parametrize("seconds", [10, 15, 20])
def test_a_load_that_changes_as_often_as_it_is_looked_at_is_not_chased(seconds: int) -> None:
    changes, speed = run_beside(lambda t: 2.0 if t // seconds % 2 else 1.0)
    assert changes < 110, "half of what it would be without a memory of what they gave"
    assert speed > 0.94


def test_a_load_that_stays_for_a_while_is_followed() -> None:
    changes, speed = run_beside(lambda t: 2.0 if t // 120 % 2 else 1.0)
    assert 30 <= changes <= 75, "it comes or goes 30 times"
    assert speed > 1.1


@pytest.mark.parametrize(("noise", "most"), [(0.03, 0), (0.08, 0), (0.2, 5)])
def test_noise_alone_changes_next_to_nothing(noise: float, most: int) -> None:
    changes, speed = run_beside(lambda t: 1.0, noise=noise)
    assert changes <= most
    assert speed > 0.96


def test_a_lasting_change_is_followed_after_a_time_of_unrest() -> None:
    _, unrest = run_beside(lambda t: 2.0 if t // 15 % 2 else 1.0)
    _, lasting = run_beside(lambda t: 2.0 if t > 1800 or t // 15 % 2 else 1.0)
    assert lasting > unrest + 0.1


def test_the_pace_survives_a_restart_of_the_controller() -> None:
    pace = Pace().change({"a": 3, "b": 5}, 7.0)
    pace = pace.observe([{"a": (4, 2.0), "b": (4, 1.0)}], {})
    assert pace.gain == pytest.approx(1.5 / 2 - 1), "3 and 5 samples would take 1.5 and 1.25 s"
    assert pace.change({"a": 4, "b": 4}, 9.0).wait == 2
    status = Status(pace=pace)
    assert Status.from_json(status.to_json()) == status
