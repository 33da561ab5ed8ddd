"""The cost model: one function per equation.

[HeterPS] Liu et al., "HeterPS: Distributed deep learning with reinforcement learning based scheduling in heterogeneous
environments", FGCS 2023, https://arxiv.org/abs/2111.10635. Some equations are wrong or ambiguous as printed; each
function states the adopted reading; "erratum n" is number n of docs/errata.md.

Symbols: `B_o` batch size of the measurement, `B` batch size of the training, `k` units of a stage, `OCT`/`ODT`
computing and transfer seconds of one batch of `B_o` on one unit, `alpha`/`beta` their parallel fractions.

Invariants, all of them tested:
- A stage time is `seq + par / k`: the times of the layers of a stage add up to the same form, so prefix sums give
  every segment. Layers with tables of measured times have one such line per range of k (`pieces`, erratum 10).
- Times are per sample, so that a throughput is `1 / time` and the batch size cancels (erratum 1).
- Adding units never makes a stage without tables slower; the least pods for a throughput, and so the least price
  `P(theta)` per hour, never fall with `theta`, tables or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterps_planner.model.pieces import FloatArray, lines
from heterps_planner.model.problem import Layer, LayerTimes, Pool, Problem

__all__ = [
    "FLOOR_TOLERANCE",
    "SLACK",
    "Work",
    "bubble_seconds",
    "compute_lines",
    "compute_work",
    "cost_of_training",
    "cut_work",
    "layer_seconds",
    "pods_for_throughput",
    "price_per_hour",
    "server_wait",
    "stage_seconds_per_sample",
    "stage_work",
    "training_hours",
    "transfer_work",
    "with_bubble",
    "work_for_throughput",
]

# A plan meets a throughput if it reaches it within this relative error: above the rounding of the sums,
# far below what a measurement can tell.
SLACK = 1e-10
# The same for the user's floor (erratum 7: "at least", not "more than").
FLOOR_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Work:
    """Seconds per sample on k units: `sequential + parallel / k`."""

    sequential: float
    parallel: float

    def __add__(self, other: Work) -> Work:
        return Work(self.sequential + other.sequential, self.parallel + other.parallel)

    def on(self, units: float) -> float:
        """Return seconds per sample on `units` units."""
        return self.sequential + self.parallel / units


def _amdahl(seconds: float, fixed: float, fraction: float, problem: Problem, pieces: int = 1) -> Work:
    """Split seconds per batch of B_o into work per sample at B, a worker's share being computed in `pieces`.

    Seconds per batch of B on k units are `pieces * fixed + (seconds - fixed) * (B / B_o) * (1 - fraction + fraction /
    k)`. With `fixed` = 0 the batch size cancels, as in the paper; with it, a larger batch dilutes the overhead (erratum
    2), and each micro-batch pays it again.
    """
    scaled = (seconds - fixed) / problem.batch_size
    return Work(pieces * fixed / problem.training_batch_size + scaled * (1 - fraction), scaled * fraction)


def compute_work(times: LayerTimes, problem: Problem, *, pipelined: bool = False) -> Work:
    """Equation (1) of [HeterPS], CT, for one layer, per sample.

    Erratum 1: OCT / B_o is a time per sample, so the throughput is 1 / CT and not B / CT.

    Args:
        times: measured times.
        problem: provides the batch sizes, and the number of micro-batches of a worker's share in a pipelined stage.
        pipelined: whether the plan has other stages; a single stage computes its share at once.
    """
    pieces = problem.micro_batches if pipelined else 1
    return _amdahl(times.compute_seconds, times.compute_fixed_seconds, times.parallel_fraction, problem, pieces)


def compute_lines(times: LayerTimes, problem: Problem, *, pipelined: bool = False) -> list[tuple[float, Work]]:
    """Return the work of a layer as (from units, work), starting at 0 units.

    One line by Amdahl's law; several if the layer has a table of measured times.
    """
    if times.measured is None:
        return [(0.0, compute_work(times, problem, pipelined=pipelined))]
    pieces = problem.micro_batches if pipelined else 1
    fixed, per_sample = times.compute_fixed_seconds, 1 / problem.batch_size
    wait = times.server_seconds
    always = pieces * fixed / problem.training_batch_size + wait * per_sample
    table = lines(
        times.measured.units, [max(seconds - fixed - wait, 0.0) for seconds in times.measured.compute_seconds]
    )
    return [(units, Work(always + seq * per_sample, par * per_sample)) for units, seq, par in table]


def layer_seconds(problem: Problem, pool: Pool, units: float) -> tuple[FloatArray, float]:
    """Return seconds per sample of each layer on a number of units of a pool, and of the overhead of a stage.

    Args:
        problem: the problem.
        pool: one of its pools.
        units: number of units, may be infinite.

    Returns:
        Shape (L,), infinite for layers that the pool cannot run; and the overhead.
    """
    seconds = np.full(len(problem.layers), np.inf)
    for i, layer in enumerate(problem.layers):
        if (times := layer.pools.get(pool.name)) is not None:
            table = compute_lines(times, problem, pipelined=len(problem.layers) > 1)
            seconds[i] = [work for start, work in table if start <= units][-1].on(units)
    return seconds, stage_work((), pool, problem).on(units)


def bubble_seconds(problem: Problem) -> FloatArray | None:
    """Return how long each segment waits in a step, seconds per sample, as far as its own work does not limit that.

    A stage that waits for the commit of a step has nothing to do while one micro-batch passes the other stages, those
    before it and those after it: the bubble of a pipeline (Huang et al., "GPipe", NeurIPS 2019, section 2.3), which
    equation (3) leaves out (erratum 11). Stages before it that do not wait have computed the forward pass of its next
    step already, so half of their work counts. Where the other layers will be computed is not known here: each counts
    with one pod of the pool that computes it fastest, without waiting for servers. See `with_bubble`.

    Returns:
        Shape (L, L), indexed [first layer, last layer]; 0 for a plan of one stage. None: no layer waits.
    """
    waits = np.array([layer.waits_for_commit for layer in problem.layers])
    if not waits.any():
        return None
    seconds = np.full(len(waits), np.inf)
    for pool in problem.pools:
        on_pod, _ = layer_seconds(problem, pool, pool.units_per_pod)
        for i, layer in enumerate(problem.layers):
            if (times := layer.pools.get(pool.name)) is not None and pool.max_pods:
                seconds[i] = min(seconds[i], max(on_pod[i] - server_wait(times, problem, pipelined=True), 0.0))
    before = np.concatenate([[0.0], seconds[:-1].cumsum()])
    before *= np.where(np.concatenate([[False], np.logical_or.accumulate(waits[:-1])]), 1.0, 0.5)
    after = np.concatenate([seconds[:0:-1].cumsum()[::-1], [0.0]])
    result: FloatArray = (before[:, None] + after) / problem.micro_batches
    number = np.concatenate([[0], waits.cumsum()])
    result[number[1:] - number[:-1, None] <= 0] = 0.0  # none of the segment's layers waits
    return result


def with_bubble(compute: float | FloatArray, bubble: float | FloatArray, overlap: float | FloatArray) -> FloatArray:
    """Return seconds per sample of stages with their bubbles.

    In a plan that is worth its price, the other stages take about as long as this one, or less: units that would make
    them faster are paid for in vain. So the bubble is at most the time of a micro-batch of this stage itself, however
    long the other layers take on one pod. With T = CT + min(`bubble`, T / M), T is

        min(CT + bubble, CT / (1 - 1/M))

    Args:
        compute: CT, seconds per sample.
        bubble: of `bubble_seconds`, seconds per sample; 0: the stage does not wait.
        overlap: `1 - 1/M` of M micro-batches, > 0.
    """
    result: FloatArray = np.minimum(compute + bubble, compute / overlap)
    return result


def work_for_throughput(
    throughput: FloatArray, bubble: float | FloatArray = 0.0, overlap: float | FloatArray = 1.0
) -> FloatArray:
    """Return the most work of a stage that reaches a throughput in spite of its bubble, the inverse of `with_bubble`.

    Args:
        throughput: samples per second, may be 0.
        bubble: as of `with_bubble`.
        overlap: the same.

    Returns:
        Seconds per sample, longer by the relative error `SLACK`.
    """
    with np.errstate(divide="ignore"):
        seconds = (1 + SLACK) / throughput
    result: FloatArray = np.maximum(seconds - bubble, seconds * overlap)
    return result


def server_wait(times: LayerTimes, problem: Problem, *, pipelined: bool = False) -> float:
    """Return the part of a layer's work in which a worker waits for one parameter server, seconds per sample."""
    pieces = problem.micro_batches if pipelined else 1
    rows, dense = times.server_seconds / problem.batch_size, times.server_fixed_seconds / problem.training_batch_size
    return rows + pieces * dense


def transfer_work(times: LayerTimes, problem: Problem) -> Work:
    """Equation (2) of [HeterPS], DT, for the last layer of a stage, per sample.

    Erratum 9: only the layer at the boundary sends its output to the next stage, and the last stage sends nothing;
    synchronisation inside a stage is part of OCT.
    """
    fixed, fraction = times.transfer_fixed_seconds, times.transfer_parallel_fraction
    return _amdahl(times.transfer_seconds, fixed, fraction, problem, problem.micro_batches)


def cut_work(times: LayerTimes, problem: Problem) -> Work:
    """Return the work of the workers on either side of a cut after a layer, per sample: half of what both measured.

    Equation (3) has a transfer overlap with computing completely (erratum 11). But workers pack, send and take in
    messages with the cores that compute.
    """
    seconds, fixed = times.transfer_processor_seconds / 2, times.transfer_processor_fixed_seconds / 2
    return _amdahl(seconds, fixed, 1.0, problem, problem.micro_batches)


def stage_work(layers: tuple[Layer, ...], pool: Pool, problem: Problem, *, pipelined: bool = False) -> Work:
    """Return the computing work of a stage: its layers plus the overhead that every stage on this pool pays once."""
    total = _amdahl(pool.stage_seconds, pool.stage_fixed_seconds, pool.stage_parallel_fraction, problem)
    for layer in layers:
        total += compute_work(layer.pools[pool.name], problem, pipelined=pipelined)
    return total


def stage_seconds_per_sample(compute: float, transfer: float) -> float:
    """Equation (3) of [HeterPS]: ET = max(CT, DT), computing and transfer overlapping completely (see erratum 11)."""
    return max(compute, transfer)


def training_hours(samples: float, throughput: float) -> float:
    """Equation (6) of [HeterPS] in hours; `samples` counts all epochs."""
    return samples / throughput / 3600


def price_per_hour(prices: list[float], units: list[int]) -> float:
    """The sum in equation (7) of [HeterPS]: dollars per hour of all stages.

    Erratum 6: the sum runs over types, and the units of a type are those of all its stages together.
    """
    return math.fsum(price * count for price, count in zip(prices, units, strict=True))


def cost_of_training(samples: float, throughput: float, dollars_per_hour: float) -> float:
    """Equation (7) of [HeterPS]: dollars for the whole training, at the throughput that the plan reaches."""
    return training_hours(samples, throughput) * dollars_per_hour


def pods_for_throughput(
    throughput: FloatArray,
    seq: FloatArray,
    par: FloatArray,
    send_seq: FloatArray,
    send_par: FloatArray,
    work_seconds: FloatArray | None = None,
) -> FloatArray:
    """Equations (12) and (13) of [HeterPS], corrected: the least k with which a stage reaches a throughput.

    `k = max(1, ceil(c_par / (1/theta - c_seq)), ceil(d_par / (1/theta - d_seq)))`, infinite where a sequential part
    alone takes 1/theta or longer.

    Errata: 3 (the printed bound has theta * B_o where B_o / theta is meant), 4 (both computing and transfer have to
    keep up: the maximum of the two bounds), 5 (a denominator <= 0 means that no k suffices; k is whole), 8 (the least k
    is also the cheapest one for this theta, so no search by Newton's method is needed).

    Args:
        throughput: theta in samples per second; broadcasts against the others.
        seq: c_seq, seconds per sample, infinite for impossible segments.
        par: c_par, seconds per sample and pod.
        send_seq: d_seq of the boundary.
        send_par: d_par of the boundary.
        work_seconds: by `work_for_throughput`, if bubbles leave less than 1/theta for computing.

    Returns:
        Whole numbers as floats, infinite where the throughput cannot be reached.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        seconds = (1 + SLACK) / throughput
        need = _shares(par, (seconds if work_seconds is None else work_seconds) - seq)
        send_need = np.maximum(_shares(send_par, seconds - send_seq), 1.0)
        result: FloatArray = np.ceil(np.maximum(need, send_need))
    return result


def _shares(work: FloatArray, spare: FloatArray) -> FloatArray:
    """Return `work / spare`, infinite where no time is spare; writes into one array, which is large while planning."""
    shares = np.asarray(work / spare)
    np.copyto(shares, np.inf, where=~(spare > 0))
    return shares
