"""Division of a batch: exact where required, and always conserving."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heterps_planner.balancing import (
    POLICIES,
    Worker,
    divide,
    divide_equal,
    divide_in_proportion,
    divide_optimal,
    divide_random,
    finish_time,
)
from heterps_planner.errors import ProblemError


@pytest.mark.parametrize("seed", range(500))
def test_the_optimal_division_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, quantum = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    quanta = int(rng.integers(0, 13))
    workers = [
        Worker(
            float(rng.choice([0.0, rng.uniform(0, 2)])),
            float(rng.choice([0.0, 1.0, rng.uniform(0.1, 3)])),
            least=int(rng.integers(0, 3)),
            most=None if rng.random() < 0.5 else int(rng.integers(3, 20)),
        )
        for _ in range(n)
    ]
    total = quanta * quantum
    feasible = [
        batches
        for batches in itertools.product(range(0, total + 1, quantum), repeat=n)
        if sum(batches) == total
        and all(w.least <= b <= (total if w.most is None else w.most) for w, b in zip(workers, batches, strict=True))
    ]
    if not feasible:
        with pytest.raises(ProblemError):
            divide_optimal(workers, total, quantum)
        return
    ours = divide_optimal(workers, total, quantum)
    assert tuple(ours) in feasible
    assert finish_time(workers, ours) == pytest.approx(
        min(finish_time(workers, b) for b in feasible), rel=1e-9, abs=1e-12
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 10), st.one_of(st.just(0.0), st.floats(1e-6, 10)), st.integers(0, 9), st.integers(0, 99)
        ),
        min_size=1,
        max_size=40,
    ),
    st.floats(0, 1),
    st.integers(1, 8),
)
@example([(5e-324, 0.0, 1, 0), (1e-300, 0.0, 1, 2)], 1.0, 1)  # one over their times is infinite
def test_all_policies_conserve_the_batch_and_keep_the_limits(
    drawn: list[tuple[float, float, int, int]], part: float, quantum: int
) -> None:
    workers = [Worker(o, s, low * quantum, (low + more) * quantum) for o, s, low, more in drawn]
    least, most = sum(w.least for w in workers), sum(w.most or 0 for w in workers)
    total = least + round(part * (most - least) / quantum) * quantum
    times = {}
    for policy in POLICIES:
        batches = divide(policy, workers, total, quantum)
        assert sum(batches) == total
        assert all(b % quantum == 0 and w.least <= b <= (w.most or 0) for w, b in zip(workers, batches, strict=True))
        times[policy] = finish_time(workers, batches)
    assert times["optimal"] <= min(times.values()) * (1 + 1e-9)


@pytest.mark.parametrize("n", [1, 7, 64, 1024])
def test_the_optimal_division_is_optimal_by_its_own_condition_at_any_size(n: int) -> None:
    """No worker would finish one more sample before the slowest finishes what it has."""
    rng = np.random.default_rng(n)
    workers = [
        Worker(float(o), float(s), most=int(m))
        for o, s, m in zip(rng.uniform(0, 0.03, n), rng.uniform(1e-3, 4e-3, n), rng.integers(100, 400, n), strict=True)
    ]
    total = int(min(128 * n, sum(w.most or 0 for w in workers)))
    batches = divide_optimal(workers, total)
    assert sum(batches) == total
    end = finish_time(workers, batches)
    for worker, batch in zip(workers, batches, strict=True):
        assert batch == worker.most or worker.overhead_seconds + worker.seconds_per_sample * (batch + 1) >= end - 1e-12


def test_speeds_of_many_orders_of_magnitude_are_divided_exactly() -> None:
    workers = [Worker(0.0, 1e-15), Worker(0.0, 1.0), Worker(1e6, 1e-3), Worker(0.0, 5e-324)]
    assert divide_optimal(workers[:3], 10**9) == [10**9, 0, 0]
    assert divide_optimal(workers, 10) == [0, 0, 0, 10]
    assert divide_optimal([Worker(0.0, 1e300), Worker(0.0, 1e300)], 10) == [5, 5]


def test_shares_in_proportion_go_by_largest_remainders_within_limits() -> None:
    free = [Worker(0.0, 1.0)] * 3
    assert divide_in_proportion([1, 1, 1], free, 11) == [4, 4, 3]
    assert divide_in_proportion([0.5, 0.3, 0.2], free, 7) == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert divide_in_proportion([8, 1, 1], [Worker(0.0, 1.0, most=5), Worker(0.0, 1.0), Worker(0.0, 1.0, 4)], 12) == [
        5,
        3,
        4,
    ]
    with pytest.raises(ProblemError, match=r"^balancing\.weights: must be one number > 0 for each worker"):
        divide_in_proportion([1, 0, 1], free, 11)


def test_a_random_division_is_the_same_for_the_same_seed_and_uniform_over_seeds() -> None:
    workers = [Worker(0.0, 1.0)] * 3
    drawn = np.array([divide_random(workers, 300, seed=seed) for seed in range(800)])
    assert drawn[7].tolist() == divide_random(workers, 300, seed=7)
    # Of three uniform shares each has the mean 1/3 and the standard deviation sqrt(1/18).
    np.testing.assert_allclose(drawn.mean(axis=0), 100, atol=9)
    np.testing.assert_allclose(drawn.std(axis=0), 300 / math.sqrt(18), rtol=0.08)


def test_workers_twice_as_fast_get_twice_as_much() -> None:
    assert divide_optimal([Worker(0, 1.0), Worker(0, 0.5), Worker(0, 0.5)], 100) == [20, 40, 40]


def test_an_equal_division_keeps_caps_and_gives_the_remainder_to_the_first() -> None:
    assert divide_equal([Worker(0, 1.0), Worker(0, 9.0), Worker(0, 1.0)], 11) == [4, 4, 3]
    assert divide_equal([Worker(0, 1.0, most=2), Worker(0, 1.0), Worker(0, 1.0)], 12) == [2, 5, 5]


@pytest.mark.parametrize(
    ("workers", "total", "quantum", "path"),
    [
        ([], 4, 1, "balancing.workers"),
        ([Worker(0, 1)], 4, 0, "balancing.quantum"),
        ([Worker(0, 1)], 5, 2, "balancing.globalBatchSize"),
        ([Worker(0, 1)], -1, 1, "balancing.globalBatchSize"),
        ([Worker(0, 1, most=3), Worker(0, 1, most=4)], 8, 1, "balancing.globalBatchSize"),
        ([Worker(0, 1, least=3), Worker(0, 1, least=3)], 5, 1, "balancing.globalBatchSize"),
        ([Worker(0, 1, least=3, most=3)], 4, 2, "balancing.workers[0]"),
        ([Worker(math.nan, 1)], 4, 1, "balancing.workers[0].overheadSeconds"),
        ([Worker(0, -1.0)], 4, 1, "balancing.workers[0].secondsPerSample"),
    ],
)
def test_an_impossible_division_is_refused(workers: list[Worker], total: int, quantum: int, path: str) -> None:
    with pytest.raises(ProblemError) as caught:
        divide_optimal(workers, total, quantum)
    assert caught.value.path == path


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        ProblemError, match=r"^balancing\.policy: must be one of optimal, bno, equal, random, is 'fair'"
    ):
        divide("fair", [Worker(0, 1)], 1)
