"""Every erratum has a row in docs/errata.md and a test; those without a better place are tested here."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments.devices import load_profile

from heterps_planner import Plan, Problem, plan
from heterps_planner.methods.brute_force import enumerate_schedules
from heterps_planner.model.cost_model import Work, stage_seconds_per_sample
from heterps_planner.model.segments import build_segments
from heterps_planner.scenarios.evaluate import evaluate
from tests.heterps_planner.helpers.problems import document, random_problem

ROOT = Path(__file__).parents[3]
NUMBERS = range(1, 25)
# `test_erratum_7_...`, `test_errata_3_and_4_...`
NAME = re.compile(r"test_errat(?:um|a)_(\d+)(?:_and_(\d+))?_")


def numbers_of_tests() -> set[int]:
    """Return the numbers in the names of all test functions."""
    numbers = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (found := NAME.match(node.name)):
                numbers |= {int(number) for number in found.groups() if number}
    return numbers


def numbers_of_rows() -> list[int]:
    paper, _ = (ROOT / "docs/errata.md").read_text(encoding="utf-8").split("[BNO]:")
    return [int(row) for row in re.findall(r"^\| (\d+) \| \S", paper, re.MULTILINE)]


def test_every_erratum_has_a_row() -> None:
    assert numbers_of_rows() == list(NUMBERS)


def test_every_erratum_has_a_test() -> None:
    assert numbers_of_tests() == set(NUMBERS)


def test_erratum_11_computing_and_transfer_overlap_but_for_messages_and_the_bubble() -> None:
    computing, transfer = Work(0.001, 0.003), Work(0.002, 0.001)
    assert stage_seconds_per_sample(computing.on(1), transfer.on(1)) == pytest.approx(0.004)  # 0.007 without overlap
    assert stage_seconds_per_sample(computing.on(3), transfer.on(3)) == pytest.approx(0.002 + 0.001 / 3)
    stages = [{"pool": "cpu", "lastLayer": 0, "units": 10}, {"pool": "gpu", "units": 1}]
    value = document(minSamplesPerSecond=0)
    overlapping = evaluate(Problem.from_json(value), stages)
    layers = [layer | {"waitsForCommit": True} for layer in value["layers"]]
    draining = evaluate(Problem.from_json(value | {"layers": layers}), stages)
    value["layers"][0]["pools"]["cpu"]["transferProcessorSeconds"] = 0.2
    with_messages = evaluate(Problem.from_json(value), stages)
    assert isinstance(overlapping, Plan)
    assert isinstance(draining, Plan)
    assert isinstance(with_messages, Plan)
    assert 1 / overlapping.throughput == pytest.approx(0.00055)
    assert 1 / draining.throughput == pytest.approx(0.0005 + 0.001)  # the gpu waits for all of one batch, on one cpu
    assert 1 / with_messages.throughput == pytest.approx(0.00055 + 0.2 / 2 / 10 / 100)


@pytest.mark.parametrize(("num_layers", "num_pools"), [(8, 2), (4, 4)])
def test_erratum_19_all_pools_count_as_types_the_cpu_pool_too(num_layers: int, num_pools: int) -> None:
    """The paper's 16 layers with 2 types and 8 with 4 are 65,536 schedules each; here a quarter of the exponent."""
    problem = random_problem(np.random.default_rng(0), num_layers, num_pools)
    assert problem.pools[0].device_type == "CPU"
    assert enumerate_schedules(build_segments(problem)).num_schedules == 256


def test_erratum_20_nothing_is_more_than_100_percent_cheaper() -> None:
    """A plan that costs n times as much as the optimum has the gap 1 - 1/n, however large n is."""
    problem = replace(Problem.from_json(document()), min_samples_per_second=0.0)
    cheapest = plan(problem)
    dear = evaluate(problem, [{"pool": "cpu", "lastLayer": 0, "units": 10}, {"pool": "gpu", "units": 4}])
    assert isinstance(cheapest, Plan)
    assert isinstance(dear, Plan)
    assert dear.cost > 2 * cheapest.cost
    assert dear.gap == pytest.approx(1 - cheapest.cost / dear.cost)
    assert dear.gap < 1


def test_erratum_24_a_cut_in_the_second_tower_carries_the_first_ones_result() -> None:
    """MATCHNET, bytes per sample: float32 values there and their gradients back, ids of later layers, and the label."""
    problem = load_profile("matchnet")
    cut = {name: count["cut_bytes"] for name, count in problem.provenance["counts"].items()}
    hidden, vector, ids, label = 384, 128, 10, 4
    assert cut["query_fc1"] == 2 * 4 * hidden + 8 * ids + label
    assert cut["item_fc1"] == 2 * 4 * (hidden + vector) + label
    times = {layer.name: layer.pools["cpu"].transfer_seconds for layer in problem.layers}
    assert times["item_fc1"] > times["query_fc1"]
