"""BalanceNet's rule as printed: its results, and that it does not conserve the global batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner.balancing import NodeMetrics, Worker, divide, divide_optimal, finish_time
from heterps_planner.balancing.balancenet import algorithm_1
from heterps_planner.errors import ProblemError

B = 256


def alike(n: int) -> list[float]:
    return [1.0] * n


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 64])
def test_identical_nodes_get_85_samples_each_however_many_they_are(n: int) -> None:
    sizes = algorithm_1(alike(n), alike(n), alike(n), B)
    assert sizes == [85] * n
    ratios = {1: 0.33, 2: 0.66, 4: 1.33, 8: 2.66, 16: 5.31, 64: 21.25}
    assert sum(sizes) / B == pytest.approx(ratios[n], abs=0.005)


@pytest.mark.parametrize("seed", range(100))
def test_the_batch_sizes_add_up_to_what_the_rule_says_and_not_to_the_batch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    operations, memory, latency = (rng.uniform(0.1, 10, n).tolist() for _ in range(3))
    sizes = algorithm_1(operations, memory, latency, B)
    network = n - sum(latency) / max(latency)
    assert math.isclose(sum(sizes) + n / 2, B * (n + network) / 3, abs_tol=n / 2 + 1e-6)
    assert B * n / 3 - n <= sum(sizes) <= B * (2 * n - 1) / 3


def test_the_sum_is_the_batch_by_accident() -> None:
    assert sum(algorithm_1(alike(3), alike(3), alike(3), 255)) == 255


def test_one_distant_node_moves_all_others() -> None:
    rng = np.random.default_rng(3)
    jitter = rng.uniform(0.99, 1.0, 8).tolist()
    assert set(algorithm_1(alike(8), alike(8), jitter, B)) <= {85, 86, 87}
    assert algorithm_1(alike(8), alike(8), [10.0, *alike(7)], B) == [85] + [162] * 7


@pytest.mark.parametrize(("n", "ratio", "late"), [(2, 0.72, 1.25), (4, 0.86, 1.56), (8, 0.93, 1.76), (16, 0.96, 1.87)])
def test_a_node_of_half_the_speed_is_hardly_relieved(n: int, ratio: float, late: float) -> None:
    sizes = algorithm_1([0.5, *[1.0] * (n - 1)], alike(n), alike(n), B)
    workers = [Worker(0.0, 2.0)] + [Worker(0.0, 1.0)] * (n - 1)
    assert sizes[0] / sizes[1] == pytest.approx(ratio, abs=0.006)
    shortest = sum(sizes) / (n - 0.5)
    assert finish_time(workers, sizes) / shortest == pytest.approx(late, abs=0.01)


def test_a_tenth_of_the_speed_makes_it_eight_times_slower_than_need_be() -> None:
    sizes = algorithm_1([0.1, *[1.0] * 7], alike(8), alike(8), B)
    assert sizes[0] / sizes[1] == pytest.approx(0.87, abs=0.01)
    assert sizes[0] * 10 / (sum(sizes) / 7.1) == pytest.approx(7.9, abs=0.1)


def test_many_nodes_of_very_different_speeds_get_nearly_the_same() -> None:
    assert set(algorithm_1(np.linspace(1, 8, 64).tolist(), alike(64), alike(64), B)) <= {84, 85, 86}


def test_nobody_gets_less_than_one_sample() -> None:
    assert algorithm_1([1.0, 1.0], [1.0, 1.0], [1.0, 1.0], 1) == [1, 1]


def test_in_a_job_its_proportions_are_kept_and_the_batch_too() -> None:
    workers = [Worker(0.0, 2.0), Worker(0.0, 1.0)]
    assert algorithm_1([0.5, 1.0], alike(2), alike(2), B) == [71, 99]
    assert divide("bno", workers, B) == [107, 149]  # 256 * 71 / 170 = 106.9
    assert divide_optimal(workers, B) == [85, 171]
    assert divide("bno", [Worker(0.0, 2.0, most=50), Worker(0.0, 1.0)], B) == [50, 206]


def test_what_is_measured_takes_the_place_of_the_times() -> None:
    metrics = [NodeMetrics(3e9, 4e8, 0.02), NodeMetrics(1e9, 6e8, 0.01)]
    workers = [Worker(0.0, 1.0, metrics=one) for one in metrics]
    assert algorithm_1([3.0, 1.0], [4.0, 6.0], [2.0, 1.0], B) == [115, 98]  # K .75 .25, MW .6 .4, NCW 0 .5
    assert divide("bno", workers, B) == [138, 118]  # 256 * 115 / 213 = 138.2


@pytest.mark.parametrize("field", ["operations_per_second", "memory_bytes", "latency_seconds"])
def test_what_is_not_measured_of_all_workers_is_left_out(field: str) -> None:
    known = NodeMetrics(3e9, 4e8, 0.02)
    other = NodeMetrics(1e9, 6e8, 0.01)
    cut = {field: None}

    def division(first: NodeMetrics, second: NodeMetrics) -> list[int]:
        return divide("bno", [Worker(0.0, 2.0, metrics=first), Worker(0.0, 1.0, metrics=second)], B)

    partly = division(known, replace(other, **cut))
    assert partly == division(replace(known, **cut), replace(other, **cut))
    assert partly != division(known, other)


def test_a_worker_that_takes_no_time_has_all_the_speed() -> None:
    assert divide("bno", [Worker(0.0, 0.0), Worker(0.0, 1.0)], 30) == [23, 7]  # 15 : 5


@pytest.mark.parametrize(
    ("operations", "memory", "latency", "base", "path"),
    [
        ([], [], [], 4, "balancing.workers"),
        ([1.0], [1.0], [1.0], 0, "balancing.globalBatchSize"),
        ([0.0], [1.0], [1.0], 4, "balancing.operations"),
        ([1.0], [0.0], [1.0], 4, "balancing.memoryUsed"),
        ([1.0], [1.0], [0.0], 4, "balancing.networkLatency"),
        ([1.0, -1.0], [1.0, 1.0], [1.0, 1.0], 4, "balancing.operations[1]"),
        ([1.0, 1.0], [1.0, math.nan], [1.0, 1.0], 4, "balancing.memoryUsed[1]"),
        ([1.0, 1.0], [1.0, 1.0], [1.0], 4, "balancing.networkLatency"),
    ],
)
def test_what_the_rule_divides_by_must_not_be_zero(
    operations: list[float], memory: list[float], latency: list[float], base: int, path: str
) -> None:
    with pytest.raises(ProblemError) as caught:
        algorithm_1(operations, memory, latency, base)
    assert caught.value.path == path
