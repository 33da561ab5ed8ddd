"""Batch balancing: the loss of each policy against an optimum that knows all speeds beforehand.

The workers are simulated (`experiments.simulator`), so that their true speeds are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from experiments.balancenet import equation_5
from experiments.simulator import Balancer, Proportional, Scenario, SimulatedWorker, Slowdown, simulate
from heterps_planner.balancing import BatchController, Worker, divide_optimal, finish_time
from heterps_planner.balancing.balancenet import algorithm_1

__all__ = ["POLICIES", "SCENARIOS", "balancenet_rule", "balancing_regret"]

_SAMPLES_PER_WORKER = 128

POLICIES: Mapping[str, Callable[[int, int], Balancer]] = {
    "even": lambda total, seed: BatchController(total, policy="equal"),
    "random": lambda total, seed: BatchController(total, policy="random", seed=seed),
    "BalanceNet, renormalised": lambda total, seed: BatchController(total, policy="bno"),
    "proportional, every step": lambda total, seed: Proportional(total),
    "controller": lambda total, seed: BatchController(total, policy="optimal"),
}


def _workers(n: int, seed: int, slowest: float = 4.0) -> tuple[SimulatedWorker, ...]:
    """Return workers 1 to `slowest` times as slow as the fastest, 1 ms per sample, with an overhead of 10 to 30 ms."""
    generator = np.random.default_rng([seed, n])
    paces = 0.001 * generator.permutation(np.linspace(1.0, slowest, n))
    return tuple(
        SimulatedWorker(f"w{i}", float(generator.uniform(0.01, 0.03)), float(pace)) for i, pace in enumerate(paces)
    )


def _slowed(n: int, seed: int, num_steps: int) -> Scenario:
    """The worker of median speed takes 4 times as long in the second third."""
    workers = list(_workers(n, seed))
    middle = sorted(range(n), key=lambda i: workers[i].seconds_per_sample)[n // 2]
    slowdown = Slowdown(num_steps // 3, 2 * num_steps // 3, 4.0, 4.0)
    workers[middle] = replace(workers[middle], slowdowns=(slowdown,))
    return Scenario(tuple(workers), _SAMPLES_PER_WORKER * n, num_steps)


def _outlier(n: int, seed: int, num_steps: int) -> Scenario:
    """All workers are equal except one, with a tenth of their speed."""
    workers = list(_workers(n, seed, slowest=1.0))
    workers[0] = replace(workers[0], seconds_per_sample=10 * workers[0].seconds_per_sample)
    return Scenario(tuple(workers), _SAMPLES_PER_WORKER * n, num_steps)


def _ramp(n: int, seed: int, num_steps: int) -> Scenario:
    """One of equal workers gradually becomes three times as slow, permanently."""
    workers = list(_workers(n, seed, slowest=1.0))
    first, end = num_steps // 6, 2 * num_steps // 3
    slowdowns = (Slowdown(first, end, 1.0, 3.0), Slowdown(end, num_steps, 3.0, 3.0))
    workers[0] = replace(workers[0], slowdowns=slowdowns)
    return Scenario(tuple(workers), _SAMPLES_PER_WORKER * n, num_steps)


def _churn(n: int, seed: int, num_steps: int) -> Scenario:
    """Every other worker is on a spot instance: it is taken away, and one of another speed joins later."""
    generator = np.random.default_rng([seed, n, 1])
    workers = []
    for i, worker in enumerate(_workers(n, seed)):
        if i % 2 == 0:
            workers.append(worker)
            continue
        gone = int(generator.integers(num_steps // 6, num_steps // 2))
        back = int(generator.integers(gone + num_steps // 12, gone + num_steps // 4))
        pace = float(generator.uniform(0.001, 0.004))
        workers.append(replace(worker, leaves=gone))
        workers.append(SimulatedWorker(f"{worker.name}b", worker.overhead_seconds, pace, joins=back))
    return Scenario(tuple(workers), _SAMPLES_PER_WORKER * n, num_steps)


def _stragglers(n: int, seed: int, num_steps: int) -> Scenario:
    """Any worker takes 4 times as long in one step of a hundred."""
    return Scenario(_workers(n, seed), _SAMPLES_PER_WORKER * n, num_steps, 0.08, 0.01, 4.0)


def _alike(n: int, seed: int, num_steps: int) -> Scenario:
    """Equal workers: a policy can only do harm."""
    return Scenario(_workers(n, seed, slowest=1.0), _SAMPLES_PER_WORKER * n, num_steps)


# Name -> (scenario of (workers, seed, steps), numbers of workers); the first one is quoted.
SCENARIOS: Mapping[str, tuple[Callable[[int, int, int], Scenario], tuple[int, ...]]] = {
    "1-4x, one 4x slower for a third": (_slowed, (8, 2, 4, 16, 32, 64)),
    "one worker at a tenth": (_outlier, (8,)),
    "one worker slows down 3x": (_ramp, (8,)),
    "spot instances go and come": (_churn, (8,)),
    "1 % of steps 4x late": (_stragglers, (8,)),
    "equal workers": (_alike, (8,)),
}


def balancing_regret(seeds: Sequence[int], quick: bool) -> list[dict[str, str | int | float]]:
    """Run every policy on every scenario.

    Args:
        seeds: seeds of workers and noise; the same ones for every policy.
        quick: a tenth of the steps, and 8 workers only.

    Returns:
        One row per scenario, number of workers, policy and seed: `scenario`, `workers`, `steps`, `policy`, `seed`,
        `time_ratio` (time / time of the clairvoyant optimum under the same noise), `regret_percent` and `changes`
        (number of changes of batch sizes). The optimum is the last policy, with a ratio of 1 by definition.
    """
    num_steps = 60 if quick else 600
    rows: list[dict[str, str | int | float]] = []
    for name, (make, sizes) in SCENARIOS.items():
        for n in sizes[:1] if quick else sizes:
            for seed in seeds:
                scenario = make(n, seed, num_steps)
                told: dict[str, str | int | float] = {"scenario": name, "workers": n, "steps": num_steps, "seed": seed}
                for policy, balancer in POLICIES.items():
                    run = simulate(scenario, balancer(scenario.total, seed), seed)
                    rows.append(
                        told
                        | {
                            "policy": policy,
                            "time_ratio": 1 + run.regret,
                            "regret_percent": 100 * run.regret,
                            "changes": run.num_changes,
                        }
                    )
                rows.append(told | {"policy": "optimum", "time_ratio": 1.0, "regret_percent": 0.0, "changes": 0})
    return rows


def balancenet_rule() -> list[dict[str, str | int | float]]:
    """Return the results of BalanceNet's rule as printed, for a base batch size of 256.

    Returns:
        One row per case: `case`, `nodes`, `rule`, `smallest` and `largest` batch size, `sum_ratio` (sum of the batch
        sizes / base batch size; a rule that conserves it has 1) and `time_ratio` (time of a step / the least time in
        which the same samples can be done, by computing alone).
    """
    rows: list[dict[str, str | int | float]] = []

    def add(case: str, rule: str, operations: Sequence[float], sizes: Sequence[int]) -> None:
        workers = [Worker(0.0, 1 / speed) for speed in operations]
        best = finish_time(workers, divide_optimal(workers, sum(sizes)))
        rows.append(
            {
                "case": case,
                "nodes": len(sizes),
                "rule": rule,
                "smallest": min(sizes),
                "largest": max(sizes),
                "sum_ratio": sum(sizes) / 256,
                "time_ratio": finish_time(workers, sizes) / best,
            }
        )

    for n in (1, 2, 4, 8, 16, 64):
        same = [1.0] * n
        add("identical nodes", "Algorithm 1", same, algorithm_1(same, same, same, 256))
        if n > 1:
            latency = [[float(i != j) for j in range(n)] for i in range(n)]
            add("identical nodes", "equation 5", same, equation_5(same, same, latency, 256))
    eight = [1.0] * 8
    jitter = np.random.default_rng(3).uniform(0.99, 1.0, 8).tolist()
    add("latencies within 1 %", "Algorithm 1", eight, algorithm_1(eight, eight, jitter, 256))
    add("one node at 10 times the latency", "Algorithm 1", eight, algorithm_1(eight, eight, [10.0, *eight[1:]], 256))
    for n in (2, 4, 8, 16):
        same, operations = [1.0] * n, [0.5, *[1.0] * (n - 1)]
        add("one node at half speed", "Algorithm 1", operations, algorithm_1(operations, same, same, 256))
    operations = [0.1, *eight[1:]]
    add("one node at a tenth of the speed", "Algorithm 1", operations, algorithm_1(operations, eight, eight, 256))
    operations, same = np.linspace(1, 8, 64).tolist(), [1.0] * 64
    add("speeds spread over 8x", "Algorithm 1", operations, algorithm_1(operations, same, same, 256))
    return rows
