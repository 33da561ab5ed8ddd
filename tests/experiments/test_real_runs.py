"""Real runs as experiments: limits on processors, unequal pools, measured rewards, and what is said of the results."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import unequal
from experiments.control_groups import ControlGroups, unavailable
from experiments.executions import stored_problem
from experiments.framework import Row
from experiments.literal_rl import VARIANTS, ModelCosts, run
from experiments.measured_costs import MeasuredCosts
from experiments.measured_learning import learned_twice
from experiments.report_bayesian import with_papers_time
from experiments.report_real import agreement, measured_against, speeds_against
from experiments.unequal import CLUSTER, answers, limited, plan_text

from heterps_planner import Plan, Problem
from heterps_planner.model.segments import build_segments


def problem_of(model: str = "nce") -> Problem:
    return limited(stored_problem(model), CLUSTER)


def test_a_unit_with_a_part_of_a_core_takes_so_much_longer() -> None:
    whole = stored_problem("nce")
    layers = tuple(
        replace(
            layer,
            pools={
                name: replace(
                    t,
                    server_seconds=0.25 * (t.compute_seconds - t.compute_fixed_seconds),
                    server_fixed_seconds=t.compute_fixed_seconds,
                )
                for name, t in layer.pools.items()
            },
        )
        for layer in whole.layers
    )
    slow = limited(
        replace(whole, layers=layers), {"cpu": unequal.Offer(0.5, 1.0, 3), "accelerator": unequal.Offer(0.25, 2.0, 4)}
    )
    for before, after in zip(layers, slow.layers, strict=True):
        old, new = before.pools["accelerator"], after.pools["accelerator"]
        # A quarter of a core for the worker's own work; the servers, on `cpu`, have a half.
        fixed = old.compute_fixed_seconds  # which is all for servers
        expected = 2 * fixed + (old.compute_seconds - fixed) * (0.75 * 4 + 0.25 * 2)
        assert new.compute_seconds == pytest.approx(expected)
        assert new.compute_fixed_seconds == new.server_fixed_seconds == pytest.approx(2 * fixed)
        assert new.server_seconds == pytest.approx(2 * old.server_seconds)
        assert new.transfer_seconds == pytest.approx(4 * old.transfer_seconds)
        assert after.pools["cpu"].compute_seconds == pytest.approx(2 * before.pools["cpu"].compute_seconds)
    assert [(p.name, p.price_per_unit_hour, p.max_units) for p in slow.pools] == [
        ("cpu", 1.0, 3),
        ("accelerator", 2.0, 4),
    ]
    assert slow.parameter_server is not None
    assert whole.parameter_server is not None
    cost = whole.parameter_server.cores_per_sample_per_second
    assert slow.parameter_server.cores_per_sample_per_second == pytest.approx(2 * (cost or math.nan))


def test_a_method_that_cannot_keep_the_floor_has_its_most_and_says_so() -> None:
    problem = problem_of("ctrdnn")
    found = {answer.method: answer for answer in answers(problem, 0, ["optimal", "cpu", "gpu"])}
    assert [answer.status for answer in found.values()] == ["ok", "misses the floor", "ok"]
    cpu, optimal = found["cpu"].plan, found["optimal"].plan
    assert cpu is not None
    assert optimal is not None
    assert 0.5 * problem.min_samples_per_second < cpu.throughput < problem.min_samples_per_second <= optimal.throughput
    assert unequal.dollars(optimal, optimal.throughput) == pytest.approx(optimal.cost)


def test_each_plan_is_measured_once_and_impossible_ones_never() -> None:
    problem = problem_of()
    measured: list[str] = []

    def measure(plan: Plan) -> float:
        measured.append(plan_text(plan))
        return plan.throughput / 2

    costs = MeasuredCosts(problem, measure, most=2)
    cards, alternating = np.array([1, 1, 1, 1, 1]), np.array([1, 0, 1, 0, 1])  # three stages on two cards: impossible
    found = costs.of(np.array([cards, alternating, cards]))
    [plan] = [answer.plan for answer in answers(problem, 0, ["gpu"])]
    assert plan is not None
    assert found[0] == found[2] == pytest.approx(plan.cost_per_hour / (plan.throughput / 2))
    assert found[1] == 2 * found[0]
    assert costs.rate(alternating) == math.inf
    assert measured == [plan_text(plan)]
    assert not costs.exhausted()
    costs.rate(np.array([0, 1, 1, 1, 1]))
    assert costs.exhausted()
    assert costs.best is not None
    assert costs.best.tolist() == cards.tolist()


def test_measured_rewards_lead_to_the_plan_that_is_cheapest_in_fact() -> None:
    """Runs in which one stage is half as fast as predicted: the cost model's reward cannot know."""
    problem = problem_of()

    def measure(plan: Plan) -> float:
        return plan.throughput * (0.5 if len(plan.stages) == 1 else 1.0)

    (first, reached), (second, predicted) = learned_twice(
        problem, measure, seed=2, most=12, clock=iter([0, 5, 6]).__next__
    )
    assert (first["reward"], first["seconds"], second["reward"], second["seconds"]) == ("measured", 5, "cost model", 1)
    assert int(str(first["runs"])) >= 5
    assert second["runs"] == 0
    assert len(predicted.stages) == 1
    assert reached.cost_per_hour / measure(reached) < predicted.cost_per_hour / measure(predicted)


def test_algorithm_1_costs_plans_by_the_model_unless_told_otherwise() -> None:
    problem = problem_of()
    variant = replace(VARIANTS["best plan"], rounds=5)
    given = run(problem, variant, 3, costs=ModelCosts(build_segments(problem)))
    assert run(problem, variant, 3).mean_cost == given.mean_cost


def test_a_process_is_held_to_its_part_of_a_core() -> None:
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    with (
        ControlGroups() as limits,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        limits.limit(process.pid, 0.25)
        lines = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()
        [name] = {line.rpartition(":")[2] for line in lines if "heterps-limits" in line}
        [group] = [
            top / name[1:] for top in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")) if (top / name[1:]).exists()
        ]
        files = [group / file for file in ("cpu.max", "cpu.cfs_quota_us") if (group / file).exists()]
        assert int(files[0].read_text().split()[0]) == 2_500
        with pytest.raises(ValueError, match=r"at least 0\.1, is 0\.05"):
            limits.limit(process.pid, 0.05)
        process.kill()
        process.wait()
    assert not group.parent.exists()


def test_a_machine_without_control_groups_is_told_why(tmp_path: Path) -> None:
    assert "No such file" in unavailable(mount=tmp_path / "none")


def runs(**costs: tuple[float, float]) -> list[Row]:
    """Rows of one model and repeat: method -> predicted and measured cost; a negative one misses the floor."""
    return [
        {
            "model": "ctrdnn",
            "seed": 0,
            "method": method.replace("_", "-"),
            "status": "ok" if measured > 0 else "misses the floor",
            "plan": f"{predicted} {measured}",
            "predicted_cost": predicted,
            "measured_cost": abs(measured),
        }
        for method, (predicted, measured) in costs.items()
    ]


def test_what_is_measured_is_compared_with_rl_by_medians() -> None:
    rows = runs(rl_lstm=(1.0, 2.0), greedy=(1.5, 2.5), gpu=(1.2, 1.9), cpu=(0.5, -1.0))
    rows += [row | {"seed": 1, "measured_cost": 100.0} for row in runs(greedy=(1.5, 2.5))]
    rows += [row | {"seed": 2, "measured_cost": 2.6} for row in runs(greedy=(1.5, 2.5))]
    assert measured_against(rows, "greedy", "rl-lstm") == "30.0 %"
    assert measured_against(rows, "gpu", "rl-lstm") == "-5.00 %"
    assert measured_against(rows, "cpu", "rl-lstm") == "misses the floor of CTRDNN"


def test_pairs_of_plans_agree_unless_they_are_equal_within_five_percent() -> None:
    assert agreement(runs(rl_lstm=(1.0, 2.0), greedy=(1.5, 2.5), gpu=(1.2, 1.95))) == (2, 2)
    assert agreement(runs(rl_lstm=(1.0, 2.0), greedy=(1.5, 2.5), gpu=(1.2, 1.5))) == (2, 3)


def test_speeds_are_compared_within_a_repeat() -> None:
    rates: dict[str, tuple[float, ...]] = {"HeterPS": (10, 40, 90), "TensorFlow, one process": (10, 20, 30)}
    rows: list[Row] = [
        {"model": "ctrdnn1", "repeat": i, "system": system, "samples_per_second": rate}
        for system, values in rates.items()
        for i, rate in enumerate(values)
    ]
    assert speeds_against(rows, "TensorFlow, one process") == {"ctrdnn1": 2.0}
    assert speeds_against(rows, "TensorFlow, parameter servers") == {}


def test_runs_with_the_papers_time_replace_the_shorter_ones() -> None:
    cases = (("bayesian", 2), ("bayesian", 4), ("cpu", 2))
    short: list[Row] = [{"method": m, "model": "nce", "pools": t, "gap_percent": 5.0} for m, t in cases]
    longer: Any = [{"method": "bayesian", "model": "nce", "pools": 2, "gap_percent": 1.0}]
    rows = with_papers_time(short, longer)
    assert [(r["method"], r["pools"], r["gap_percent"], r.get("papers_time")) for r in rows] == [
        ("bayesian", 4, 5.0, None),
        ("cpu", 2, 5.0, None),
        ("bayesian", 2, 1.0, True),
    ]
