"""What-if settings change exactly the named fields, and invalid ones are explained."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.model.servers import ParameterServer
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Plan
from heterps_planner.scenarios.what_if import change, read_setting
from tests.heterps_planner.helpers.problems import document

HAND = Problem.from_json(document())


def changed(*settings: str) -> Problem:
    return change(HAND, [read_setting(text) for text in settings])


def test_settings_change_the_fields_that_they_name() -> None:
    cpu, gpu = HAND.pools
    assert changed("gpu.maxUnits=16") == replace(HAND, pools=(cpu, replace(gpu, max_units=16)))
    assert changed("cpu.pricePerUnitHour = 0.25") == replace(HAND, pools=(replace(cpu, price_per_unit_hour=0.25), gpu))
    assert changed("minSamplesPerSecond=1e3") == replace(HAND, min_samples_per_second=1000.0)
    assert changed("maxCostPerHour=7") == replace(HAND, max_cost_per_hour=7.0)
    assert changed("minSamplesPerSecond=none").min_samples_per_second == 0


def test_several_settings_make_one_problem() -> None:
    both = changed("gpu.maxUnits=8", "cpu.maxUnits=0", "gpu.maxUnits=9")
    assert [pool.max_units for pool in both.pools] == [0, 9]


def test_parameter_servers_can_be_given_changed_and_taken_away() -> None:
    fixed = changed("parameterServer.pool=cpu", "parameterServer.units=2")
    assert fixed.parameter_server == ParameterServer("cpu", units=2)
    rate = change(fixed, {"parameterServer.coresPerSamplePerSecond": 0.01})
    assert rate.parameter_server == ParameterServer("cpu", cores_per_sample_per_second=0.01)
    assert change(rate, {"parameterServer": None}).parameter_server is None


def test_a_ceiling_can_be_taken_away() -> None:
    assert change(changed("maxCostPerHour=7"), {"maxCostPerHour": None}) == HAND


def test_names_with_dots_and_equal_signs_are_pools_all_the_same() -> None:
    odd = replace(HAND, pools=(HAND.pools[0], replace(HAND.pools[1], name="gpu.a=b")))
    odd = replace(
        odd,
        layers=tuple(
            replace(layer, pools={{"gpu": "gpu.a=b"}.get(n, n): t for n, t in layer.pools.items()})
            for layer in odd.layers
        ),
    )
    assert change(odd, [read_setting("gpu.a=b.maxUnits=3")]).pools[1].max_units == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu.maxUnits", "must be NAME=VALUE, such as v100.maxUnits=16"),
        ("=3", "must be NAME=VALUE"),
        ("gpu.maxUnits=", "must be NAME=VALUE"),
        ("gpuu.maxUnits=3", "gpuu.maxUnits: unknown pool 'gpuu'; did you mean 'gpu'?"),
        ("gpu.maxUnit=3", "gpu.maxUnit: unknown field of a pool 'maxUnit'; did you mean 'maxUnits'?"),
        ("minSamples=3", "minSamples: unknown field 'minSamples'; did you mean 'minSamplesPerSecond'?"),
        ("maxUnits=3", "maxUnits: is a field of a pool; say which, such as cpu.maxUnits"),
        ("gpu.maxUnits=-1", "gpu.maxUnits: must be >= 0, is -1"),
        ("gpu.maxUnits=1.5", "gpu.maxUnits: must be a whole number, is 1.5"),
        ("gpu.maxUnits=many", "gpu.maxUnits: must be a number, is 'many'"),
        ("gpu.maxUnits=NaN", "gpu.maxUnits: must be a number, is 'NaN'"),
        ("gpu.maxUnits=1e999", "gpu.maxUnits: must be a number, is '1e999'"),
        ("gpu.maxUnits=true", "gpu.maxUnits: must be a number, is 'true'"),
        ("gpu.maxUnits=none", "gpu.maxUnits: must be a number, is none"),
        ("maxCostPerHour=0", "maxCostPerHour: must be > 0, is 0"),
        ("parameterServer=4", "parameterServer: can only be none; say parameterServer.units=N"),
        ("parameterServer.unit=4", "unknown field of the parameter servers 'unit'; did you mean 'units'?"),
        ("parameterServer.units=4", "parameterServer.units: is missing"),
    ],
)
def test_settings_that_cannot_be_made_are_explained(text: str, words: str) -> None:
    with pytest.raises(ProblemError, match=re.escape(words)):
        changed(text)


def test_of_several_settings_the_wrong_one_is_named() -> None:
    with pytest.raises(ProblemError, match=r"^cpu\.maxUnits: must be >= 0, is -2"):
        changed("gpu.maxUnits=3", "cpu.maxUnits=-2", "minSamplesPerSecond=5")


@pytest.mark.parametrize("field", ["cpu", "gpu"])
def test_a_shadow_price_is_what_one_more_unit_saves(field: str) -> None:
    """Solved again with one more unit, the cheapest plan per sample costs less by exactly the shadow price."""
    tight: Any = change(HAND, {"gpu.maxUnits": 1, "cpu.maxUnits": 2, "minSamplesPerSecond": None})
    before = plan(tight)
    assert isinstance(before, Plan)
    more = change(tight, {f"{field}.maxUnits": {"gpu": 2, "cpu": 3}[field]})
    after = plan(more)
    assert isinstance(after, Plan)
    hours = tight.samples / before.throughput / 3600
    assert before.shadow_prices.get(field, 0.0) * hours == pytest.approx(before.cost - after.cost, abs=1e-9)
