"""A job in several variants: each is planned, and the cheapest plan decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.plans.selection import Selection
from heterps_planner.scenarios.variants import Variant, choose_variant, read_problems


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
    return chosen({"version": 1, "precisions": given})


def chosen(file: dict[str, Any]) -> Plan | Infeasible:
    """What is chosen among the problems of a file."""
    problems = read_problems(file)
    variant, found = choose_variant(problems, {one: plan(problem) for one, problem in problems.items()})
    if isinstance(found, Plan):
        assert variant == Variant(name_of(found.precision), name_of(found.dense_exchange))
    return found


def name_of(selection: Selection | None) -> str:
    return "" if selection is None else selection.name


def test_the_cheapest_plan_decides_and_shows_the_figures_of_all() -> None:
    found = choose(bf16=0.4, fp64=2.0, fp32=1.0)
    assert isinstance(found, Plan)
    assert found.precision is not None
    assert found.precision.name == "bf16"
    assert {one.name: one.throughput for one in found.precision.candidates} == pytest.approx(
        {"fp64": 50, "fp32": 100, "bf16": 250}
    )
    assert [one.name for one in found.precision.candidates] == ["fp64", "fp32", "bf16"]
    written = found.to_json()
    assert written["precision"] == "bf16"
    assert [one["cost"] for one in written["precisions"]] == pytest.approx(
        [1e6 / 50 / 3600, 1e6 / 100 / 3600, written["cost"]]
    )


@pytest.mark.parametrize(("bf16", "wanted"), [(1.0, "fp32"), (0.995, "fp32"), (0.985, "bf16"), (1.2, "fp32")])
def test_what_measurements_cannot_tell_apart_is_a_tie_for_the_more_exact(bf16: float, wanted: str) -> None:
    found = choose(bf16=bf16, fp32=1.0)
    assert isinstance(found, Plan)
    assert name_of(found.precision) == wanted


def test_a_precision_without_a_plan_is_shown_with_the_reason() -> None:
    found = choose(floor=1_000, fp32=1.0, bf16=0.5)
    assert isinstance(found, Plan)
    assert name_of(found.precision) == "bf16"
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
    exact, other = problems
    whole = plan(problems[exact])
    assert isinstance(whole, Plan)
    slow, fast = replace(whole, throughput=200.0, cost=1.0), replace(whole, throughput=310.0, cost=2.0)
    met, _ = choose_variant(problems, {exact: slow, other: fast})
    missed, _ = choose_variant(problems, {exact: slow, other: replace(slow, cost=3.0)})
    assert (met, missed) == (Variant("bf16"), Variant("fp32"))


def test_a_problem_of_each_precision_is_checked_where_it_is() -> None:
    good = document(1.0)
    both = read_problems({"version": 1, "precisions": {"bf16": good, "fp32": good}})
    assert list(both) == [Variant("fp32"), Variant("bf16")]
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
        ({"version": 1, "denseExchanges": {}}, "problem.denseExchanges: must have a problem for each dense exchange"),
        (exchanges(Ring=good), "problem.denseExchanges: unknown dense exchange 'Ring'"),
        (
            {"version": 1, "precisions": {"fp32": exchanges(AllReduce={**good, "samples": 0})}},
            "problem.precisions.fp32.denseExchanges.AllReduce.samples: must be > 0",
        ),
        (exchanges(AllReduce={"version": 1, "precisions": {"fp32": good}}), "problem.denseExchanges.AllReduce"),
    ):
        with pytest.raises(ProblemError) as caught:
            read_problems(wrong)
        assert str(caught.value).startswith(words)


def test_every_problem_stays_what_it_is_alone() -> None:
    problems = read_problems({"version": 1, "precisions": {"fp32": document(1.0)}})
    assert problems == {Variant("fp32"): Problem.from_json(document(1.0))}
    assert read_problems(document(1.0)) == {Variant(): Problem.from_json(document(1.0))}


def exchanges(**problems: Any) -> dict[str, Any]:
    """A file with a problem of each dense exchange."""
    return {"version": 1, "denseExchanges": problems}


@pytest.mark.parametrize(
    ("all_reduce", "wanted"), [(1.2, "ParameterServer"), (0.995, "ParameterServer"), (0.9, "AllReduce")]
)
def test_the_cheaper_exchange_is_chosen_and_servers_in_a_tie(all_reduce: float, wanted: str) -> None:
    found = chosen(exchanges(AllReduce=document(all_reduce), ParameterServer=document(1.0)))
    assert isinstance(found, Plan)
    written = found.to_json()
    assert written["denseExchange"] == wanted
    assert [one["name"] for one in written["denseExchanges"]] == ["ParameterServer", "AllReduce"]
    assert "precision" not in written
    assert Selection.of_plan(written, "denseExchange", "denseExchanges") == found.dense_exchange


def test_each_precision_stands_with_its_cheaper_exchange() -> None:
    """The exchange is compared within each precision, and what is chosen there across them."""
    file = {
        "version": 1,
        "precisions": {
            "bf16": exchanges(ParameterServer=document(0.5), AllReduce=document(0.4)),
            "fp32": exchanges(ParameterServer=document(1.0), AllReduce=document(2.0)),
        },
    }
    found = chosen(file)
    assert isinstance(found, Plan)
    assert (name_of(found.precision), name_of(found.dense_exchange)) == ("bf16", "AllReduce")
    assert found.precision is not None
    assert found.dense_exchange is not None
    assert [one.throughput for one in found.precision.candidates] == pytest.approx([100, 250])
    assert [one.throughput for one in found.dense_exchange.candidates] == pytest.approx([200, 250])


def test_without_any_plan_every_variant_says_why() -> None:
    file = {
        "version": 1,
        "precisions": {
            "fp32": exchanges(ParameterServer=document(1.0, 5_000), AllReduce=document(2.0, 5_000)),
            "bf16": document(0.5, 5_000),
        },
    }
    found = chosen(file)
    assert isinstance(found, Infeasible)
    assert found.best_throughput == pytest.approx(1_600)
    assert found.message.startswith("no precision has a plan: fp32: no dense exchange has a plan: ParameterServer: ")
