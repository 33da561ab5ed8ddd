"""Time of the exact planner to certify an optimum under pool limits.

    python -m benchmarks.planner_speed [--problems 200] [--large 20] [--clusters 3]
        [--levels drawn cut] [--limit 60] [--output table|json]

The problems have one CPU pool and T - 1 accelerator pools of random speed, price and limit; layers differ in how much
an accelerator helps, and the floor is drawn between 10 % and 100 % of the highest throughput that the limits allow, so
that some limits bind. The grid after them has the models and clusters of `experiments`, with limits so tight that
several bind. `search` is the optimum with its certificate, `plan` adds the exact shadow prices. Times are processor
times.

The second table has the large problems, with a time limit: as drawn, where hardly a limit binds, and `cut`, where the
limits of the pools of the cheapest plan were cut twice. `command` is all that `heterps plan PROBLEM` computes: `plan`
and the alternatives.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from experiments.clusters import MODELS, cluster

from heterps_planner import Layer, LayerTimes, Plan, Pool, Problem, plan
from heterps_planner.model.segments import build_segments
from heterps_planner.planning import allowance, deadline_test
from heterps_planner.plans.explain import explain
from heterps_planner.search.limits import fastest
from heterps_planner.search.sweep import SearchOptions, minimise

_LEVELS = ((50, 16, 6), (100, 32, 3), (200, 64, 1))  # layers, pools, problems
_LOOKS = 2_000  # effort of drawing, in looks at the time limit, so that it repeats on any machine
_CUTS = 2


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
    best, _ = fastest(build_segments(problem), _after(_LOOKS))
    return replace(problem, min_samples_per_second=best * float(rng.uniform(0.1, 1.0)))


def cut_limits(problem: Problem, rng: np.random.Generator) -> Problem:
    """Cut the limits of the pools of the cheapest plan to 50 % to 90 % of its units, as long as a plan is left."""
    result = problem
    for _ in range(_CUTS + 1):
        found = minimise(build_segments(problem), SearchOptions(should_stop=_after(_LOOKS)))
        if found.choice is None or not found.finished:
            break
        result = problem
        used = dict.fromkeys(range(len(problem.pools)), 0)
        for (_, _, pool), pods in zip(found.choice.stages, found.choice.pods, strict=True):
            used[pool] += pods
        pools = [
            replace(pool, max_units=max(1, int(used[t] * rng.uniform(0.5, 0.9)))) if used[t] > 1 else pool
            for t, pool in enumerate(problem.pools)
        ]
        problem = replace(problem, pools=tuple(pools))
    return result


def _after(looks: int) -> Callable[[], bool]:
    """Return a time limit that counts how often it is asked."""
    left = looks

    def should_stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return should_stop


def measure_level(num_layers: int, num_pools: int, num_problems: int, limit: float, *, cut: bool) -> dict[str, Any]:
    """Plan large random problems as the command does, and summarise the times in seconds."""
    clock = time.process_time
    search, planned, command, gaps, binding = [], [], [], [], []
    for seed in range(num_problems):
        problem = draw_problem(np.random.default_rng(seed), num_layers, num_pools)
        problem = cut_limits(problem, np.random.default_rng(seed)) if cut else problem
        began = clock()
        minimise(build_segments(problem), SearchOptions(should_stop=deadline_test(began + limit, clock)))
        search.append(clock() - began)
        began = clock()
        result = plan(problem, deadline=began + limit, clock=clock)
        planned.append(clock() - began)
        if isinstance(result, Plan):
            explain(problem, result, allowance(deadline_test(began + limit, clock), result.seconds, clock))
            gaps.append(result.gap)
            binding.append(len(result.binding_limits))
        command.append(clock() - began)
    return {
        "problems": f"{'cut' if cut else 'drawn'} L={num_layers} T={num_pools}",
        "number": num_problems,
        "certified": sum(gap == 0 for gap in gaps),
        "bindingLimits": float(np.mean(binding)) if binding else 0.0,
        "largestGap": max(gaps, default=0.0),
        **{
            name: {"median": float(np.median(values)), "worst": max(values)}
            for name, values in (("searchSeconds", search), ("planSeconds", planned), ("commandSeconds", command))
        },
    }


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
    parser.add_argument(
        "--levels", nargs="*", choices=["drawn", "cut"], default=["drawn", "cut"], help="large problems"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="time limit of each of these, in seconds")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    rows = [
        measure(*size, number)
        for size, number in (((20, 4), arguments.problems), ((16, 64), arguments.large))
        if number
    ]
    if arguments.clusters:
        rows += [measure_clusters(num_pools, arguments.clusters) for num_pools in (2, 4, 16, 32, 64)]
    levels = []
    for level in _LEVELS:
        for kind in arguments.levels:
            levels.append(measure_level(*level, arguments.limit, cut=kind == "cut"))
            print(f"measured {levels[-1]['problems']}", file=sys.stderr, flush=True)  # drawing some takes minutes
    if arguments.output == "json":
        print(json.dumps({"version": 2, "rows": rows, "levels": levels}, indent=2))
        return
    if rows:
        _print_rows(rows)
    if levels:
        _print_levels(levels)


def _print_rows(rows: list[dict[str, Any]]) -> None:
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


def _print_levels(levels: list[dict[str, Any]]) -> None:
    print("problems             number  certified    gap  binding limits   search, s (worst)    plan   (worst) command")
    for row in levels:
        times = [row[f"{name}Seconds"] for name in ("search", "plan", "command")]
        print(
            f"{row['problems']:<20} {row['number']:>6} {row['certified']:>10} {row['largestGap']:>6.1g} "
            f"{row['bindingLimits']:>15.1f}   " + "  ".join(f"{t['median']:>7.2f} ({t['worst']:.2f})" for t in times)
        )


if __name__ == "__main__":
    main()
