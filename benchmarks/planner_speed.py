"""Time of the exact planner to certify an optimum under pool limits.

    python -m benchmarks.planner_speed [--problems 200] [--large 20] [--clusters 3] [--output table|json]

The problems have one CPU pool and T - 1 accelerator pools of random speed, price and limit; layers differ in how much
an accelerator helps, and the floor is drawn between 10 % and 100 % of the highest throughput that the limits allow, so
that some limits bind. The grid after them has the models and clusters of `experiments`, with limits so tight that
several bind. `search` is the optimum with its certificate, `plan` adds the exact shadow prices. Times are processor
times.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
from experiments.clusters import MODELS, cluster

from heterps_planner import Layer, LayerTimes, Plan, Pool, Problem, plan
from heterps_planner.model.segments import build_segments
from heterps_planner.search.limits import fastest
from heterps_planner.search.sweep import minimise


def draw_problem(rng: np.random.Generator, num_layers: int, num_pools: int) -> Problem:
    """Draw a problem with binding or nearly binding limits."""
    pools, speeds = [], []
    for t in range(num_pools):
        speed = 1.0 if t == 0 else float(rng.uniform(8, 60))
        price = 0.04 if t == 0 else 0.04 * speed**0.9 * float(rng.uniform(0.6, 1.8))
        limit = int(rng.integers(40, 400)) if t == 0 else int(rng.integers(2, 24))
        pools.append(Pool(f"pool{t}", "CPU" if t == 0 else "GPU", round(price, 3), limit))
        speeds.append(speed)
    layers = []
    for i in range(num_layers):
        base = float(10 ** rng.uniform(-2, -0.3))
        exponent = float(rng.uniform(0.0, 0.5)) if rng.random() < 0.25 else 1.0  # lookups gain little on accelerators
        times = {
            pool.name: LayerTimes(
                compute_seconds=base / speed**exponent * float(rng.uniform(0.8, 1.25)),
                parallel_fraction=float(rng.uniform(0.9, 0.999)),
                transfer_seconds=float(10 ** rng.uniform(-3.5, -1.5)),
                transfer_parallel_fraction=float(rng.uniform(0.5, 0.99)),
            )
            for pool, speed in zip(pools, speeds, strict=True)
        }
        layers.append(Layer(f"layer{i}", times))
    problem = Problem(512, 1e10, tuple(pools), tuple(layers))
    best, _ = fastest(build_segments(problem))
    return replace(problem, min_samples_per_second=best * float(rng.uniform(0.1, 1.0)))


def measure(num_layers: int, num_pools: int, num_problems: int) -> dict[str, Any]:
    """Plan random problems and summarise the times in milliseconds."""
    drawn = [draw_problem(np.random.default_rng(seed), num_layers, num_pools) for seed in range(num_problems)]
    return {"problems": f"random L={num_layers} T={num_pools}", **summarise(drawn)}


def measure_clusters(num_pools: int, num_seeds: int) -> dict[str, Any]:
    """Plan all models on tight clusters of one size."""
    drawn = [cluster(name, num_pools, limits="tight", seed=seed) for name in MODELS for seed in range(num_seeds)]
    return {"problems": f"tight clusters T={num_pools}", **summarise(drawn)}


def summarise(problems: list[Problem]) -> dict[str, Any]:
    """Plan problems and summarise the times in milliseconds."""
    search_ms, plan_ms, gaps, binding, certified = [], [], [], 0, 0
    for problem in problems:
        began = time.process_time()
        minimise(build_segments(problem))
        search_ms.append(1e3 * (time.process_time() - began))
        began = time.process_time()
        result = plan(problem)
        plan_ms.append(1e3 * (time.process_time() - began))
        if isinstance(result, Plan):
            gaps.append(result.gap)
            certified += result.optimal
            binding += bool(result.binding_limits)
    return {
        "number": len(problems),
        "planned": len(gaps),
        "certified": certified,
        "withBindingLimits": binding,
        "largestGap": max(gaps, default=0.0),
        "searchMilliseconds": _summary(search_ms),
        "planMilliseconds": _summary(plan_ms),
    }


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "p95": float(np.percentile(values, 95)),
        "worst": max(values),
        "shareBelow100": float(np.mean(np.array(values) < 100)),
    }


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description="Speed of the exact planner under pool limits.")
    parser.add_argument("--problems", type=int, default=200, help="random problems with 20 layers and 4 pools")
    parser.add_argument("--large", type=int, default=20, help="random problems with 16 layers and 64 pools")
    parser.add_argument("--clusters", type=int, default=3, help="clusters per model and number of pools")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    rows = [measure(20, 4, arguments.problems), measure(16, 64, arguments.large)]
    rows += [measure_clusters(num_pools, arguments.clusters) for num_pools in (2, 4, 16, 32, 64)]
    if arguments.output == "json":
        print(json.dumps({"version": 1, "rows": rows}, indent=2))
        return
    print("problems             number  binding  certified    gap       ms   median      p95    worst  < 100 ms")
    for row in rows:
        head = f"{row['problems']:<20} {row['number']:>6} {row['withBindingLimits']:>8} "
        head += f"{row['certified']:>10} {row['largestGap']:>6.1g}"
        for name in ("search", "plan"):
            s = row[f"{name}Milliseconds"]
            print(
                f"{head}   {name:>6} {s['median']:>8.1f} {s['p95']:>8.1f} {s['worst']:>8.1f} {s['shareBelow100']:>9.0%}"
            )
            head = " " * len(head)


if __name__ == "__main__":
    main()
