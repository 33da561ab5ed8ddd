"""One example computed by hand per equation, and the errata that concern the cost model and provisioning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner import plan
from heterps_planner.model.cost_model import (
    Work,
    bubble_seconds,
    compute_work,
    cost_of_training,
    pods_for_throughput,
    price_per_hour,
    stage_seconds_per_sample,
    stage_work,
    training_hours,
    transfer_work,
    with_bubble,
    work_for_throughput,
)
from heterps_planner.model.problem import Layer, LayerTimes, Pool, Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.plans.plan import Infeasible, Plan, choice_of
from heterps_planner.plans.robust import robustness
from heterps_planner.search.points import Choice, lowest_throughput
from heterps_planner.search.sweep import cheapest_at, minimise
from tests.heterps_planner.helpers.problems import document, random_problem, with_floor

HAND = Problem.from_json(document())
NO_CARDS = Pool("fast", "GPU", 1.0, 0)


def pods_needed(theta: float, seq: float, par: float, send_seq: float = 0.0, send_par: float = 0.0) -> float:
    arrays = [np.array([value]) for value in (theta, seq, par, send_seq, send_par)]
    return float(pods_for_throughput(*arrays)[0])


def one_layer(compute: float, fraction: float, *, price: float = 1.0, limit: int = 1000, floor: float = 0.0) -> Problem:
    return Problem(
        batch_size=1,
        samples=3600,
        pools=(Pool("p", "CPU", price, limit),),
        layers=(Layer("l", {"p": LayerTimes(compute, fraction)}),),
        min_samples_per_second=floor,
    )


def test_equation_1_computing_time_of_a_layer() -> None:
    # 0.1 s per 100 samples, half of it parallel: 0.0005 + 0.0005 / k per sample.
    work = compute_work(HAND.layers[0].pools["cpu"], HAND)
    assert work.on(1) == pytest.approx(0.001)
    assert work.on(5) == pytest.approx(0.0006)


def test_equation_2_transfer_time_of_a_layer() -> None:
    # 0.04 s per 100 samples, a quarter of it parallel: 0.0003 + 0.0001 / k per sample.
    work = transfer_work(HAND.layers[0].pools["cpu"], HAND)
    assert work.on(1) == pytest.approx(0.0004)
    assert work.on(4) == pytest.approx(0.000325)


def test_equation_3_a_stage_takes_the_longer_of_computing_and_transfer() -> None:
    computing, transfer = Work(0.001, 0.004), Work(0.002, 0.0)
    assert stage_seconds_per_sample(computing.on(4), transfer.on(4)) == pytest.approx(0.002)
    assert stage_seconds_per_sample(computing.on(2), transfer.on(2)) == pytest.approx(0.003)


def test_equations_4_and_5_the_slowest_stage_sets_the_throughput() -> None:
    # embedding on 2 cpus: 0.00075 s per sample; dense on 1 gpu: 0.0005.
    choice = choice_of(build_segments(HAND), [(0, 0, 0), (1, 1, 1)], [2, 1], 0)
    assert choice.throughput == pytest.approx(1 / 0.00075)


def test_equation_6_hours_of_the_training() -> None:
    assert training_hours(7_200_000, 1000) == pytest.approx(2.0)


def test_equation_7_cost_of_the_training() -> None:
    assert price_per_hour([0.5, 2.0], [2, 1]) == pytest.approx(3.0)
    assert cost_of_training(3_600_000, 1000, 3.0) == pytest.approx(3.0)


def test_equations_12_and_13_least_units_for_a_throughput() -> None:
    # 1/1000 s per sample, 0.0005 of it sequential: the parallel 0.004 s need 8 units.
    assert pods_needed(1000, 0.0005, 0.004) == 8
    assert pods_needed(1000, 0.0005, 0.0041) == 9
    assert pods_needed(1000, 0.0, 0.0001) == 1


def test_the_optimal_plan_of_the_problem_that_is_solved_by_hand() -> None:
    # The first layer cannot run on the gpu. One cpu and one gpu give min(1 / 0.001, 1 / 0.0005) = 1000 samples/s for
    # 2.5 $/h: 2.5e-3. Two cpus give 1333 for 3.0: 2.25e-3; three 1500 for 3.5: 2.33e-3. All on cpus: 0.0005 s
    # sequential + 0.0105 / k reaches 954 with 10 cpus, below the floor.
    found = plan(HAND)
    assert isinstance(found, Plan)
    assert [(s.pool, s.units, s.layers) for s in found.stages] == [("cpu", 2, ("embedding",)), ("gpu", 1, ("dense",))]
    assert found.throughput == pytest.approx(4000 / 3)
    assert found.cost_per_hour == pytest.approx(3.0)
    assert found.cost == pytest.approx(2.25)
    assert found.lower_bound == found.cost
    assert found.gap == 0.0
    assert found.optimal


def test_segments_sum_the_layers_and_pay_the_stage_overhead_once() -> None:
    problem = random_problem(np.random.default_rng(0), 5, 2, fixed=True, stage_overhead=True, pods=True)
    segments = build_segments(problem)
    for t, pool in enumerate(problem.pools):
        for first in range(5):
            for last in range(first, 5):
                pipelined = (first, last) != (0, 4)
                work = stage_work(problem.layers[first : last + 1], pool, problem, pipelined=pipelined)
                assert segments.seq_LLT[first, last, t] == pytest.approx(work.sequential)
                assert segments.par_LLT[first, last, t] * pool.units_per_pod == pytest.approx(work.parallel)


def test_the_workers_on_both_sides_of_a_cut_pay_for_its_messages() -> None:
    """0.04 s of 100 samples, 0.01 s of them for each of four micro-batches of each worker: half for each side."""
    embedding, dense = HAND.layers
    times = replace(embedding.pools["cpu"], transfer_processor_seconds=0.04, transfer_processor_fixed_seconds=0.01)
    layers = (replace(embedding, pools={"cpu": times, "gpu": replace(times, transfer_processor_seconds=0.06)}), dense)
    plain, problem = replace(HAND, micro_batches=4), replace(HAND, micro_batches=4, layers=layers)
    before, after = build_segments(plain), build_segments(problem)
    for place, seconds in (((0, 0, 0), 0.03), ((1, 1, 0), 0.03), ((1, 1, 1), 0.05)):
        assert after.seq_LLT[place] - before.seq_LLT[place] == pytest.approx(4 * 0.01 / 2 / 100)
        assert after.par_LLT[place] - before.par_LLT[place] == pytest.approx(seconds / 2 / 100)
    assert after.seq_LLT[0, 1, 0] == before.seq_LLT[0, 1, 0]
    assert after.par_LLT[0, 1, 0] == before.par_LLT[0, 1, 0]


def waiting(problem: Problem, *waits: bool) -> Problem:
    """The problem with layers that wait for commits."""
    layers = tuple(replace(la, waits_for_commit=w) for la, w in zip(problem.layers, waits, strict=True))
    return replace(problem, layers=layers)


# Seconds per sample of three layers on one pod; the stage overhead of the pool is none of a bubble's.
THREE = Problem(
    100,
    1e6,
    (Pool("cpu", "CPU", 1.0, 10, stage_seconds=5.0),),
    tuple(Layer(f"l{i}", {"cpu": LayerTimes(seconds * 100, 1.0)}) for i, seconds in enumerate((0.001, 0.002, 0.004))),
    micro_batches=4,
)


def test_a_stage_waits_while_a_micro_batch_passes_the_others() -> None:
    """One of four micro-batches of the layers before and after, on one pod of their pool."""
    bubble = bubble_seconds(waiting(THREE, True, True, True))
    assert bubble is not None
    assert bubble[0] * 4 == pytest.approx([0.006, 0.004, 0.0])
    assert bubble[1, 1:] * 4 == pytest.approx([0.005, 0.001])
    assert bubble[2, 2] * 4 == pytest.approx(0.003)


def test_stages_without_waiting_layers_run_ahead() -> None:
    """They have no bubble, and have computed the forward pass of the next step already."""
    assert bubble_seconds(THREE) is None
    assert build_segments(THREE).bubble_LLT is None
    bubble = bubble_seconds(waiting(THREE, False, True, False))
    assert bubble is not None
    assert bubble[0] * 4 == pytest.approx([0.0, 0.004, 0.0])
    assert bubble[1, 1:] * 4 == pytest.approx([0.0005 + 0.004, 0.0005])
    assert bubble[2, 2] == 0.0
    bubble = bubble_seconds(waiting(THREE, True, False, True))
    assert bubble is not None
    assert bubble[2, 2] * 4 == pytest.approx(0.003), "a layer between two that wait may be in the stage of the first"
    assert bubble[1, 1] == 0.0


def test_a_bubble_is_no_longer_than_a_micro_batch_of_the_stage_itself() -> None:
    for bubble, expected in ((0.0, 3.0), (0.5, 3.5), (1.0, 4.0), (7.0, 4.0)):
        time = float(with_bubble(3.0, bubble, 1 - 1 / 4))
        assert time == pytest.approx(expected)
        assert time == pytest.approx(3.0 + min(bubble, time / 4))
        assert float(work_for_throughput(np.array(1 / time), bubble, 1 - 1 / 4)) == pytest.approx(3.0)


def test_a_bubble_counts_in_the_time_of_a_stage_and_in_its_pods() -> None:
    """The last layer: 0.004 s per sample of work; the others take 0.003, so the bubble is 0.00075 or a quarter."""
    problem = replace(waiting(THREE, True, True, True), pools=(Pool("cpu", "CPU", 1.0, 10),))
    segments = build_segments(problem)
    assert segments.stage_time(2, 2, 0, 1) == pytest.approx(0.004 + 0.00075)
    assert segments.stage_time(2, 2, 0, 4) == pytest.approx(0.001 / 0.75)
    assert segments.stage_time(0, 2, 0, 1) == pytest.approx(0.007), "a plan of one stage has no bubble"
    for seconds, pods in ((0.00476, 1), (0.00474, 2), (0.00134, 4), (0.00133, 5)):
        assert segments.pods(np.array([1 / seconds]))[0, 2, 2, 0] == pods
    alone = build_segments(replace(problem, micro_batches=1))
    assert alone.stage_time(2, 2, 0, 4) == pytest.approx(0.001 + 0.003), "nothing overlaps in one micro-batch"


def test_parts_of_a_problem_and_longer_times_keep_their_bubbles() -> None:
    problem = random_problem(np.random.default_rng(3), 4, 3)
    segments = build_segments(replace(waiting(problem, True, True, True, True), micro_batches=4))
    other = segments.of_pools(np.array([2, 0]))
    longer = segments.scaled(np.full(segments.seq_LLT.shape, 1.5))
    assert segments.bubble_LLT is not None
    assert other.stage_time(1, 2, 0, 2) == segments.stage_time(1, 2, 2, 2)
    assert other.stage_time(1, 2, 1, 2) == segments.stage_time(1, 2, 0, 2)
    assert longer.with_bubble(1.5, 1, 2, 0) == pytest.approx(1.5 * segments.with_bubble(1.0, 1, 2, 0))


def test_a_bubble_makes_it_less_likely_that_a_stage_keeps_the_floor() -> None:
    """The slowest of two stages works for 0.004 s per sample, and the bubble is 0.00075 s."""
    problem = replace(THREE, pools=(Pool("cpu", "CPU", 1.0, 10),), min_samples_per_second=1 / 0.0044)
    choice = Choice(((0, 1, 0), (2, 2, 0)), (1, 1), 0, 1 / 0.0044, 2.0)
    assert robustness(problem, choice, 0.1).confidence > 0.75
    assert robustness(waiting(problem, True, True, True), choice, 0.1).confidence < 0.25


def test_a_bubble_is_that_of_the_fastest_pool_without_waiting_for_servers() -> None:
    times = LayerTimes(0.2, 0.5, compute_fixed_seconds=0.02, server_seconds=0.03, server_fixed_seconds=0.01)
    layers = tuple(Layer(name, {"slow": times, "fast": replace(times, compute_seconds=0.1)}) for name in "ab")
    pools = (Pool("slow", "CPU", 1.0, 10), Pool("fast", "GPU", 1.0, 4))
    problem = waiting(Problem(100, 1e6, pools, layers, micro_batches=2), True, True)
    bubble, without = bubble_seconds(problem), bubble_seconds(replace(problem, pools=(pools[0], NO_CARDS)))
    assert bubble is not None
    assert without is not None
    # 2 x 0.01 for two pieces, and 0.08, less 0.03: of a single card
    assert bubble[1, 1] == pytest.approx((2 * 0.01 + 0.08 - 0.03) / 100 / 2)
    assert without[1, 1] == pytest.approx((2 * 0.01 + 0.18 - 0.03) / 100 / 2), "a pool without units computes nothing"


def test_segments_with_a_layer_that_the_pool_cannot_run_are_infinite() -> None:
    segments = build_segments(HAND)
    assert np.isinf(segments.seq_LLT[0, 0, 1])
    assert np.isinf(segments.seq_LLT[0, 1, 1])
    assert np.isfinite(segments.seq_LLT[1, 1, 1])
    assert np.isinf(segments.seq_LLT[1, 0, 0])


def test_micro_batches_pay_fixed_times_again_but_only_in_a_pipeline() -> None:
    """100 samples, 0.1 s of which 0.02 s are fixed: four pieces cost 0.16 s; a plan of one stage has no pieces."""
    times, problem = LayerTimes(0.1, 0.5, compute_fixed_seconds=0.02), replace(HAND, batch_size=100, micro_batches=4)
    assert compute_work(times, problem, pipelined=True).on(1) == pytest.approx(0.0016)
    assert compute_work(times, problem).on(1) == pytest.approx(0.001)


# --- errata ---------------------------------------------------------------------------------------------------------


def test_erratum_1_the_batch_size_cancels_from_the_throughput() -> None:
    twice = replace(
        HAND,
        batch_size=200,
        layers=tuple(
            replace(
                layer,
                pools={
                    name: replace(t, compute_seconds=2 * t.compute_seconds, transfer_seconds=2 * t.transfer_seconds)
                    for name, t in layer.pools.items()
                },
            )
            for layer in HAND.layers
        ),
    )
    assert minimise(build_segments(twice)).rate == pytest.approx(minimise(build_segments(HAND)).rate)


def test_erratum_2_a_larger_batch_dilutes_the_fixed_overhead() -> None:
    # 0.1 s at 100 samples, 0.06 s of it fixed: at B = 200 a batch takes 0.06 + 0.04 * 2 = 0.14 s, 0.0007 per sample.
    times = LayerTimes(0.1, 0.5, compute_fixed_seconds=0.06)
    problem = replace(HAND, global_batch_size=200)
    assert compute_work(times, problem).on(1) == pytest.approx(0.0007)
    # On 4 units 0.06 + 0.08 * (0.5 + 0.5 / 4) = 0.11 s: the fixed part does not shrink.
    assert compute_work(times, problem).on(4) == pytest.approx(0.00055)
    assert compute_work(times, replace(HAND, global_batch_size=50)).on(1) == pytest.approx(0.0016)


def test_erratum_2_without_a_fixed_part_the_training_batch_does_not_matter() -> None:
    work, other = (
        compute_work(LayerTimes(0.1, 0.5), HAND),
        compute_work(LayerTimes(0.1, 0.5), replace(HAND, global_batch_size=7)),
    )
    assert work == other


def test_erratum_3_the_bound_divides_the_batch_size_by_the_throughput() -> None:
    # k >= alpha OCT / (B_o / theta - (1 - alpha) OCT) = 0.9 * 2 / (512 / 1000 - 0.2) = 5.77; the printed denominator
    # 1000 * 512 - 0.2 would ask for 3.5e-6 units.
    problem = Problem(512, 1.0, (Pool("p", "CPU", 1.0, 100),), (Layer("l", {"p": LayerTimes(2.0, 0.9)}),), 1000.0)
    choice = cheapest_at(build_segments(problem), 1000.0).choice
    assert choice is not None
    assert choice.pods == (6,)


def test_erratum_4_both_computing_and_transfer_have_to_keep_up() -> None:
    # Computing alone needs 2 units for 1000/s, transfer 9: the larger counts.
    assert pods_needed(1000, 0.0, 0.002, 0.0, 0.009) == 9
    assert pods_needed(1000, 0.0, 0.009, 0.0, 0.002) == 9


@pytest.mark.parametrize(("seq", "send_seq"), [(0.001, 0.0), (0.002, 0.0), (0.0, 0.0011)])
def test_erratum_5_no_number_of_units_helps_a_sequential_part_that_is_too_slow(seq: float, send_seq: float) -> None:
    assert math.isinf(pods_needed(1001, seq, 0.001, send_seq, 0.0))


def test_erratum_5_units_are_whole() -> None:
    assert pods_needed(1000, 0.0, 0.00201) == 3


def test_erratum_6_units_of_one_type_are_added_over_its_stages() -> None:
    problem = random_problem(np.random.default_rng(3), 3, 2)
    segments = build_segments(problem)
    choice = choice_of(segments, [(0, 0, 0), (1, 1, 1), (2, 2, 0)], [2, 1, 3], 0)
    prices = [pool.price_per_unit_hour for pool in problem.pools]
    assert choice.price == pytest.approx(5 * prices[0] + prices[1])


def test_erratum_7_a_plan_that_reaches_exactly_the_floor_is_feasible() -> None:
    # 4 units of a perfectly parallel layer of 0.001 s reach 4000 samples/s, and 4 is the limit.
    assert isinstance(plan(one_layer(0.001, 1.0, limit=4, floor=4000.0)), Plan)
    assert isinstance(plan(one_layer(0.001, 1.0, limit=4, floor=4000.01)), Infeasible)


def test_erratum_8_the_cheapest_provision_may_lie_above_the_floor() -> None:
    # Stage a takes 0.0004 s on a unit of 1 $/h, stage b 0.00205 s on a unit of 0.1 $/h, all parallel. The expensive
    # unit is paid in any case, so adding cheap ones pays until it is nearly busy.
    a = LayerTimes(0.0004, 1.0)
    b = LayerTimes(0.00205, 1.0)
    problem = Problem(
        1,
        3600.0,
        (Pool("p", "GPU", 1.0, 1), Pool("q", "CPU", 0.1, 100)),
        (Layer("a", {"p": a}), Layer("b", {"q": b})),
        1000.0,
    )
    segments = build_segments(problem)
    at_floor = cheapest_at(segments, 1000.0)
    best = minimise(segments)
    assert at_floor.choice is not None
    assert best.choice is not None
    assert at_floor.choice.pods == (1, 3)  # 1463 samples/s for 1.3 $/h: 8.9e-4
    assert best.choice.pods == (1, 5)  # 2439 samples/s for 1.5 $/h: 6.2e-4
    assert best.rate < at_floor.rate


def test_erratum_9_only_the_layer_at_the_boundary_sends_and_the_last_stage_sends_nothing() -> None:
    slow = LayerTimes(0.001, 0.0, transfer_seconds=0.5)
    fast = LayerTimes(0.001, 0.0, transfer_seconds=0.002)
    layers = (Layer("a", {"p": slow}), Layer("b", {"p": fast}), Layer("c", {"p": slow, "q": slow}))
    problem = Problem(1, 1.0, (Pool("p", "CPU", 1.0, 9), Pool("q", "CPU", 1.0, 9)), layers)
    segments = build_segments(problem)
    assert segments.stage_time(0, 1, 0, 1) == pytest.approx(0.002)  # a's 0.5 s stay inside the stage
    assert segments.stage_time(2, 2, 1, 1) == pytest.approx(0.001)
    assert segments.stage_time(0, 2, 0, 1) == pytest.approx(0.003)


def test_erratum_12_parameter_server_cores_follow_the_throughput() -> None:
    problem = replace(HAND, parameter_server=ParameterServer("cpu", cores_per_sample_per_second=0.002))
    found = plan(problem)
    assert isinstance(found, Plan)
    assert found.parameter_server.units == math.ceil(found.throughput * 0.002 - 1e-6)
    cpus = sum(stage.units for stage in found.stages if stage.pool == "cpu") + found.parameter_server.units
    gpus = sum(stage.units for stage in found.stages if stage.pool == "gpu")
    assert found.cost_per_hour == pytest.approx(0.5 * cpus + 2.0 * gpus)
    assert cpus <= 10


def test_erratum_12_parameter_servers_may_take_a_fixed_number_of_units() -> None:
    found = plan(replace(HAND, parameter_server=ParameterServer("cpu", units=3)))
    assert isinstance(found, Plan)
    assert found.parameter_server.units == 3
    assert found.cost_per_hour == pytest.approx(
        1.5 + sum(s.units * {"cpu": 0.5, "gpu": 2.0}[s.pool] for s in found.stages)
    )


def test_erratum_21_a_dearer_pool_that_is_otherwise_equal_is_used_only_beyond_the_limit_of_the_cheap_one() -> None:
    times = LayerTimes(0.001, 1.0)
    pools = (Pool("cheap", "GPU", 1.0, 3), Pool("dear", "GPU", 2.0, 3))
    layers = tuple(Layer(f"l{i}", {"cheap": times, "dear": times}) for i in range(2))
    low = plan(Problem(1, 1.0, pools, layers, 1000.0))
    high = plan(Problem(1, 1.0, pools, layers, 2500.0))
    assert isinstance(low, Plan)
    assert isinstance(high, Plan)
    assert {stage.pool for stage in low.stages} == {"cheap"}
    assert {stage.pool for stage in high.stages} == {"cheap", "dear"}


def test_erratum_22_without_shared_limits_no_label_search_is_needed() -> None:
    for seed in range(10):
        problem = with_floor(random_problem(np.random.default_rng(seed), 10, 3), 0.7)
        pools = tuple(replace(pool, max_units=10_000) for pool in problem.pools)
        result = minimise(build_segments(replace(problem, pools=pools)))
        assert result.choice is not None
        assert result.num_labels == 0


def test_erratum_23_neighbouring_stages_are_never_on_one_pool() -> None:
    # Two layers with a sequential part: as two stages on one pool they would be faster than as one.
    times = LayerTimes(0.001, 0.5)
    problem = Problem(1, 1.0, (Pool("p", "CPU", 1.0, 100),), tuple(Layer(f"l{i}", {"p": times}) for i in range(2)))
    found = plan(replace(problem, min_samples_per_second=990.0))
    assert isinstance(found, Plan)
    assert len(found.stages) == 1
    # 2 * 0.0005 s are sequential: one stage never reaches 1000, two stages of 0.0005 + 0.0005 / k would.
    assert isinstance(plan(replace(problem, min_samples_per_second=1000.0)), Infeasible)


def test_the_sweep_starts_where_one_pod_per_stage_suffices() -> None:
    segments = build_segments(random_problem(np.random.default_rng(1), 6, 3))
    pods = segments.pods(np.array([lowest_throughput(segments, 0.0)]))
    assert set(np.unique(pods[np.isfinite(pods)])) == {1.0}
