"""A job in several precisions: each is planned, and the cheapest plan decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.precisions import choose_precision, read_problems


def document(seconds: float, floor: float = 0.0) -> dict[str, Any]:
    """One layer that takes a unit so many seconds per batch of 100 samples; there are eight units."""
    times = {"cpu": {"computeSeconds": seconds, "parallelFraction": 1.0}}
    return {
        "version": 1, "batchSize": 100, "samples": 1e6, "minSamplesPerSecond": floor,
        "pools": [{"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 1.0, "maxUnits": 8}],
        "layers": [{"name": "mlp", "pools": times}],
    }  # fmt: skip


def choose(floor: float = 0.0, **seconds: float) -> Plan | Infeasible:
    """What is chosen if a batch takes so many seconds in each precision."""
    given = {name: document(each, floor) for name, each in seconds.items()}
    problems = read_problems({"version": 1, "precisions": given})
    return choose_precision(problems, {name: plan(problem) for name, problem in problems.items()})


def test_the_cheapest_plan_decides_and_shows_the_figures_of_all() -> None:
    found = choose(bf16=0.4, fp64=2.0, fp32=1.0)
    assert isinstance(found, Plan)
    assert found.precision == "bf16"
    assert {one.precision: one.throughput for one in found.candidates} == pytest.approx(
        {"fp64": 50, "fp32": 100, "bf16": 250}
    )
    assert [one.precision for one in found.candidates] == ["fp64", "fp32", "bf16"]
    written = found.to_json()
    assert written["precision"] == "bf16"
    assert [one["cost"] for one in written["precisions"]] == pytest.approx(
        [1e6 / 50 / 3600, 1e6 / 100 / 3600, written["cost"]]
    )


@pytest.mark.parametrize(("bf16", "chosen"), [(1.0, "fp32"), (0.995, "fp32"), (0.985, "bf16"), (1.2, "fp32")])
def test_what_measurements_cannot_tell_apart_is_a_tie_for_the_more_exact(bf16: float, chosen: str) -> None:
    found = choose(bf16=bf16, fp32=1.0)
    assert isinstance(found, Plan)
    assert found.precision == chosen


def test_a_precision_without_a_plan_is_shown_with_the_reason() -> None:
    found = choose(floor=1_000, fp32=1.0, bf16=0.5)
    assert isinstance(found, Plan)
    assert found.precision == "bf16"
    exact = found.to_json()["precisions"][0]
    assert exact == {"name": "fp32", "message": exact["message"]}
    assert "800 samples/s" in exact["message"]


def test_without_any_plan_the_fastest_precision_says_how_far_it_comes() -> None:
    found = choose(floor=5_000, fp32=1.0, bf16=0.5)
    assert isinstance(found, Infeasible)
    assert found.best_throughput == pytest.approx(1_600)
    assert found.message.startswith("no precision has a plan: fp32: ")
    assert "; bf16: " in found.message


def test_a_plan_below_the_floor_is_chosen_only_without_others() -> None:
    """The cores of one machine may keep the cheaper plan from its throughput."""
    problems = read_problems({"version": 1, "precisions": {n: document(1.0, 300) for n in ("fp32", "bf16")}})
    whole = plan(problems["fp32"])
    assert isinstance(whole, Plan)
    slow, fast = replace(whole, throughput=200.0, cost=1.0), replace(whole, throughput=310.0, cost=2.0)
    met = choose_precision(problems, {"fp32": slow, "bf16": fast})
    missed = choose_precision(problems, {"fp32": slow, "bf16": replace(slow, cost=3.0)})
    assert isinstance(met, Plan)
    assert isinstance(missed, Plan)
    assert (met.precision, missed.precision) == ("bf16", "fp32")


def test_a_problem_of_each_precision_is_checked_where_it_is() -> None:
    good = document(1.0)
    assert list(read_problems({"version": 1, "precisions": {"bf16": good, "fp32": good}})) == ["fp32", "bf16"]
    for wrong, words in (
        ({"version": 1, "precisions": {}}, "problem.precisions: must have a problem for each precision"),
        ({"version": 1, "precisions": []}, "problem.precisions: must be an object"),
        ({"version": 2, "precisions": {"fp32": good}}, "problem.version"),
        ({"version": 1, "precisions": {"fp23": good}}, "problem.precisions: unknown precision 'fp23'; did you mean"),
        (
            {"version": 1, "precisions": {"fp32": {**good, "samples": 0}}},
            "problem.precisions.fp32.samples: must be > 0",
        ),
        ({"version": 1, "precisions": {"fp32": good}, "pools": []}, "problem.pools: unknown field"),
    ):
        with pytest.raises(ProblemError) as caught:
            read_problems(wrong)
        assert str(caught.value).startswith(words)


def test_every_problem_stays_what_it_is_alone() -> None:
    problems = read_problems({"version": 1, "precisions": {"fp32": document(1.0)}})
    assert problems == {"fp32": Problem.from_json(document(1.0))}
