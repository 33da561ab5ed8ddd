"""Measurements and trials, as values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_operator.measure.measurement import Figures, measured
from heterps_operator.state.status import Status
from heterps_operator.state.throughput import Sample, ThroughputSeries, mean, pause_seconds
from heterps_operator.state.trials import Pods, Trial, remember, spare
from heterps_operator.state.values import CoordinatorView

FLOOR = 11_000.0
TRIAL = Trial((2,), (3,), 10_000.0, 13_000.0, time=0.0, wait=600.0, in_vain=False, basis="x")


def series_of(rates: list[float], pause: float = 60.0) -> ThroughputSeries:
    """Measured every ten seconds, from the moment when all workers are at work."""
    series = ThroughputSeries(1)
    for number, rate in enumerate([0.0, 0.0, *rates]):  # the first ones are ignored
        series = series.observe(Sample(1_000.0 + 10 * number, rate, (rate,)), pause)
    return series


# --- measurements -----------------------------------------------------------------------------------------------------


def test_first_steps_and_values_that_overlap_are_not_taken_in() -> None:
    series = ThroughputSeries(1)
    for second in range(61):
        series = series.observe(Sample(1_000.0 + second, float(second), (0.0,)), 60.0)
    assert [sample.rate for sample in series.samples] == [20.0, 30.0, 40.0, 50.0, 60.0]
    assert series.unsettle() == ThroughputSeries(1)


def test_a_coordinator_whose_clock_is_behind_its_predecessors_is_measured_from_its_first_figures() -> None:
    series = series_of([1.0] * 5)
    for number in range(5):
        series = series.observe(Sample(500.0 + 10 * number, 2.0, (2.0,)), 60.0)
    assert series.settled == 500.0
    assert [sample.rate for sample in series.samples] == [2.0] * 3  # after the first 20 s


def test_few_samples_are_kept_however_long_it_runs_and_however_rarely_it_is_looked_at() -> None:
    assert len(series_of([1.0] * 200).samples) == 18
    assert len(series_of([1.0] * 2000, pause=3_600.0).samples) == 18
    rare = ThroughputSeries(1)
    for number in range(9):
        rare = rare.observe(Sample(100.0 * number, 1.0, (1.0,)), 30.0)
    assert len(rare.samples) == len(rare.recent(30.0)) == 3


def test_a_pause_is_long_enough_to_measure() -> None:
    assert [pause_seconds(seconds) for seconds in (0.0, 2.0, 60.0)] == [30.0, 30.0, 60.0]


def test_a_figure_that_the_source_repeats_is_one_measurement() -> None:
    view = CoordinatorView.from_json({"phase": "Training", "generation": 3})
    found = measured(view, Figures(measured=123.0, generation=3, samples_per_second=5.0))
    assert (found.measured, found.samples_per_second) == (123.0, 5.0)
    once = series_of([5.0])
    assert once.observe(once.samples[-1], 60.0) == once


@pytest.mark.parametrize(
    ("rates", "missed"),
    [
        ([10_000.0, 10_100.0, 9_900.0], True),
        ([10_000.0, 10_100.0], False),  # too few
        ([14_000.0, 7_000.0, 9_000.0], False),  # too much noise
        ([14_000.0, 7_000.0, 9_000.0] * 4, False),
        ([13_000.0, 7_000.0, 9_000.0] * 6, True),  # but not forever
        ([8_000.0] * 5 + [11_500.0], False),  # it is over
        ([13_000.0] * 12 + [9_000.0] * 6, True),  # recently
    ],
)
def test_a_miss_is_more_than_noise_and_still_there(rates: list[float], missed: bool) -> None:
    assert series_of(rates).misses(FLOOR, 60.0) is missed


def test_noise_around_the_floor_is_seldom_a_miss() -> None:
    rng = np.random.default_rng(0)
    runs = [series_of(list(FLOOR * np.exp(0.1 * rng.standard_normal(18)))) for _ in range(400)]
    assert sum(series.misses(0.97 * FLOOR, 60.0) for series in runs) <= 0.03 * len(runs)


def test_what_can_be_relied_on_allows_for_noise_and_for_bad_times() -> None:
    assert series_of([12_000.0] * 18).least() == 12_000.0
    noisy = series_of([12_000.0, 14_000.0, 10_000.0] * 6)
    assert 11_000.0 < noisy.least() < mean(noisy.samples).value == pytest.approx(12_000.0)
    assert series_of([12_000.0] * 9 + [9_000.0] * 3 + [12_000.0] * 6).least() == 9_000.0


# --- memory -----------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_a_limit_and_are_forgotten_after_a_long_quiet_time() -> None:
    trials: tuple[Trial, ...] = ()
    now, waits = 0.0, []
    for _ in range(7):
        trials = remember(trials, replace(TRIAL, time=now), 60.0)
        waits.append(trials[-1].wait / 60)
        now = trials[-1].until
    assert waits == [10, 20, 40, 80, 160, 160, 160]
    assert len(trials) == 1
    [soon] = remember(trials, replace(TRIAL, time=trials[0].time + 3.9 * trials[0].wait), 60.0)
    [late] = remember(trials, replace(TRIAL, time=trials[0].time + 4.1 * trials[0].wait), 60.0)
    [other] = remember(trials, replace(TRIAL, time=now, basis="y"), 60.0)
    assert [trial.wait / 60 for trial in (soon, late, other)] == [160, 10, 10]


def test_few_trials_are_kept() -> None:
    trials: tuple[Trial, ...] = ()
    for number in range(20):
        trials = remember(trials, replace(TRIAL, fewer=(number,), more=(number + 1,), time=float(number)), 60.0)
    assert [trial.fewer for trial in trials] == [(number,) for number in range(12, 20)]


@pytest.mark.parametrize(
    ("wanted", "now", "rate", "floor", "allowed"),
    [
        (2, 100.0, 13_000.0, FLOOR, 3),  # it has just failed
        (2, 100.0, 20_000.0, FLOOR, 3),  # sufficient now, but perhaps only briefly
        (2, 300.0, 14_000.0, FLOOR, 3),  # 2 workers would reach 10,769 by the measurements
        (2, 300.0, 14_500.0, FLOOR, 2),  # and here 11,154
        (1, 300.0, 14_500.0, FLOOR, 2),  # but 1 was not measured
        (2, 600.0, 13_000.0, FLOOR, 2),  # another try
        (1, 600.0, 13_000.0, FLOOR, 1),
        (2, 100.0, 13_000.0, 9_000.0, 2),  # the floor is lower now
    ],
)
def test_what_failed_is_barred_for_a_while(wanted: int, now: float, rate: float, floor: float, allowed: int) -> None:
    found, in_the_way = spare([TRIAL], (wanted,), floor=floor, present=(3,), rate=rate, now=now)
    assert found == (allowed,)
    assert (in_the_way == TRIAL) == (allowed != wanted)


@pytest.mark.parametrize(
    ("fewer", "wanted", "present", "allowed"),
    [
        ((1,), (1,), (5,), (3,)),  # the median
        ((1,), (1,), (3,), (2,)),
        ((2, 2), (1, 2), (6, 2), (4, 2)),
        ((2, 2), (1, 3), (6, 3), (1, 3)),  # another stage has more: no measurement of that
        ((4, 1), (1, 1), (3, 2), (3, 2)),  # it settles, whatever the history
    ],
)
def test_units_are_given_up_as_far_as_nothing_is_in_the_way(
    fewer: Pods, wanted: Pods, present: Pods, allowed: Pods
) -> None:
    trial = replace(TRIAL, fewer=fewer, more=present)
    found, _ = spare([trial], wanted, floor=FLOOR, present=present, rate=12_000.0, now=1.0)
    assert found == allowed


def test_units_that_brought_nothing_wait_unless_the_job_becomes_slower() -> None:
    vain = replace(TRIAL, more_rate=10_100.0, in_vain=True)
    assert vain.bars_more((2,), FLOOR, 10_000.0, 599.0)
    assert not vain.bars_more((2,), FLOOR, 10_000.0, 600.0)
    assert not vain.bars_more((2,), FLOOR, 8_000.0, 300.0), "3 workers had 2,100 more than that"
    assert vain.bars_more((2,), FLOOR, 8_000.0, 299.0)
    assert not vain.bars_more((3,), FLOOR, 10_000.0, 10.0), "that is another number"
    assert not TRIAL.bars_more((2,), FLOOR, 10_000.0, 10.0), "it was not in vain"


def test_the_memory_is_kept_in_the_status_and_a_status_without_it_is_read() -> None:
    status = Status(series=replace(series_of([1.0, 2.0]), before=(3,), before_rate=4.0), trials=(TRIAL,))
    document = status.to_json()
    assert Status.from_json(document) == status
    for key in ("series", "trials", "pace"):
        del document[key]
    assert Status.from_json(document) == Status()
