"""Random and hand-written planning problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from heterps_planner.model.problem import Layer, LayerTimes, MeasuredTimes, Pool, Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.search.limits import fastest
from heterps_planner.search.points import fastest_bound


def random_problem(
    rng: np.random.Generator,
    num_layers: int,
    num_pools: int,
    *,
    most_pods: int = 8,
    fixed: bool = False,
    pods: bool = False,
    equal_prices: bool = False,
    holes: bool = False,
    stage_overhead: bool = False,
    specialised: bool = False,
    server: str = "none",
) -> Problem:
    """Return a problem with one slow and several fast pools, without a floor."""
    pools, speeds = [], []
    for t in range(num_pools):
        speed = 1.0 if t == 0 else float(rng.uniform(2, 20))
        speeds.append(speed)
        per_pod = int(rng.integers(1, 4)) if pods else 1
        overhead = float(rng.uniform(0, 0.02)) if stage_overhead else 0.0
        pools.append(
            Pool(
                name=f"pool{t}",
                device_type="CPU" if t == 0 else "GPU",
                price_per_unit_hour=1.0 if equal_prices else round(speed**0.9 * float(rng.uniform(0.5, 2.0)), 3),
                max_units=int(rng.integers(1, most_pods + 1)) * per_pod + int(rng.integers(0, per_pod)),
                units_per_pod=per_pod,
                stage_seconds=overhead,
                stage_parallel_fraction=0.5 if stage_overhead else 0.0,
                stage_fixed_seconds=overhead / 4,
            )
        )
    layers = []
    for i in range(num_layers):
        base = float(10 ** rng.uniform(-2, 0))
        # preferred by a specialised model, so that stages alternate and share the pools' limits
        favourite = i % num_pools
        times: dict[str, LayerTimes] = {}
        for t, pool in enumerate(pools):
            if holes and num_pools > 1 and rng.random() < 0.3 and (times or t < num_pools - 1):
                continue
            compute = base / speeds[t] ** float(rng.uniform(0.2, 1.0))
            if specialised and t == favourite:
                compute /= 10
            transfer = float(10 ** rng.uniform(-3, -1))
            times[pool.name] = LayerTimes(
                compute_seconds=compute,
                parallel_fraction=float(rng.uniform(0.5, 1.0)),
                transfer_seconds=transfer,
                transfer_parallel_fraction=float(rng.uniform(0.0, 1.0)),
                compute_fixed_seconds=compute * float(rng.uniform(0, 0.5)) if fixed else 0.0,
                transfer_fixed_seconds=transfer * 0.2 if fixed else 0.0,
            )
        layers.append(Layer(f"layer{i}", times))
    servers = None
    if server == "rate":
        servers = ParameterServer("pool0", cores_per_sample_per_second=float(10 ** rng.uniform(-4, -2)))
    elif server == "fixed":
        servers = ParameterServer("pool0", units=pools[0].units_per_pod)
    return Problem(
        batch_size=100,
        samples=1e6,
        pools=tuple(pools),
        layers=tuple(layers),
        global_batch_size=int(rng.integers(20, 400)) if fixed else None,
        micro_batches=int(rng.integers(1, 4)) if fixed else 1,
        parameter_server=servers,
    )


def with_tables(rng: np.random.Generator, problem: Problem) -> Problem:
    """Give most layers tables: diminishing speed-ups, noise, and a number of units beyond which times grow."""
    layers = []
    for layer in problem.layers:
        pools = dict(layer.pools)
        for name, times in layer.pools.items():
            if rng.random() < 0.25:
                continue
            units = sorted(rng.choice(np.arange(1, 13), size=int(rng.integers(2, 6)), replace=False).tolist())
            alpha = times.parallel_fraction
            noise = rng.choice([0.02, 0.4])
            seconds = [
                times.compute_seconds * (1 - alpha + alpha / k) * float(np.exp(noise * rng.standard_normal()))
                for k in units
            ]
            fixed = min(times.compute_fixed_seconds, 0.9 * min(seconds))
            table = MeasuredTimes(tuple(units), tuple(seconds))
            pools[name] = replace(times, measured=table, compute_fixed_seconds=fixed)
        layers.append(replace(layer, pools=pools))
    return replace(problem, layers=tuple(layers))


def with_cuts(rng: np.random.Generator, problem: Problem) -> Problem:
    """Let workers spend time on messages between stages, and stages wait for commits: all, none, or some of them."""
    layers = []
    waiting = float(rng.choice([0.0, 0.5, 1.0]))
    for layer in problem.layers:
        pools = {}
        for name, times in layer.pools.items():
            seconds = times.transfer_seconds * float(rng.uniform(0, 10))
            fixed = seconds * float(rng.choice([0.0, 0.2, 1.0]))
            pools[name] = replace(times, transfer_processor_seconds=seconds, transfer_processor_fixed_seconds=fixed)
        layers.append(replace(layer, pools=pools, waits_for_commit=bool(rng.random() < waiting)))
    return replace(problem, layers=tuple(layers), micro_batches=int(rng.choice([1, 2, 4, 8])))


def with_waits(rng: np.random.Generator, problem: Problem) -> Problem:
    """Let workers wait for servers, whose number the throughput decides."""
    layers = []
    for layer in problem.layers:
        pools = {}
        for name, times in layer.pools.items():
            undivided = (times.compute_seconds - times.compute_fixed_seconds) * (1 - times.parallel_fraction)
            pools[name] = replace(
                times,
                server_seconds=undivided * float(rng.choice([0.0, 0.3, 0.9, 1.0])),
                server_fixed_seconds=times.compute_fixed_seconds * float(rng.choice([0.0, 0.5, 1.0])),
            )
        layers.append(replace(layer, pools=pools))
    servers = ParameterServer("pool0", cores_per_sample_per_second=float(10 ** rng.uniform(-4, -1.5)))
    return replace(problem, layers=tuple(layers), parameter_server=servers)


def with_memory(rng: np.random.Generator, problem: Problem) -> Problem:
    """Give layers and pools memory, so that some stages fit nowhere and others need several pods."""
    layers = tuple(
        replace(layer, resident_bytes=float(rng.integers(0, 20)), activation_bytes=float(rng.choice([0, 0.1, 0.5])))
        for layer in problem.layers
    )
    pools = tuple(
        replace(pool, memory_bytes_per_pod=float(rng.integers(20, 70)) if rng.random() < 0.8 else None)
        for pool in problem.pools
    )
    return replace(problem, layers=layers, pools=pools)


def with_floor(problem: Problem, fraction: float) -> Problem:
    """Set the floor to a fraction of the reachable throughput; above 1 it is unreachable."""
    best, _ = fastest(build_segments(problem))
    return replace(problem, min_samples_per_second=best * fraction)


def with_rough_floor(problem: Problem, fraction: float) -> Problem:
    """The same with a bound on the reachable throughput: five times faster, but more floors are unreachable."""
    bound = fastest_bound(build_segments(problem))
    return replace(problem, min_samples_per_second=bound * fraction * 0.85)


def small_problem(seed: int, floor: Callable[[Problem, float], Problem] = with_floor) -> Problem:
    """Return one of infinitely many small problems; together they cover every feature."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        num_layers=int(rng.integers(1, 6)),
        num_pools=int(rng.integers(1, 4)),
        most_pods=int(rng.choice([4, 8, 30])),
        specialised=bool(rng.random() < 0.7),
        fixed=bool(rng.random() < 0.3),
        pods=bool(rng.random() < 0.3),
        equal_prices=bool(rng.random() < 0.2),
        holes=bool(rng.random() < 0.3),
        stage_overhead=bool(rng.random() < 0.3),
        server=str(rng.choice(["none", "none", "rate", "fixed"])),
    )
    kind = rng.random()
    if kind < 0.15:
        return problem  # no floor
    return floor(problem, float(rng.uniform(0.3, 1.07)))


def document(**changes: Any) -> dict[str, Any]:
    """Return a problem file of two layers and two pools that is easy to compute by hand.

    Per sample: first layer on cpu 0.001 (half of it parallel), second on gpu 0.0005 (all parallel).
    """
    value: dict[str, Any] = {
        "version": 1,
        "batchSize": 100,
        "samples": 3_600_000,
        "minSamplesPerSecond": 1000,
        "pools": [
            {"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 0.5, "maxUnits": 10},
            {"name": "gpu", "deviceType": "GPU", "pricePerUnitHour": 2.0, "maxUnits": 4},
        ],
        "layers": [
            {
                "name": "embedding",
                "kind": "Embedding",
                "inputBytes": 0,
                "weightBytes": 1e9,
                "pools": {
                    "cpu": {
                        "computeSeconds": 0.1,
                        "parallelFraction": 0.5,
                        "transferSeconds": 0.04,
                        "transferParallelFraction": 0.25,
                    },
                    "gpu": {},
                },
            },
            {
                "name": "dense",
                "pools": {
                    "cpu": {"computeSeconds": 1.0, "parallelFraction": 1.0},
                    "gpu": {"computeSeconds": 0.05, "parallelFraction": 1.0},
                },
            },
        ],
    }
    return value | changes
