"""Memory limits: what fits into a pod, what needs several, and the message if nothing fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_planner import Infeasible, Layer, LayerTimes, Plan, Pool, Problem, ProblemError, evaluate, plan
from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.memory import least_pods_for_memory, needed_bytes
from heterps_planner.model.segments import build_segments
from heterps_planner.search.sweep import minimise
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor, with_memory

BOTH = {"cpu": LayerTimes(0.002, 0.9), "gpu": LayerTimes(0.0002, 0.9)}


def towers(gpu_memory: float | None, *, batch: int = 100, micro_batches: int = 1, floor: float = 0.0) -> Problem:
    """Two layers: the first holds 10 bytes and 1 per sample, the second 40 bytes and 2 per sample."""
    return Problem(
        batch_size=1,
        samples=1e6,
        pools=(
            Pool("cpu", "CPU", 0.1, 20, memory_bytes_per_pod=10_000.0),
            Pool("gpu", "GPU", 0.5, 20, memory_bytes_per_pod=gpu_memory),
        ),
        layers=(
            Layer("a", BOTH, resident_bytes=10.0, activation_bytes=1.0),
            Layer("b", BOTH, resident_bytes=40.0, activation_bytes=2.0),
        ),
        min_samples_per_second=floor,
        global_batch_size=batch,
        micro_batches=micro_batches,
    )


def least(problem: Problem) -> list[list[float]]:
    table = least_pods_for_memory(problem, problem.pools[1])
    return [[float(table[0, 0]), float(table[0, 1])], [0.0, float(table[1, 1])]]


def test_the_least_pods_hold_the_share_of_a_batch() -> None:
    # 100 samples on k pods: a needs 10 + 100/k bytes, b 40 + 200/k, both 50 + 300/k.
    assert least(towers(100.0)) == [[2.0, 7.0], [0.0, 4.0]]  # 90, 16 and 30 samples fit: 100/90, 100/16, 100/30
    assert least(towers(400.0)) == [[1.0, 1.0], [0.0, 1.0]]
    assert least(towers(52.0)) == [[3.0, np.inf], [0.0, 17.0]]  # 42, less than one, and 6 samples fit
    assert least(towers(None)) == [[1.0, 1.0], [0.0, 1.0]]


def test_the_last_stage_of_several_holds_one_micro_batch_at_a_time() -> None:
    # The first stage may have its whole share in flight; a plan of one stage computes it at once.
    assert least(towers(100.0, micro_batches=4)) == [[2.0, 7.0], [0.0, 1.0]]


def test_needed_bytes_agree_with_the_least_pods() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        problem = with_memory(rng, random_problem(rng, 4, 2, fixed=True))
        for pool in problem.pools:
            table = least_pods_for_memory(problem, pool)
            have = np.inf if pool.memory_bytes_per_pod is None else pool.memory_bytes_per_pod
            for first in range(4):
                for last in range(first, 4):
                    pods = float(table[first, last])
                    assert needed_bytes(problem, first, last, pods) <= have or pods == np.inf
                    if pods == np.inf:
                        assert needed_bytes(problem, first, last, np.inf) > have
                    elif pods > 1:
                        assert needed_bytes(problem, first, last, pods - 1) > have


def test_no_stage_of_a_plan_exceeds_the_memory_and_more_memory_never_costs_more() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = with_memory(rng, random_problem(rng, 5, 3, most_pods=10, pods=True))
        segments = build_segments(problem)
        result = minimise(segments)
        wider = [
            pool if pool.memory_bytes_per_pod is None else replace(pool, memory_bytes_per_pod=2e3)
            for pool in problem.pools
        ]
        assert minimise(build_segments(replace(problem, pools=tuple(wider)))).rate <= result.rate * (1 + 1e-9)
        assert result.rate == pytest.approx(enumerate_schedules(segments).rate, rel=1e-8)
        if result.choice is None:
            continue
        for (first, last, pool), pods in zip(result.choice.stages, result.choice.pods, strict=True):
            memory = problem.pools[pool].memory_bytes_per_pod
            assert memory is None or needed_bytes(problem, first, last, pods) <= memory


def test_a_floor_that_only_memory_forbids_names_the_pool_and_what_is_missing() -> None:
    # 20 gpus reach the floor with both layers, but 51 bytes hold neither both layers nor 5 samples of b (40 + 10).
    problem = towers(49.0, floor=15_000.0)
    refused = plan(problem)
    assert isinstance(refused, Infeasible)
    assert refused.reason == "MemoryExceeded"
    assert refused.limiting_pools == ("gpu",)
    assert "a stage may take 49 bytes of a pod of gpu and needs" in refused.message
    assert 0 < refused.best_throughput < 15_000
    need = float(refused.message.split("needs ")[1].split(" bytes")[0])
    memory = replace(problem.pools[1], memory_bytes_per_pod=need)
    assert isinstance(plan(replace(problem, pools=(problem.pools[0], memory))), Plan)
    memory = replace(problem.pools[1], memory_bytes_per_pod=need * 0.98)
    assert isinstance(plan(replace(problem, pools=(problem.pools[0], memory))), Infeasible)


def test_a_layer_that_fits_nowhere_is_refused_with_the_missing_memory() -> None:
    problem = towers(30.0)
    cpu = replace(problem.pools[0], memory_bytes_per_pod=30.0)
    refused = plan(replace(problem, pools=(cpu, problem.pools[1])))
    assert isinstance(refused, Infeasible)
    assert refused.reason == "MemoryExceeded"
    assert refused.best_throughput == 0
    assert "a stage may take 30 bytes of a pod of cpu and needs" in refused.message


def test_without_memory_limits_an_unreachable_floor_is_not_blamed_on_memory() -> None:
    refused = plan(towers(100.0, floor=1e9))
    assert isinstance(refused, Infeasible)
    assert refused.reason == "ThroughputFloorUnreachable"


def test_stages_by_hand_must_fit() -> None:
    problem = towers(100.0)
    with pytest.raises(ProblemError, match=r"^scheduling\.stages\[0\]\.units: each pod of pool 'gpu' needs 110 bytes"):
        evaluate(problem, [{"pool": "gpu", "lastLayer": "b", "units": 5}])
    with pytest.raises(ProblemError, match=r"^scheduling\.stages\[1\]\.pool: .* 42 bytes .* no number of units"):
        evaluate(towers(41.0), [{"pool": "cpu", "lastLayer": "a"}, {"pool": "gpu"}])
    chosen = evaluate(problem, [{"pool": "gpu"}])
    assert isinstance(chosen, Plan)
    assert chosen.stages[0].units >= 7


def test_memory_fields_survive_json() -> None:
    value: dict[str, Any] = document()
    value["pools"][1]["memoryBytesPerPod"] = 16e9
    value["layers"][1] |= {"residentBytes": 1e9, "activationBytes": 4096}
    problem = Problem.from_json(value)
    assert problem.pools[1].memory_bytes_per_pod == 16e9
    assert (problem.layers[1].resident_bytes, problem.layers[1].activation_bytes) == (1e9, 4096.0)
    assert Problem.from_json(problem.to_json()) == problem
    assert with_floor(problem, 0.5).pools == problem.pools
