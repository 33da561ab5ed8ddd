"""Provisioning rules of given schedules, against numbers computed by hand and against the exact provision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from experiments.rules import RULES, exact, literal_first_units, newton, static_ratio, static_server_ratio

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.search.path import Stage
from heterps_planner.search.points import Choice
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

SPLIT: list[Stage] = [(0, 0, 0), (1, 1, 1)]  # embedding on cpu, dense on gpu


def hand(floor: float = 1000, **changes: Any) -> tuple[Problem, Segments]:
    problem = Problem.from_json(document(minSamplesPerSecond=floor, **changes))
    return problem, build_segments(problem)


def chosen(choice: Choice | None) -> Choice:
    assert choice is not None
    return choice


def test_newton_gives_the_corrected_equations_12_and_13_rounded_up() -> None:
    """Floor 1500: embedding 0.0005 + 0.0005 / k <= 1/1500 needs k = 3; its transfer 0.0003 + 0.0001 / k is shorter.

    The dense stage, 0.0005 / k, needs 0.75, so 1. Cost: 3 * 0.5 + 2 = 3.5 $/h.
    """
    problem, segments = hand(1500)
    choice = chosen(newton(problem, segments, SPLIT))
    assert choice.pods == (3, 1)
    assert choice.throughput == pytest.approx(1500)
    assert choice.price == pytest.approx(3.5)


def test_newton_takes_the_slower_of_computing_and_transfer() -> None:
    """Erratum 4. Transfer 0.0002 + 0.0018 / k <= 1/1000 needs 2.25 pods, computing 0.0005 + 0.0005 / k only one."""
    value = document()
    value["layers"][0]["pools"]["cpu"] |= {"transferSeconds": 0.2, "transferParallelFraction": 0.9}
    problem = Problem.from_json(value)
    assert chosen(newton(problem, build_segments(problem), SPLIT)).pods == (3, 1)


def test_erratum_8_newton_stops_at_the_floor_where_the_exact_rule_uses_what_is_paid_for() -> None:
    """Floor 1050: two cpus give 1333 samples/s, one gpu 2000. Only the breakpoints above the floor show it.

    From 1050 on Newton's method finds k_1 = 1.105, rounded up 2: 3 $/h at 1333/s. With three cpus it is 3.5 $/h at
    1500/s, with four 4 $/h at 1600/s: per sample 2.25e-3, 2.333e-3, 2.5e-3.
    """
    problem, segments = hand(1050)
    choice = chosen(newton(problem, segments, SPLIT))
    assert choice.pods == (2, 1)
    assert choice.price / choice.throughput == pytest.approx(2.25e-3)
    assert chosen(exact(problem, segments, SPLIT)).pods == (2, 1)
    # A dear second stage changes this: its throughput is worth another cpu.
    problem = Problem.from_json(
        document(
            minSamplesPerSecond=1050,
            pools=[
                {"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 0.5, "maxUnits": 10},
                {"name": "gpu", "deviceType": "GPU", "pricePerUnitHour": 20.0, "maxUnits": 4},
            ],
        )
    )
    segments = build_segments(problem)
    by_newton, best = (chosen(rule(problem, segments, SPLIT)) for rule in (newton, exact))
    assert by_newton.pods == (2, 1)
    # (20 + 0.5 k) (0.0005 + 0.0005 / k) is least at k = sqrt(40) = 6.3: of 6 and 7 the first, 0.01341667.
    assert best.pods == (6, 1)
    assert best.price / best.throughput == pytest.approx(0.0134166667)
    assert by_newton.price / by_newton.throughput == pytest.approx(21 / (4000 / 3))


def test_newton_knows_what_cannot_keep_up_and_what_does_not_fit() -> None:
    problem, segments = hand(2000)  # the sequential part of the first stage alone takes 1/2000
    assert newton(problem, segments, SPLIT) is None
    problem, segments = hand(1900)  # 19 cpus, there are 10
    assert newton(problem, segments, SPLIT) is None


def test_newton_needs_a_floor() -> None:
    problem, segments = hand(0)
    with pytest.raises(ProblemError, match=r"minSamplesPerSecond: must be > 0"):
        newton(problem, segments, SPLIT)


def test_errata_3_and_4_the_printed_equation_13_asks_for_next_to_nothing() -> None:
    """Printed: min(0.05 / (1500 * 100 - 0.05), 0.01 / (1500 * 100 - 0.03)) = 6.7e-8 units, where 3 are needed."""
    problem, _ = hand(1500)
    assert literal_first_units(problem, SPLIT[0]) == pytest.approx(0.01 / 149999.97)
    assert literal_first_units(replace(problem, min_samples_per_second=1e-9), SPLIT[0]) == math.inf


def test_the_static_ratio_gives_six_cores_to_one_gpu() -> None:
    """One gpu and six cores: 0.0005 + 0.0005 / 6 per sample, 1714 samples/s, 5 $/h; enough for 1700."""
    problem, segments = hand(1700)
    choice = chosen(static_ratio(problem, segments, SPLIT))
    assert choice.pods == (6, 1)
    assert choice.price == pytest.approx(5.0)
    assert choice.throughput == pytest.approx(1 / (0.0005 + 0.0005 / 6))
    problem, segments = hand(1750)  # two gpus and twelve cores; there are ten
    assert static_ratio(problem, segments, SPLIT) is None
    problem, segments = hand(1750, pools=[
        {"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 0.5, "maxUnits": 12},
        {"name": "gpu", "deviceType": "GPU", "pricePerUnitHour": 2.0, "maxUnits": 4},
    ])  # fmt: skip
    assert chosen(static_ratio(problem, segments, SPLIT)).pods == (12, 2)


def with_servers(floor: float, cores_per_rate: float) -> tuple[Problem, Segments]:
    pools = [
        {"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 0.5, "maxUnits": 40},
        {"name": "gpu", "deviceType": "GPU", "pricePerUnitHour": 2.0, "maxUnits": 9},
    ]
    return hand(floor, pools=pools, parameterServer={"pool": "cpu", "coresPerSamplePerSecond": cores_per_rate})


def test_the_static_ratio_shares_its_cores_with_the_servers_and_the_other_one_does_not() -> None:
    """Servers of 0.002 cores per sample/s. 1 : 6 splits into 3 and 3, so servers sustain 1500; 1 : 6 : 6 gives 3000."""
    problem, segments = with_servers(1450, 0.002)
    shared = chosen(static_ratio(problem, segments, SPLIT))
    assert (shared.pods, shared.server_pods) == ((3, 1), 3)
    assert shared.throughput == pytest.approx(1500)
    assert shared.price == pytest.approx(5.0)
    separate = chosen(static_server_ratio(problem, segments, SPLIT))
    assert (separate.pods, separate.server_pods) == ((6, 1), 6)
    assert separate.price == pytest.approx(8.0)
    problem, segments = with_servers(1700, 0.002)
    assert chosen(static_ratio(problem, segments, SPLIT)).pods == (6, 2)
    assert chosen(static_server_ratio(problem, segments, SPLIT)).pods == (6, 1)


def test_the_server_ratio_needs_the_pool_of_the_servers() -> None:
    problem, segments = hand()
    with pytest.raises(ProblemError, match=r"problem\.parameterServer: is missing"):
        static_server_ratio(problem, segments, SPLIT)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_rule_beats_the_exact_one_or_breaks_floor_and_limits(rule: str) -> None:
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 4, 2, most_pods=200, pods=seed % 2 == 0, server="rate")
        problem = with_floor(problem, float(rng.uniform(0.05, 0.6)))
        segments = build_segments(problem)
        cut = int(rng.integers(1, 4))
        stages: list[Stage] = [(0, cut - 1, 0), (cut, 3, 1)]
        best, choice = exact(problem, segments, stages), RULES[rule](problem, segments, stages)
        if choice is None:
            continue
        found += 1
        assert best is not None
        assert choice.price / choice.throughput >= best.price / best.throughput * (1 - 1e-9)
        assert choice.throughput >= segments.floor * (1 - 2e-9)
        used = np.bincount([0, 1, segments.server_pool], [*choice.pods, choice.server_pods])
        assert (used <= segments.limit_T).all()
    assert found >= 8
