"""The record of a job's plans: why each was made, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_operator.control.history import record_plan
from heterps_operator.state.history import MOST_RECORDS, PlanRecord
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import Sample, ThroughputSeries
from heterps_operator.state.values import CoordinatorView
from tests.heterps_operator.helpers.world import JOB_PLAN

FIRST = Status(plan=JOB_PLAN, plan_revision=1, plan_reason="PlanComputed")


def view(rate: float = 50_000.0, phase: str = "Training") -> CoordinatorView:
    return CoordinatorView.from_json({"phase": phase, "samplesPerSecond": rate})


def test_the_first_plan_needs_no_reason() -> None:
    [record] = record_plan(Status(), FIRST, None, 1_000.0).history
    assert record == PlanRecord(1, 1_000.0, "PlanComputed", "", JOB_PLAN.summary, 52_000.0, 2.54)


def test_another_plan_has_the_reason_why_the_one_before_was_dropped() -> None:
    first = record_plan(Status(), FIRST, None, 1_000.0)
    planned = first.with_condition("Planned", True, "PlanComputed", "plan 1", 1_000.0)
    dropped = planned.without_plan("the spec has changed")
    after = replace(dropped, plan=JOB_PLAN, plan_revision=2, plan_reason="Replanned")
    after = after.with_condition("Planned", True, "Replanned", "plan 2", 2_000.0)
    before, record = record_plan(dropped, after, None, 2_000.0).history
    assert before == first.history[0]
    assert (record.revision, record.time, record.message) == (2, 2_000.0, "the spec has changed")


def test_another_number_of_units_has_the_reason_of_the_change() -> None:
    first = record_plan(Status(), FIRST, None, 1_000.0)
    text = "measured 9,000 samples/s, the floor is 20,000: stage-0 on cpu: 2 -> 3 workers"
    after = replace(first, plan_revision=2, plan_reason="UnitsChanged")
    after = after.with_condition("Rescaled", True, "UnitsChanged", text, 2_000.0)
    assert record_plan(first, after, view(), 2_000.0).history[-1].message == text


@pytest.mark.parametrize(
    ("seen", "measured"),
    [(view(), 50_000.0), (view(0.0), None), (view(phase="Starting"), None), (None, None)],
)
def test_what_is_measured_belongs_to_the_plan_in_force(seen: CoordinatorView | None, measured: float | None) -> None:
    first = record_plan(Status(), FIRST, None, 1_000.0)
    [record] = record_plan(first, first, seen, 1_010.0).history
    assert record == replace(first.history[0], measured=measured)


def test_a_measurement_is_not_lost_when_the_coordinator_is_silent() -> None:
    first = record_plan(Status(), FIRST, None, 1_000.0)
    measured = record_plan(first, first, view(), 1_010.0)
    assert record_plan(measured, measured, None, 1_020.0) == measured


def test_a_mean_is_better_than_the_last_figure() -> None:
    samples = tuple(Sample(1_000.0 + 10 * i, rate, (rate,)) for i, rate in enumerate((40_000.0, 44_000.0, 42_000.0)))
    first = record_plan(Status(), FIRST, None, 1_000.0)
    for revision, expected in ((1, 42_000.0), (0, 50_000.0)):  # a series of another plan says nothing about this one
        now = replace(first, series=ThroughputSeries(revision, samples=samples))
        assert record_plan(now, now, view(), 1_040.0).history[-1].measured == pytest.approx(expected)


def test_only_the_last_plans_are_kept() -> None:
    status = Status()
    for revision in range(1, MOST_RECORDS + 11):
        after = replace(status, plan=JOB_PLAN, plan_revision=revision, plan_reason="UnitsChanged")
        status = record_plan(status, after, None, 1_000.0)
    assert [record.revision for record in status.history] == list(range(11, MOST_RECORDS + 11))


def test_a_plan_of_a_state_without_records_gets_none() -> None:
    assert record_plan(FIRST, FIRST, view(), 1_000.0).history == ()


def test_the_record_survives_storage_and_a_resumed_run() -> None:
    status = record_plan(Status(), FIRST, None, 1_000.0)
    again = Status.from_json(status.to_json())
    assert again.history == status.history
    assert again.begin_again(2_000.0).history == status.history
    assert Status.from_json({"phase": "Running"}).history == ()
