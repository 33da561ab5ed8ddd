"""From measured times to a profile: what must add up adds up."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from heterps_runtime.profiler.combine import LayerFacts, Measured, combine
from heterps_runtime.profiler.memory import LayerBytes
from heterps_runtime.profiler.readings import Line, Reading, fit_line
from heterps_runtime.profiler.rehearsal import Whole

BATCH = 4096


def _whole(
    workers: int, step: float, busy: float, spread: float = 0.01, processor: tuple[float, float, float] | None = None
) -> Whole:
    used = processor or (workers * step, 0.0, 0.0)
    roles = dict(zip(("workers", "servers", "coordinator"), used, strict=True))
    return Whole(workers, Reading(step, spread), Reading(busy, spread), 20, {}, roles, used[1])


def _layer(
    name: str, line: Line, rows: float = 0.0, dense: float = 0.0, spread: float = 0.01, transfer: Line | None = None
) -> LayerFacts:
    sizes = (BATCH // 4, BATCH // 2, BATCH)
    return LayerFacts(
        name,
        "Linear",
        8.0,
        16.0,
        12.0,
        LayerBytes(48.0, 24.0),
        {n: Reading(line.at(n), spread) for n in sizes},
        {n: Reading(rows * n / BATCH, spread) for n in sizes},
        Reading(dense, spread),
        {} if transfer is None else {n: Reading(transfer.at(n), spread) for n in (256, 1024)},
        {} if transfer is None else {n: Reading(1.5 * transfer.at(n), spread) for n in (256, 1024)},
    )


def _compute(profile: Mapping[str, Any], workers: int, batch: int = BATCH) -> float:
    """Seconds of a one-stage step by the cost model (docs/profiling.md)."""
    total = 0.0
    stage = profile["stage"]
    parts = [(stage["stageSeconds"], stage["stageFixedSeconds"], stage["stageParallelFraction"])]
    parts += [(la["computeSeconds"], la["computeFixedSeconds"], la["parallelFraction"]) for la in profile["layers"]]
    for seconds, fixed, fraction in parts:
        total += fixed + (seconds - fixed) * batch / profile["batchSize"] * (1 - fraction + fraction / workers)
    return total


def test_a_reading_is_median_and_relative_interquartile_range() -> None:
    reading = Reading.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert reading.seconds == 3.0
    assert reading.spread == pytest.approx(2 / 3)


def test_times_on_a_line_are_found_exactly() -> None:
    line = fit_line({n: 0.002 + 3e-6 * n for n in (1024, 2048, 4096)})
    assert line.fixed == pytest.approx(0.002)
    assert line.per_sample == pytest.approx(3e-6)


@pytest.mark.parametrize(
    "times", [{1024: 0.1, 4096: 1.0}, {1024: 2.0, 4096: 1.0}, {4096: 1.0}, {1: 0.5}, {1024: 0.0, 4096: 0.0}]
)
def test_neither_part_of_a_line_is_negative_and_the_largest_size_is_met(times: dict[int, float]) -> None:
    line = fit_line(times)
    assert line.fixed >= 0
    assert line.per_sample >= 0
    assert line.at(max(times)) == pytest.approx(times[max(times)])


@pytest.mark.parametrize("seed", range(50))
def test_layers_and_overhead_add_up_to_the_steps_of_one_and_of_two_workers(seed: int) -> None:
    draw = random.Random(seed)
    layers = [
        _layer(
            f"layer{i}",
            Line(draw.uniform(0, 1e-3), draw.uniform(1e-7, 1e-5)),
            rows=draw.uniform(0, 2e-3) if i % 2 else 0.0,  # the first layer has no rows: its fraction is alpha
            dense=draw.choice([0.0, draw.uniform(0, 2e-3)]),
        )
        for i in range(draw.randint(1, 8))
    ]
    busy = sum(la.busy[BATCH].seconds for la in layers) * draw.uniform(0.8, 1.3)
    step = busy + draw.uniform(0, 0.02)
    alone = _whole(1, step, busy)
    profile = combine(Measured(BATCH, layers, alone, None, 1))
    assert _compute(profile, 1) == pytest.approx(step)

    together = _whole(2, draw.uniform(0.5, 1.5) * step, draw.uniform(0.4, 0.5) * busy)
    profile = combine(Measured(BATCH, layers, alone, together, 1))
    assert _compute(profile, 1) == pytest.approx(step)
    fractions = [la["parallelFraction"] for la in profile["layers"]]
    assert all(0 <= f <= 1 for f in fractions)
    assert all(0 <= la["computeFixedSeconds"] <= la["computeSeconds"] for la in profile["layers"])
    stage = profile["stage"]
    assert 0 <= stage["stageFixedSeconds"] <= stage["stageSeconds"] + 1e-15
    if 0.001 < fractions[0] < 0.999:  # alpha met no limit
        assert _compute(profile, 2) == pytest.approx(together.step.seconds)


def test_more_servers_make_no_step_shorter_than_the_feed_takes() -> None:
    layers = [_layer("table", Line(0.0, 1e-6), rows=0.020), _layer("mlp", Line(0.0, 1e-6))]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    alone = _whole(1, busy + 0.015, busy)
    for feed, least in ((0.0, busy), (busy / 2, busy), (busy + 0.006, busy + 0.006), (1.0, busy + 0.015)):
        profile = combine(Measured(BATCH, layers, alone, None, 1, feed))
        assert _compute(profile, 1) == pytest.approx(busy + 0.015)
        divided = sum(la["serverSeconds"] for la in profile["layers"])  # by any number of servers
        assert _compute(profile, 1) - divided == pytest.approx(least)
        assert profile["calibration"]["feedSeconds"] == feed
    two = _whole(2, busy / 2 + 0.003 + 0.009, busy / 2)  # each feed has half the samples
    profile = combine(Measured(BATCH, layers, alone, two, 1, busy + 0.006))
    assert _compute(profile, 2) == pytest.approx(two.step.seconds)
    assert profile["layers"][0]["parallelFraction"] * profile["layers"][0]["computeSeconds"] == pytest.approx(
        busy / 2 + 0.006
    )


def test_servers_cost_what_they_spend_with_most_workers_and_layers_say_how_long_they_wait() -> None:
    layers = [_layer("table", Line(0.0, 1e-6), rows=0.002), _layer("mlp", Line(0.0, 1e-6))]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    alone = _whole(1, busy + 0.001, busy, processor=(busy, 0.004, 0.001))
    together = _whole(2, busy, busy / 2, processor=(busy, 0.006, 0.001))
    profile = combine(Measured(BATCH, layers, alone, None, 1))
    assert profile["parameterServer"] == {"processorSecondsPerSample": 0.004 / BATCH, "workers": 1}
    profile = combine(Measured(BATCH, layers, alone, together, 1))
    assert profile["parameterServer"] == {"processorSecondsPerSample": 0.006 / BATCH, "workers": 2}
    # Of the 2 ms of the server's work, 1 ms lies between the worker's own work and the end of the step.
    assert [la["serverSeconds"] for la in profile["layers"]] == pytest.approx([0.001, 0.0])
    first = profile["layers"][0]
    undivided = (first["computeSeconds"] - first["computeFixedSeconds"]) * (1 - first["parallelFraction"])
    assert undivided >= first["serverSeconds"] * (1 - 1e-12)


def test_two_workers_on_cores_of_their_own_give_alpha_one() -> None:
    layer = _layer("only", Line(0.0, 1e-5))
    whole = layer.busy[BATCH].seconds
    profile = combine(Measured(BATCH, [layer], _whole(1, whole, whole), _whole(2, whole / 2, whole / 2), 1))
    assert profile["layers"][0]["parallelFraction"] == pytest.approx(1.0)
    assert profile["stage"]["stageSeconds"] == 0.0
    assert profile["warnings"] == []


def test_two_workers_on_one_core_give_alpha_zero_and_a_warning() -> None:
    layer = _layer("only", Line(0.0, 1e-5))
    whole = layer.busy[BATCH].seconds
    profile = combine(Measured(BATCH, [layer], _whole(1, whole, whole), _whole(2, whole, whole), 1))
    assert profile["layers"][0]["parallelFraction"] == pytest.approx(0.0)
    assert "more units of this pool on this machine do not help" in profile["warnings"][0]


def test_dense_parameters_at_the_server_are_fixed_and_rows_are_not_shared_out() -> None:
    layers = [_layer("table", Line(0.0, 1e-6), rows=0.004), _layer("linear", Line(0.0, 1e-6), dense=0.003)]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    table, linear = combine(Measured(BATCH, layers, _whole(1, busy + 0.010, busy), None, 1))["layers"]
    own = 1e-6 * BATCH
    assert table["computeFixedSeconds"] == pytest.approx(0.0)
    assert table["computeSeconds"] == pytest.approx(own + 0.004)
    assert table["parallelFraction"] == pytest.approx(own / (own + 0.004))
    assert linear["computeFixedSeconds"] == linear["serverFixedSeconds"] == pytest.approx(0.003)
    assert linear["parallelFraction"] == pytest.approx(1.0)
    assert table["serverFixedSeconds"] == 0
    measured = Measured(BATCH, layers, _whole(1, busy + 0.010, busy), None, None, all_reduces=True)
    linear = combine(measured)["layers"][1]
    assert linear["computeFixedSeconds"] == pytest.approx(0.003)
    assert linear["serverFixedSeconds"] == 0, "replicas are updated by the worker itself"


def test_work_of_the_servers_that_nobody_waits_for_is_not_charged() -> None:
    layers = [_layer("table", Line(0.0, 1e-6), rows=0.004)]
    busy = layers[0].busy[BATCH].seconds
    profile = combine(Measured(BATCH, layers, _whole(1, busy + 0.001, busy), None, 1))
    assert profile["layers"][0]["computeSeconds"] == pytest.approx(busy + 0.001)
    assert profile["stage"]["stageSeconds"] == pytest.approx(0.0)


def test_the_fixed_part_of_a_cut_is_that_of_one_piece_whatever_the_number_of_micro_batches() -> None:
    layers = [_layer("a", Line(0.0, 1e-6), transfer=Line(1e-4, 2e-7)), _layer("b", Line(0.0, 1e-6))]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    first, last = combine(Measured(BATCH, layers, _whole(1, busy, busy), None, 1))["layers"]
    assert first["transferFixedSeconds"] == pytest.approx(1e-4)
    assert first["transferSeconds"] == pytest.approx(1e-4 + 2e-7 * BATCH)
    assert first["transferProcessorFixedSeconds"] == pytest.approx(1.5e-4)
    assert first["transferProcessorSeconds"] == pytest.approx(1.5e-4 + 3e-7 * BATCH)
    assert last["transferSeconds"] == 0.0


def _processor(profile: Mapping[str, Any], workers: int) -> float:
    """Processor seconds of a one-stage step (docs/planning.md)."""
    layers = [(la["processorSeconds"], la["processorFixedSeconds"]) for la in profile["layers"]]
    total: float = workers * profile["stage"]["stageProcessorSeconds"]
    for seconds, fixed in layers:
        total += seconds + (workers - 1) * fixed
    return total


@pytest.mark.parametrize("seed", range(50))
def test_processor_time_adds_up_to_that_of_the_steps_of_one_and_of_two_workers(seed: int) -> None:
    draw = random.Random(seed)
    layers = [
        _layer(f"layer{i}", Line(draw.uniform(0, 1e-3), draw.uniform(1e-7, 1e-5)), rows=draw.uniform(0, 2e-3))
        for i in range(draw.randint(1, 8))
    ]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    used = (busy * draw.uniform(0.5, 2), draw.uniform(0, 0.01), draw.uniform(0, 0.01))
    more = (used[0] * draw.uniform(1, 1.5), used[1] * draw.uniform(1, 2), used[2] * draw.uniform(1, 2))
    alone, together = _whole(1, busy, busy, processor=used), _whole(2, busy / 2, busy / 2, processor=more)
    profile = combine(Measured(BATCH, layers, alone, together, 1))
    assert _processor(profile, 1) == pytest.approx(sum(used))
    assert _processor(profile, 2) == pytest.approx(min(sum(more), 2 * sum(used)))
    assert all(0 <= la["processorFixedSeconds"] <= la["processorSeconds"] for la in profile["layers"])
    assert profile["stage"]["stageProcessorSeconds"] >= -1e-15
    assert profile["calibration"]["processor"] == alone.processor
    assert _processor(combine(Measured(BATCH, layers, alone, None, 1)), 1) == pytest.approx(sum(used))


@pytest.mark.parametrize(
    ("threads", "used", "serial"),
    [
        (1, 1.4, 0.6),  # one core for 0.6 s, two for 0.4 s
        (2, 1.4, 2.6 / 3),  # one for 0.87 s, four for 0.13 s
        (1, 2.5, 0.2),  # never less than the stage's overhead
        (2, 0.0, 1.0),  # never more than the step
        (None, 1.4, 0.2),  # an accelerator computes meanwhile
    ],
)
def test_serial_time_is_what_two_workers_leave_idle(threads: int | None, used: float, serial: float) -> None:
    layer = _layer("only", Line(0.0, 1.0 / BATCH))
    alone, together = _whole(1, 1.2, 1.0), _whole(2, 1.0, 0.5, processor=(used, 0.0, 0.0))
    profile = combine(Measured(BATCH, [layer], alone, together, threads))
    assert profile["stage"]["stageSeconds"] == pytest.approx(0.2)
    assert profile["stage"]["stageSerialSeconds"] == pytest.approx(serial)
    profile = combine(Measured(BATCH, [layer], alone, None, threads))
    assert profile["stage"]["stageSerialSeconds"] == pytest.approx(0.2)


def test_processor_time_that_follows_the_samples_goes_to_the_layers_that_work() -> None:
    layers = [_layer("small", Line(0.0, 1e-6)), _layer("large", Line(0.0, 2e-6), rows=1e-6 * BATCH)]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    alone = _whole(1, busy, busy, processor=(0.06, 0.01, 0.01))
    together = _whole(2, busy / 2, busy / 2, processor=(0.09, 0.01, 0.02))  # one more worker costs 0.04
    profile = combine(Measured(BATCH, layers, alone, together, 1))
    assert [la["processorSeconds"] for la in profile["layers"]] == pytest.approx([0.01, 0.03])
    assert profile["stage"]["stageProcessorSeconds"] == pytest.approx(0.04)


def test_a_second_worker_that_seems_to_cost_nothing_or_everything_is_within_limits() -> None:
    layer = _layer("only", Line(0.0, 1e-5))
    busy = layer.busy[BATCH].seconds
    alone = _whole(1, busy, busy, processor=(0.06, 0.0, 0.0))
    for second, expected in (((0.05, 0.0, 0.0), 0.0), ((0.5, 0.0, 0.0), 0.06)):
        together = _whole(2, busy / 2, busy / 2, processor=second)
        profile = combine(Measured(BATCH, [layer], alone, together, 1))
        assert profile["stage"]["stageProcessorSeconds"] == pytest.approx(expected)


def test_spread_is_warned_of_where_it_matters_only() -> None:
    large, tiny = Line(0.0, 1e-5), Line(0.0, 1e-9)
    layers = [_layer("large", large, spread=0.2), _layer("tiny", tiny, spread=2.0)]
    busy = sum(la.busy[BATCH].seconds for la in layers)
    profile = combine(Measured(BATCH, layers, _whole(1, busy, busy, spread=0.3), _whole(2, busy / 2, busy / 2), 1))
    assert len(profile["warnings"]) == 2
    assert "steps of 1 worker(s) vary by 30%" in profile["warnings"][0]
    assert profile["warnings"][1] == "layer 'large' varies by 20% even when measured again"
