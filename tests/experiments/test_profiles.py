"""Profiles of the paper's models, and the roofline that derives times of devices that were not measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples.paper.prepare import ClickLog, ClickLogSpec
from experiments.counting import count_layers
from experiments.devices import (
    CPU_CORES,
    DEVICES,
    Device,
    LayerCounts,
    add_pool,
    derive_times,
    load_profile,
)
from experiments.measure_profiles import MODELS

from heterps_planner import Plan, evaluate, plan
from heterps_planner.model.problem import Layer, LayerTimes, Problem

LAYERS = {"matchnet": 16, "ctrdnn": 16, "ctrdnn-8": 8, "ctrdnn-12": 12, "ctrdnn-20": 20} | {
    "ctrdnn1": 7,
    "ctrdnn2": 7,
    "2emb": 10,
    "nce": 5,
}
CARD = Device("card", "a card", "GPU", 10e12, 1e12, 16e9, 10e9, 1.0, "data sheet", "list price")
FC = LayerCounts(1e6, 1e3, 0.0, 0.0, 2e3, 0.0, 0)
TABLE = LayerCounts(0.0, 1e3, 1e3, 5e2, 2e3, 0.0, 0)


def derived(count: LayerCounts, device: Device, batch: int = 1000, measured: float = 1.0) -> LayerTimes:
    layer = Layer("l", {"cpu": LayerTimes(measured, 1.0)})
    [times] = derive_times([layer], [count], device, batch_size=batch)
    return times


def test_every_model_has_a_profile_with_its_layers_and_says_what_is_derived() -> None:
    assert MODELS.keys() == LAYERS.keys()
    for name, layers in LAYERS.items():
        problem = load_profile(name)
        assert len(problem.layers) == layers
        assert [(p.name, p.max_units, p.price_per_unit_hour) for p in problem.pools] == [
            ("cpu", 480, 0.04),
            ("v100", 32, 2.42),
        ]
        assert problem.provenance.keys() >= {"command", "date", "measured", "counts", "floor"}
        assert all(times.derived and times.source for layer in problem.layers for times in layer.pools.values())


def test_ctrdnn_needs_cards_and_mixed_plans_are_cheapest() -> None:
    problem = load_profile("ctrdnn")
    best = plan(problem)
    assert isinstance(best, Plan)
    assert {stage.pool for stage in best.stages} == {"cpu", "v100"}
    assert not isinstance(evaluate(problem, [{"pool": "cpu"}]), Plan)


def test_counts_are_those_of_the_matrices() -> None:
    rows = ClickLog(ClickLogSpec(seed=1, ids=1_000)).chunk(0).rows(0, 64)
    arguments = {"layers": 7, "hidden": 32, "embedding_dim": 8, "num_ids": 1_000}
    counts = count_layers("examples.paper.clicks.ctrdnn:build", arguments, rows)
    assert list(counts) == ["user", "item", "context", "concat", "fc.0", "fc.1", "output"]
    fc = counts["fc.1"]
    assert fc.flops == 3 * 2 * 32 * 32  # forward, and the gradients of input and weight
    assert fc.weight_bytes == (32 * 32 + 32) * 4
    assert fc.cut_bytes == 2 * 32 * 4 + 4  # activation, gradient, label
    user = counts["user"]
    assert user.row_bytes == len(np.unique(rows.ids[:, :10])) * 8 * 4 / 64
    assert user.looked_up_bytes == 10 * 8 * 4
    # The rows and their gradient, the ids of the 16 other fields, the numbers, the label.
    assert user.cut_bytes == 2 * 320 + 16 * 8 + 13 * 4 + 4
    assert counts["output"].cut_bytes == 0


def test_a_layer_on_a_card_is_bound_by_arithmetic_or_by_memory() -> None:
    assert derived(FC, CARD).compute_seconds == pytest.approx(1000 * 1e6 / (0.5 * 10e12))
    slow_memory = replace(CARD, memory_bandwidth=1e9)
    assert derived(FC, slow_memory).compute_seconds == pytest.approx(1000 * 3 * 1e3 / (0.75 * 1e9))
    # Weights and launches are paid once per batch, however large it is.
    heavy = replace(FC, weight_bytes=1e6, operations=2)
    fixed = 3 * 2 * 10e-6 + 6e6 / (0.75 * 1e12) + 2e6 / 12.5e9
    for batch in (1000, 2000):
        times = derived(heavy, CARD, batch)
        assert times.compute_fixed_seconds == pytest.approx(fixed)
        assert times.compute_seconds == pytest.approx(fixed + batch * 1e6 / (0.5 * 10e12))
    assert derived(FC, CARD).transfer_seconds == pytest.approx(1e-4 + 1000 * 2e3 * 8 / 12.5e9)


def test_lookups_on_a_card_are_the_hosts_work() -> None:
    arithmetic = 1000 * 3 * 1e3 / (0.75 * 1e12) + 1000 * 2 * 5e2 / 10e9
    assert derived(TABLE, CARD, measured=6.0).compute_seconds == pytest.approx(6.0 / 6 + arithmetic)
    by_network = 1000 * 2 * 1e3 * 8 / 12.5e9
    assert derived(TABLE, CARD, measured=1e-9).compute_seconds == pytest.approx(by_network + arithmetic)


def test_another_core_is_scaled_by_what_bounds_the_layer() -> None:
    reference, other = CPU_CORES["xeon-6271c"], CPU_CORES["epyc-7763"]
    assert derived(FC, reference).compute_seconds == pytest.approx(1.0)
    assert derived(FC, other).compute_seconds == pytest.approx(reference.peak_flops / other.peak_flops)
    ratio = reference.memory_bandwidth / other.memory_bandwidth
    assert derived(TABLE, other).compute_seconds == pytest.approx(ratio)


def test_pools_can_be_added_under_names_of_their_own() -> None:
    problem = add_pool(load_profile("nce"), DEVICES["h100"])
    problem = add_pool(problem, DEVICES["h100"], price=3.0, max_units=8, name="h100-spot")
    problem = add_pool(problem, DEVICES["kunlun-r200"])
    assert [(p.name, p.device_type, p.price_per_unit_hour, p.max_units) for p in problem.pools[2:]] == [
        ("h100", "GPU", 11.06, 32),
        ("h100-spot", "GPU", 3.0, 8),
        ("kunlun-r200", "XPU", 2.0, 32),
    ]
    assert Problem.from_json(problem.to_json()) == problem
    with pytest.raises(ValueError, match="has a pool 'h100' already"):
        add_pool(problem, DEVICES["h100"])
    with pytest.raises(ValueError, match="no counts of its layers"):
        add_pool(replace(problem, provenance={}), DEVICES["t4"])
    with pytest.raises(ValueError, match="no profile 'resnet'; there are: 2emb, ctrdnn"):
        load_profile("resnet")


def test_each_device_names_its_sources() -> None:
    assert len(DEVICES) >= 12
    assert all(key == d.name and d.source and d.price_source for key, d in [*DEVICES.items(), *CPU_CORES.items()])
