"""Plans whose processes share the cores of one machine: the bound, its limits, and the effect on the plan."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from heterps_planner import Plan, Problem, evaluate, explain
from heterps_planner.plans.machine import is_measured, processor_seconds_per_sample, share_cores
from tests.heterps_planner.helpers.problems import document

BATCH = 100


def measured_document(**changes: Any) -> dict[str, Any]:
    """The problem of two layers, with processor seconds that are easy to add (per batch of 100 samples)."""
    value = document(minSamplesPerSecond=0, **changes)
    seconds = {"cpu": (0.12, 0.02), "gpu": (0.06, 0.01)}
    for layer in value["layers"]:
        for name, times in layer["pools"].items():
            if times:
                times["processorSeconds"], times["processorFixedSeconds"] = seconds[name]
    value["layers"][0]["pools"]["cpu"] |= {"transferProcessorSeconds": 0.03, "transferProcessorFixedSeconds": 0.01}
    for times in value["layers"][1]["pools"].values():  # irrelevant after the last layer
        times |= {"transferProcessorSeconds": 0.5, "transferProcessorFixedSeconds": 0.5}
    for pool, own, overhead in zip(value["pools"], (0.02, 0.04), (0.01, 0.02), strict=True):
        pool |= {"stageProcessorSeconds": own, "stageSeconds": overhead, "stageFixedSeconds": overhead}
    return value


PROBLEM = Problem.from_json(measured_document())
TWO_STAGES = [{"pool": "cpu", "lastLayer": "embedding", "units": 3}, {"pool": "gpu", "units": 2}]
ONE_STAGE = [{"pool": "cpu", "units": 1}]


def made(stages: list[dict[str, Any]], problem: Problem = PROBLEM) -> Plan:
    plan = evaluate(problem, stages)
    assert isinstance(plan, Plan)
    return plan


def machine_of(plan: Plan) -> Any:
    assert plan.machine is not None
    return plan.machine


def test_processor_time_adds_up_over_workers_layers_and_cuts() -> None:
    # 3 workers x 0.02; layer 0.10 + 3 x 0.02; cut 0.02 + 3 x 0.01; 2 workers x 0.04; layer 0.05 + 2 x 0.01
    by_hand = (0.06 + 0.16 + 0.05 + 0.08 + 0.07) / BATCH
    assert processor_seconds_per_sample(PROBLEM, [(0, 0, 0), (1, 1, 1)], [3, 2]) == pytest.approx(by_hand)
    # A single stage cuts nothing: 0.02; 0.12 + 0.12
    assert processor_seconds_per_sample(PROBLEM, [(0, 1, 0)], [1]) == pytest.approx(0.26 / BATCH)


def test_each_micro_batch_of_a_pipeline_pays_the_fixed_part_again() -> None:
    several = replace(PROBLEM, micro_batches=4)
    more = 3 * (3 * 0.02 + 3 * 0.01 + 2 * 0.01) / BATCH
    pipeline = ([(0, 0, 0), (1, 1, 1)], [3, 2])
    difference = processor_seconds_per_sample(several, *pipeline) - processor_seconds_per_sample(PROBLEM, *pipeline)
    assert difference == pytest.approx(more)
    single = ([(0, 1, 0)], [2])
    assert processor_seconds_per_sample(several, *single) == processor_seconds_per_sample(PROBLEM, *single)


def test_a_larger_batch_dilutes_what_each_worker_pays() -> None:
    larger = replace(PROBLEM, global_batch_size=4 * BATCH)
    fixed = (0.06 + 0.06 + 0.03 + 0.08 + 0.02) / BATCH
    pipeline = ([(0, 0, 0), (1, 1, 1)], [3, 2])
    saved = processor_seconds_per_sample(PROBLEM, *pipeline) - processor_seconds_per_sample(larger, *pipeline)
    assert saved == pytest.approx(fixed * 3 / 4)


@pytest.mark.parametrize("stages", [ONE_STAGE, TWO_STAGES])
def test_with_endless_cores_the_cost_model_is_right(stages: list[dict[str, Any]]) -> None:
    plan = made(stages)
    here = share_cores(PROBLEM, plan, math.inf)
    assert replace(here, machine=None) == plan


def test_one_core_does_all_the_work_one_after_the_other() -> None:
    plan = made(TWO_STAGES)
    assert share_cores(PROBLEM, plan, 1.0).throughput == pytest.approx(BATCH / 0.42)
    assert share_cores(PROBLEM, plan, 0.5).throughput == pytest.approx(BATCH / 0.84)


def test_several_cores_share_the_work_but_for_the_wait_of_a_step() -> None:
    # The longest overhead of a stage is 0.02; the remaining 0.40 of the work is shared.
    assert share_cores(PROBLEM, made(TWO_STAGES), 4.0).throughput == pytest.approx(BATCH / (0.02 + 0.40 / 4))


def test_measured_serial_time_is_not_shared() -> None:
    value = measured_document()
    value["pools"][0]["stageSerialSeconds"] = 0.05  # more than the overhead of any stage
    problem = Problem.from_json(value)
    here = share_cores(problem, made(TWO_STAGES, problem), 4.0)
    assert here.throughput == pytest.approx(BATCH / (0.05 + 0.37 / 4))
    twice = replace(problem, global_batch_size=2 * BATCH)  # it grows with the batch
    work = 2 * BATCH * processor_seconds_per_sample(twice, [(0, 0, 0), (1, 1, 1)], [3, 2])
    here = share_cores(twice, made(TWO_STAGES, twice), 4.0)
    assert here.throughput == pytest.approx(2 * BATCH / (0.1 + (work - 0.1) / 4))


def test_a_plan_that_leaves_cores_idle_is_not_changed() -> None:
    plan = made(ONE_STAGE)  # one process computes 1.11 s of a batch and uses 0.26 s
    here = share_cores(PROBLEM, plan, 1.0)
    assert here.throughput == plan.throughput
    assert here.optimal == plan.optimal
    assert machine_of(here).busy_cores == pytest.approx(0.26 / 1.11)


def test_the_prediction_never_falls_with_cores_nor_exceeds_the_cost_model() -> None:
    plan = made(TWO_STAGES)
    rates = [share_cores(PROBLEM, plan, cores).throughput for cores in (0.25, 0.5, 1, 1.5, 2, 3, 4, 8, 16, 1e6)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == plan.throughput


def test_busy_cores_follow_the_work() -> None:
    value = measured_document()
    for layer in value["layers"]:
        for times in layer["pools"].values():
            for name in times:
                times[name] *= 2 if "rocessor" in name else 1
    for pool in value["pools"]:
        pool["stageProcessorSeconds"] *= 2
    twice = Problem.from_json(value)
    plan = made(TWO_STAGES)
    slower = made(TWO_STAGES, twice)  # by its messages
    one, two = share_cores(PROBLEM, plan, 1.0), share_cores(twice, slower, 1.0)
    per_sample = machine_of(one).busy_cores / plan.throughput
    assert machine_of(two).busy_cores / slower.throughput == pytest.approx(2 * per_sample)
    assert two.throughput == pytest.approx(one.throughput / 2)
    assert machine_of(one).busy_cores == pytest.approx(0.42 / BATCH * plan.throughput)


def test_workers_of_several_units_count_once() -> None:
    value = measured_document()
    value["pools"][0]["unitsPerPod"] = 3
    pods = Problem.from_json(value)
    plan, pool = made(TWO_STAGES, pods), pods.pools[0]
    assert plan.stages[0].pods * pool.units_per_pod == 3
    # Two workers fewer than before: 2 x (0.02 + 0.02 + 0.01)
    busy = machine_of(share_cores(pods, plan, 1.0)).busy_cores
    assert busy == pytest.approx((0.42 - 0.10) / BATCH * plan.throughput)


def test_a_bounded_plan_promises_neither_throughput_nor_cost_nor_optimality() -> None:
    plan = made(TWO_STAGES)
    here = share_cores(PROBLEM, plan, 1.0)
    assert machine_of(here).throughput_on_pools == plan.throughput
    assert here.cost == pytest.approx(plan.cost * plan.throughput / here.throughput)
    assert here.cost_per_hour == plan.cost_per_hour
    assert here.lower_bound == plan.lower_bound
    assert here.gap == pytest.approx(1 - plan.lower_bound / here.cost)
    assert not here.optimal
    written = json.loads(json.dumps(here.to_json()))
    assert written["throughput"] == here.throughput
    assert written["machine"] == {
        "cores": 1.0,
        "busyCores": machine_of(here).busy_cores,
        "throughputOnPools": plan.throughput,
    }


def test_the_reasons_of_a_bounded_plan_compare_what_the_machine_allows() -> None:
    plan = made(TWO_STAGES)
    here = share_cores(PROBLEM, plan, 0.1)
    there, reasons = explain(PROBLEM, plan), explain(PROBLEM, here)
    assert (there.bottleneck, reasons.bottleneck) == ("stage-0", "machine")
    by_name = {a.name: a for a in reasons.alternatives}
    for free in there.alternatives:
        if free.throughput is not None:
            bounded = by_name[free.name].throughput
            assert bounded is not None
            assert bounded <= free.throughput
    cpu = by_name["only cpu"]
    assert cpu.cost is not None
    assert cpu.extra_percent == pytest.approx((cpu.cost / here.cost - 1) * 100)
    assert cpu.throughput == pytest.approx(BATCH / 2.6)  # one worker on a tenth of a core: 0.26 s of work


def test_a_problem_by_hand_does_not_know_what_processors_do() -> None:
    assert is_measured(PROBLEM)
    assert not is_measured(Problem.from_json(document()))
    assert Problem.from_json(PROBLEM.to_json()) == PROBLEM
