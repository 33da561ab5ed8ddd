"""Plans: what another program wrote is read, or refused with a ValueError."""

from __future__ import annotations

import copy
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.state.plan import JobPlan, PlanOutcome

STAGE = {"name": "s", "pool": "cpu", "firstLayer": 0, "lastLayer": 0, "layers": ["a"], "units": 1, "pods": 1}
PLAN: dict[str, Any] = {"stages": [STAGE], "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1}}


def test_a_plan_is_read() -> None:
    plan = PlanOutcome.from_json(PLAN | {"throughput": 5}, 3).plan
    assert plan is not None
    assert (plan.summary, plan.throughput) == ("cpu x1 [a]", 5.0)


@pytest.mark.parametrize("document", [7, "x", None, [], [PLAN], {}, {"stages": 1}, {**PLAN, "parameterServer": []}])
def test_a_document_that_is_no_plan_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="plan: "):
        PlanOutcome.from_json(document, 1)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "x", None, [], {}])
@pytest.mark.parametrize("field", ["firstLayer", "lastLayer", "units", "pods"])
def test_a_number_that_is_none_is_refused(field: str, value: Any) -> None:
    plan = copy.deepcopy(PLAN)
    plan["stages"][0][field] = value
    with pytest.raises(ValueError, match=r"plan: missing or malformed|invalid literal|cannot convert"):
        JobPlan.from_json(plan)


@pytest.mark.parametrize("change", [{"throughput": 10**400}, {"machine": []}, {"machine": 3}, {"machine": "x"}])
def test_a_part_of_another_type_is_refused(change: Any) -> None:
    with pytest.raises(ValueError, match="plan: missing or malformed"):
        JobPlan.from_json(PLAN | change)


def test_other_numbers_of_workers_have_another_price_and_no_prediction() -> None:
    plan = JobPlan.from_json(PLAN | {"throughput": 5})
    prices = {pool: Decimal("1.5") for pool in plan.units}
    each = dict.fromkeys(plan.units, 1)
    same = plan.with_workers(plan.pods, plan.servers, each, prices)
    assert same.throughput == plan.throughput
    more = plan.with_workers(tuple(count + 1 for count in plan.pods), plan.servers, each, prices)
    assert more.throughput is None
    assert more.cost_per_hour == 1.5 * sum(more.units.values())
    servers = replace(plan.servers, replicas=2)
    assert plan.with_workers(plan.pods, servers, each, prices).throughput is None
