"""The batch-size controller in closed loop: it finds the optimum, keeps it under noise, and follows changes."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from experiments.simulator import Proportional, Scenario, SimulatedWorker, Slowdown, simulate

from heterps_planner.balancing import BatchController, Worker, WorkerEstimate, divide_optimal, finish_time
from heterps_planner.errors import ProblemError


def unequal(seed: int, n: int = 8) -> Scenario:
    """Workers 1 to 4 times as slow as the fastest; one of them is 4 times slower still for a third of the steps."""
    rng = np.random.default_rng([seed, n])
    speeds = rng.permutation(np.linspace(1, 4, n))
    slowed = int(np.argsort(speeds)[n // 2])
    workers = tuple(
        SimulatedWorker(
            f"w{i}",
            float(rng.uniform(0.01, 0.03)),
            0.001 * float(speed),
            (Slowdown(200, 400, 4, 4),) if i == slowed else (),
        )
        for i, speed in enumerate(speeds)
    )
    return Scenario(workers, 128 * n, 600)


def alike(n: int, num_steps: int = 300) -> Scenario:
    return Scenario(tuple(SimulatedWorker(f"w{i}", 0.02, 0.001) for i in range(n)), 64 * n, num_steps)


@pytest.mark.parametrize("seed", range(6))
def test_the_controller_stays_within_3_percent_of_the_clairvoyant_optimum(seed: int) -> None:
    scenario = unequal(seed)
    run = simulate(scenario, BatchController(scenario.total), seed)
    assert run.regret < 0.03
    assert run.num_changes <= 20


def test_there_even_divisions_and_bno_take_twice_as_long_and_proportional_ones_never_rest() -> None:
    scenario = unequal(0)
    ours = simulate(scenario, BatchController(scenario.total), 0)
    for policy in ("equal", "bno"):
        assert simulate(scenario, BatchController(scenario.total, policy=policy), 0).regret > 1
    proportional = simulate(scenario, Proportional(scenario.total), 0)
    assert ours.regret < proportional.regret
    assert proportional.num_changes > 500


@pytest.mark.parametrize(("n", "num_steps"), [(2, 600), (16, 450), (64, 300)])
def test_it_does_so_with_few_and_many_workers(n: int, num_steps: int) -> None:
    scenario = dataclasses.replace(unequal(0, n), num_steps=num_steps)
    run = simulate(scenario, BatchController(scenario.total), 0)
    assert run.regret < 0.03
    assert run.num_changes <= 20


@pytest.mark.parametrize(("n", "num_steps"), [(1, 100), (2, 300), (8, 300), (64, 150), (1024, 12)])
def test_equal_workers_are_left_alone_under_noise(n: int, num_steps: int) -> None:
    scenario = alike(n, num_steps)
    run = simulate(scenario, BatchController(scenario.total), 11)
    assert run.num_changes == 0
    assert run.regret == 0


def test_a_thousand_unequal_workers_are_balanced_in_a_few_decisions() -> None:
    n = 1024
    pace = np.random.default_rng(2).uniform(0.001, 0.004, n).tolist()
    scenario = Scenario(tuple(SimulatedWorker(f"w{i}", 0.02, s) for i, s in enumerate(pace)), 128 * n, 12, noise=0.0)
    run = simulate(scenario, BatchController(scenario.total), 0)
    assert run.seconds[0] > 1.6 * run.clairvoyant_seconds[0]
    assert run.seconds[-1] < 1.06 * run.clairvoyant_seconds[-1]
    assert run.num_changes <= 3


def test_a_ramp_is_followed() -> None:
    drifting = SimulatedWorker("a", 0.02, 0.001, (Slowdown(50, 350, 1, 3), Slowdown(350, 500, 3, 3)))
    scenario = Scenario((drifting, *(SimulatedWorker(f"b{i}", 0.02, 0.001) for i in range(3))), 512, 500)
    run = simulate(scenario, BatchController(512), 4)
    even = simulate(scenario, BatchController(512, policy="equal"), 4)
    assert run.regret < 0.06 < 5 * 0.06 < even.regret
    assert run.num_changes <= 20


def test_rare_stragglers_do_not_move_the_batch_about() -> None:
    scenario = dataclasses.replace(unequal(1), straggler_probability=0.01, straggler_factor=4.0)
    run = simulate(scenario, BatchController(scenario.total), 1)
    assert run.regret < 0.03
    assert run.num_changes <= 20


def test_workers_that_come_and_go_keep_the_others_balanced() -> None:
    paces = (1e-3, 2e-3, 3e-3, 4e-3)
    workers = tuple(SimulatedWorker(f"w{i}", 0.02, s) for i, s in enumerate(paces))
    leaving = dataclasses.replace(workers[0], leaves=150)
    back = SimulatedWorker("new", 0.02, 1e-3, joins=300)
    scenario = Scenario((leaving, *workers[1:], back), 512, 450)
    run = simulate(scenario, BatchController(512), 8)
    assert run.regret < 0.04
    assert run.num_changes <= 12


def test_a_simulation_is_the_same_for_the_same_seed() -> None:
    scenario = dataclasses.replace(unequal(0), num_steps=60)
    first, second, other = (simulate(scenario, BatchController(scenario.total), seed) for seed in (1, 1, 2))
    assert first.seconds.tolist() == second.seconds.tolist()
    assert first.seconds.tolist() != other.seconds.tolist()


def test_the_clairvoyant_optimum_has_no_regret_and_without_noise_nobody_beats_it() -> None:
    scenario = dataclasses.replace(unequal(0), noise=0.0)
    run = simulate(scenario, BatchController(scenario.total), 0)
    assert (run.seconds >= run.clairvoyant_seconds * (1 - 1e-9)).all()
    speeds = [w.at(300) for w in scenario.workers]
    assert run.clairvoyant_seconds[300] == finish_time(speeds, divide_optimal(speeds, scenario.total))


def test_a_simulation_without_workers_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"^scenario\.workers: no worker is present at step 5"):
        Scenario((SimulatedWorker("a", 0.0, 1.0, leaves=5),), 8, 10)
    with pytest.raises(ProblemError, match=r"^scenario: needs steps and samples"):
        Scenario((), 8, 0)


def test_overhead_and_pace_are_told_apart_once_the_batches_differed() -> None:
    estimate = WorkerEstimate()
    for batch in (100, 100, 400, 400, 200, 300, 100, 400) * 3:
        estimate = estimate.observe(batch, 0.05 + 0.001 * batch)
    overhead, pace = estimate.fit()
    assert overhead == pytest.approx(0.05, rel=0.1)
    assert pace == pytest.approx(0.001, rel=0.02)


def test_one_batch_size_says_nothing_of_the_overhead() -> None:
    estimate = WorkerEstimate()
    for _ in range(9):
        estimate = estimate.observe(100, 0.15)
    assert estimate.fit() == pytest.approx((0.0, 0.0015), abs=1e-9)


def test_an_estimate_survives_a_document() -> None:
    estimate = WorkerEstimate().observe(10, 0.1).observe(10, 0.11).observe(10, 9.0)
    assert estimate.outliers == ((10, 9.0),)
    assert WorkerEstimate.from_json(json.loads(json.dumps(dataclasses.asdict(estimate)))) == estimate


def test_a_single_outlier_changes_nothing() -> None:
    controller = BatchController(200)
    observation = {"a": (100, 0.1), "b": (100, 0.1)}
    for _ in range(10):
        assert controller.decide(observation) is None
    assert controller.decide({"a": (100, 1.0), "b": (100, 0.1)}) is None
    assert controller.decide(observation) is None


def test_a_lasting_change_of_speed_is_detected() -> None:
    controller = BatchController(200)
    for _ in range(10):
        controller.decide({"a": (100, 0.1), "b": (100, 0.1)})
    assert controller.decide({"a": (100, 0.4), "b": (100, 0.1)}) is None
    assert controller.decide({"a": (100, 0.4), "b": (100, 0.1)}) == {"a": 40, "b": 160}


def test_a_worker_that_leaves_or_joins_gets_the_batch_divided_at_once() -> None:
    controller = BatchController(200)
    for _ in range(5):
        controller.decide({"a": (100, 0.1), "b": (100, 0.3)})
    assert controller.decide({"a": (100, 0.1)}) == {"a": 200}
    assert controller.decide({"a": (200, 0.2), "c": (0, 0.01)}) is None
    # A new worker has no estimate: it counts as average.
    assert controller.decide({"a": (150, 0.2), "c": (0, 0.01)}) == {"a": 100, "c": 100}


@pytest.mark.parametrize("policy", ["equal", "random"])
def test_policies_without_speeds_return_to_their_division(policy: str) -> None:
    controller = BatchController(200, policy=policy, seed=(3, 1))
    decided = [controller.decide({"a": (150, 0.1), "b": (50, 0.8)}) for _ in range(3)][-1]
    assert decided is not None
    assert sum(decided.values()) == 200
    assert controller.decide({name: (batch, 0.1) for name, batch in decided.items()}) is None
    if policy == "equal":
        assert decided == {"a": 100, "b": 100}
    else:
        assert decided["a"] not in (100, 150)


def test_the_rule_of_bno_moves_when_a_share_does() -> None:
    controller = BatchController(256, policy="bno")
    decided = [controller.decide({"a": (128, 0.2), "b": (128, 0.1)}) for _ in range(3)][-1]
    assert decided == {"a": 107, "b": 149}
    slower = {"a": (107, 0.2 * 107 / 128), "b": (149, 0.103 * 149 / 128)}
    assert [controller.decide(slower) for _ in range(3)][-1] is None


def test_fewer_samples_than_workers_leave_some_without() -> None:
    controller = BatchController(2)
    seen = {name: (int(name != "c"), 0.1) for name in "abc"}
    assert [controller.decide(seen) for _ in range(4)] == [None] * 4
    assert controller.decide({"a": (1, 0.1), "b": (0, 0.1), "c": (0, 0.1)}) is not None


def test_a_policy_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(ProblemError, match=r"^balancing\.policy: must be one of optimal, bno"):
        BatchController(4, policy="fair")


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_an_observation_without_a_positive_time_is_refused(seconds: float) -> None:
    with pytest.raises(ProblemError, match=r"^observations\.a: "):
        BatchController(4).decide({"a": (4, seconds)})


def test_no_observations_mean_no_decision() -> None:
    assert BatchController(4).decide({}) is None


def test_the_controller_needs_no_noise_to_settle() -> None:
    workers = [Worker(0.01, 0.001), Worker(0.02, 0.002), Worker(0.01, 0.004)]
    scenario = Scenario(
        tuple(SimulatedWorker(str(i), w.overhead_seconds, w.seconds_per_sample) for i, w in enumerate(workers)),
        300,
        60,
        noise=0.0,
    )
    run = simulate(scenario, BatchController(300), 0)
    assert run.seconds[-1] <= 1.05 * finish_time(workers, divide_optimal(workers, 300))
    assert 1 <= run.num_changes <= 5
