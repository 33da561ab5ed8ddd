"""Training jobs of the shipped policy: random models on random clusters, none of the paper or of `clusters`.

Three in five are recommendation models by their structure: lookups, one or two towers of dense layers, an output; times
on a CPU core from their counts, on all other devices by the roofline of `devices`, with invented figures and prices.
The others have no such structure: any layer may be bound by memory or arithmetic or be small, and every pool has its
own speed for each of the three. In three of five jobs limits are cut until they bind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.devices import Device, LayerCounts, derive_times, with_transfer
from heterps_planner.model.problem import Layer, LayerTimes, Pool, Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.search.points import Choice, fastest_bound
from heterps_planner.search.sweep import SearchOptions, minimise

__all__ = ["Solved", "random_job", "random_recommender", "solve", "solved_job"]

BATCH_SIZE = 1024
MOST_QUESTIONS = 20  # calls of should_stop by the exact method; ends the few long searches


@dataclass(frozen=True)
class Solved:
    """A problem and its optimum."""

    problem: Problem
    assignment: NDArray[np.intp]  # (L,)
    rate: float


def solved_job(rng: np.random.Generator, num_layers: int, num_pools: int) -> Solved | None:
    """Draw a job of either kind, perhaps cut its limits, and solve it; None if infeasible or too slow to solve."""
    make = random_recommender if rng.random() < 0.6 else random_job
    problem = make(rng, num_layers, num_pools)
    choice = solve(problem)
    if choice is None:
        return None
    if rng.random() < 0.6:
        for _ in range(int(rng.integers(1, 5))):
            cut = _cut(rng, problem, choice)
            other = solve(cut)
            if other is None:
                break
            problem, choice = cut, other
    assignment = np.zeros(num_layers, dtype=np.intp)
    for first, last, pool in choice.stages:
        assignment[first : last + 1] = pool
    return Solved(problem, assignment, choice.price / choice.throughput)


def solve(problem: Problem) -> Choice | None:
    """Return the optimum, or None if infeasible or too slow to prove."""
    questions = iter(range(MOST_QUESTIONS))
    segments = build_segments(problem)
    if fastest_bound(segments) < problem.min_samples_per_second:
        return None
    found = minimise(segments, SearchOptions(should_stop=lambda: next(questions, None) is None))
    return found.choice if found.finished else None


def _cut(rng: np.random.Generator, problem: Problem, choice: Choice) -> Problem:
    """Remove units of one of the pools that a plan uses."""
    used: Counter[int] = Counter()
    for (_, _, pool), pods in zip(choice.stages, choice.pods, strict=True):
        used[pool] += pods
    if problem.parameter_server is not None:
        used[problem.pool_index(problem.parameter_server.pool)] += choice.server_pods
    candidates = sorted(used)
    pool = candidates[int(rng.integers(len(candidates)))]
    left = min(used[pool] - 1, math.floor(used[pool] * float(rng.uniform(0.4, 1.0))))
    pools = list(problem.pools)
    pools[pool] = replace(pools[pool], max_units=max(1, left))
    return replace(problem, pools=tuple(pools))


def _uniform_log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def _with_floor(rng: np.random.Generator, problem: Problem, most: float) -> Problem:
    """Add a floor from a hundredth to almost all of the reachable throughput, and mostly parameter servers."""
    highest = min(fastest_bound(build_segments(problem)), most)
    floor = highest * _uniform_log(rng, 0.01, 0.95)
    servers = None
    if rng.random() < 0.7:
        share = _uniform_log(rng, 0.002, 0.3)
        servers = ParameterServer("pool0", cores_per_sample_per_second=share * problem.pools[0].max_units / floor)
    return replace(problem, min_samples_per_second=floor, parameter_server=servers)


def random_recommender(rng: np.random.Generator, num_layers: int, num_pools: int) -> Problem:
    """Draw a recommendation model and a cluster of CPU cores and cards."""
    counts = list(_random_counts(rng, num_layers))
    measured = [_on_core(rng, count) for count in counts]
    layers = [Layer(f"layer{i}", {"cpu": times}) for i, times in enumerate(measured)]
    global_batch = 1024 * int(_uniform_log(rng, 16, 256))
    stage = _uniform_log(rng, 0.001, 0.03) * global_batch / 65536
    pools: list[Pool] = []
    times: list[list[LayerTimes]] = []
    catalogue = [_random_device(rng, f"device{d}") for d in range(min(num_pools, int(rng.integers(4, 20))))]
    for t in range(num_pools):
        again = t > len(catalogue)
        device = catalogue[t - 1] if t and not again else catalogue[int(rng.integers(len(catalogue)))]
        cpu = t == 0 or device.device_type == "CPU"
        price = 0.04 * _uniform_log(rng, 0.7, 1.4) if t == 0 else device.price_per_hour
        if again:
            price *= float(rng.uniform(0.3, 1.4))
        servers = int(rng.integers(1, 4)) if again or rng.random() < 0.3 else 4
        units = servers * 48 * (2 if t == 0 else 1) if cpu else servers * 8
        kind = "CPU" if cpu else "GPU"
        pools.append(Pool(f"pool{t}", kind, round(price, 4), units, stage_seconds=stage, stage_fixed_seconds=stage))
        times.append(measured if t == 0 else derive_times(layers, counts, device, batch_size=BATCH_SIZE))
    problem = Problem(
        batch_size=BATCH_SIZE,
        samples=1e9,
        pools=tuple(pools),
        layers=tuple(
            Layer(layer.name, {pool.name: entry[i] for pool, entry in zip(pools, times, strict=True)})
            for i, layer in enumerate(layers)
        ),
        global_batch_size=global_batch,
    )
    return _with_floor(rng, problem, 0.8 * global_batch / stage)


def _random_device(rng: np.random.Generator, name: str) -> Device:
    if rng.random() < 0.12:  # a core of another processor
        flops, price = _uniform_log(rng, 6e10, 1.6e11), 0.05 * _uniform_log(rng, 0.6, 1.7)
        bandwidth = _uniform_log(rng, 2.5e9, 8e9)
        return Device(name, name, "CPU", flops, bandwidth, 1e10, bandwidth, price, "", "")
    strength = float(rng.uniform(0, 1))
    flops = 5e12 * 14**strength * _uniform_log(rng, 0.6, 1.7)
    bandwidth = 2.5e11 * 8**strength * _uniform_log(rng, 0.5, 2.0)
    price = 0.4 * 16**strength * _uniform_log(rng, 0.45, 2.2)
    host = float(rng.choice([12e9, 25e9, 50e9]))
    return Device(name, name, "GPU", flops, bandwidth, 1e10, host, price, "", "")


def _random_counts(rng: np.random.Generator, num_layers: int) -> Iterator[LayerCounts]:
    """Yield lookups, dense layers and small ones, in one or two towers, in execution order."""
    width = float(rng.choice([64, 128, 192, 256, 384, 512]))
    towers = 2 if num_layers >= 6 and rng.random() < 0.4 else 1
    starts = {0} if towers == 1 else {0, int(rng.integers(2, num_layers - 2))}
    lookups = 0
    sent = 0.0
    for i in range(num_layers):
        if i in starts:
            lookups = int(rng.integers(1, max(2, min(4, num_layers // 2 // towers + 1))))
        if lookups:
            lookups -= 1
            looked_up = 128.0 * int(rng.integers(1, 8))
            sent += looked_up * 2 + 184
            yield LayerCounts(0, looked_up * 2, _uniform_log(rng, 100, 2000), looked_up, sent, 0, int(rng.integers(2)))
            continue
        size = 4 * width
        if i == num_layers - 1:
            yield LayerCounts(12 * width / 2, size, 0, 0, 0, size, int(rng.integers(2, 5)))
        elif rng.random() < 0.25:  # concatenation, normalisation, product
            yield LayerCounts(0, sent + size * rng.random(), 0, 0, sent + 36, size * (rng.random() < 0.5), 1)
        else:
            following = width * float(rng.choice([0.5, 1, 1, 1, 1, 2])) if width > 64 else width
            weights = width * following
            sent = 8 * following * (1 + 0.5 * (len(starts) - 1))
            yield LayerCounts(6 * weights, size + 4 * following, 0, 0, sent, 4 * weights, 2)
            width = following


def _on_core(rng: np.random.Generator, count: LayerCounts) -> LayerTimes:
    """Draw a measurement on a core, within realistic bounds."""
    seconds = count.flops / _uniform_log(rng, 4e10, 9e10) + count.activation_bytes * _uniform_log(rng, 1e-10, 4e-10)
    seconds += count.row_bytes * _uniform_log(rng, 1e-9, 4e-9)
    fixed = _uniform_log(rng, 1.5e-4, 1.2e-3)
    times = LayerTimes(fixed + BATCH_SIZE * seconds, 0.9994, compute_fixed_seconds=fixed)
    return with_transfer(times, count, "CPU", BATCH_SIZE)


def random_job(rng: np.random.Generator, num_layers: int, num_pools: int) -> Problem:
    """Draw a job without any structure, and a cluster."""
    # Speeds relative to a reference card: memory-bound, compute-bound, small layers.
    pools: list[Pool] = []
    speeds: list[NDArray[np.float64]] = []
    num_slow = 1 if num_pools < 8 or rng.random() < 0.5 else int(rng.integers(1, 4))
    alike = rng.random() < 0.25  # cards that differ mostly in price and limit
    scale = _uniform_log(rng, 1e-3, 0.1)  # seconds per batch
    stage = 0.0 if rng.random() < 0.4 else scale * _uniform_log(rng, 0.01, 1.0)
    for t in range(num_pools):
        if t < num_slow:
            level = rng.uniform(-5.0, -3.0)
            speed = np.exp(level + rng.uniform([1.0, -1.5, 0.5], [3.5, 0.5, 2.5]))
            price, most = 0.04 * _uniform_log(rng, 0.5, 2.0), _uniform_log(rng, 16, 1000)
        else:
            level = 0.0 if alike else rng.uniform(-1.6, 1.6)
            speed = np.exp(level + rng.uniform(-0.6, 0.6, 3) * (0.2 if alike else 1.0))
            price, most = 2.4 * math.exp(level * rng.uniform(0.6, 1.1)) * _uniform_log(rng, 0.5, 2.0), 0.0
            most = _uniform_log(rng, 2, 48)
        kind = "CPU" if t < num_slow else "GPU"
        pools.append(Pool(f"pool{t}", kind, round(price, 4), int(most), stage_seconds=stage, stage_fixed_seconds=stage))
        speeds.append(speed)
    shares = rng.dirichlet([1.0, 2.0, 2.0])
    layers: list[Layer] = []
    for i in range(num_layers):
        first = i == 0 and rng.random() < 0.7
        kind_of_layer = 0 if first else int(rng.choice(3, p=shares))
        seconds = scale * math.exp(rng.normal([1.0, 1.0, -1.5][kind_of_layer], 0.9))
        mixed = np.exp(rng.normal(0, 0.25, num_pools))
        sequential = _uniform_log(rng, 0.0005, 0.15)
        sending = scale * math.exp(rng.normal(-1.5, 1.5))
        times: dict[str, LayerTimes] = {}
        for t, pool in enumerate(pools):
            if num_pools > 2 and t and rng.random() < 0.01:
                continue  # this pool cannot run the layer
            own = min(0.5, sequential * math.exp(rng.normal(0, 0.5)))
            times[pool.name] = LayerTimes(
                compute_seconds=seconds / float(speeds[t][kind_of_layer]) * float(mixed[t]),
                parallel_fraction=1 - own,
                transfer_seconds=sending * (math.exp(rng.uniform(0, 1)) if t < num_slow else 1.0),
                transfer_parallel_fraction=float(rng.uniform(0.7, 1.0)),
            )
        layers.append(Layer(f"layer{i}", times))
    problem = Problem(batch_size=BATCH_SIZE, samples=1e9, pools=tuple(pools), layers=tuple(layers))
    return _with_floor(rng, problem, 0.9 * BATCH_SIZE / stage if stage else math.inf)
