"""Train the policy that `pretrained` ships: imitation of exact optima of random jobs on random clusters.

    .venv/bin/python -m experiments.train_policy --out operator/heterps_planner/policy/pretrained.safetensors

Every problem of the training set is drawn from `random_job`: 3 to 24 layers, 2 to 64 pools. A layer is memory-bound, or
compute-bound, or small; a pool has a speed for each of the three, a price that grows with its speed, and a limit. The
floor is drawn between very loose and barely reachable, so that limits bind in many of them. None of the paper's models,
of their profiles or of `clusters.cluster` is used: they are for testing only. Each problem is solved exactly
(`sweep.minimise`), and the network learns to make the optimum's choices probable.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps_planner.assignments import Evaluator
from heterps_planner.cost_model import build_segments
from heterps_planner.points import Choice, fastest_bound
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.features import NAMES, Features, features_of
from heterps_planner.policy.network import Network, Parameters, initial_parameters, stack
from heterps_planner.policy.pretrained import Policy, save
from heterps_planner.problem import Layer, LayerTimes, ParameterServer, Pool, Problem
from heterps_planner.sweep import minimise

__all__ = ["Example", "label", "random_job", "train"]

LAYERS = (3, 24)
POOLS = (2, 64)
GROUP = 16  # problems of the same size, which are one batch
HELD_OUT = 0.05  # share of the groups
MOST_QUESTIONS = 40  # of the exact method whether it should stop; ends the few long searches
BATCH_SIZE = 512


@dataclass(frozen=True)
class Example:
    """One solved problem."""

    problem: Problem
    features: Features
    assignment: NDArray[np.intp]  # (L,), of the optimum
    rate: float


def random_job(rng: np.random.Generator, num_layers: int, num_pools: int) -> Problem:
    """Draw a job and a cluster."""
    # Speeds relative to a card of reference: memory-bound, compute-bound, small layers.
    pools: list[Pool] = []
    speeds: list[NDArray[np.float64]] = []
    num_slow = 1 if num_pools < 8 or rng.random() < 0.5 else int(rng.integers(1, 4))
    alike = rng.random() < 0.25  # cards that differ mostly in price and limit
    for t in range(num_pools):
        if t < num_slow:
            level = rng.uniform(-5.0, -3.0)
            speed = np.exp(
                [level + rng.uniform(1.0, 3.5), level + rng.uniform(-1.5, 0.5), level + rng.uniform(0.5, 2.5)]
            )
            price = 0.04 * float(np.exp(rng.uniform(-0.7, 0.7)))
            most = int(np.exp(rng.uniform(math.log(16), math.log(1000))))
        else:
            level = 0.0 if alike else rng.uniform(-1.6, 1.6)
            speed = np.exp(level + rng.uniform(-0.6, 0.6, 3) * (0.2 if alike else 1.0))
            price = 2.4 * float(np.exp(level * rng.uniform(0.6, 1.1) + rng.uniform(-0.7, 0.7)))
            most = int(np.exp(rng.uniform(math.log(2), math.log(48))))
        pools.append(Pool(f"pool{t}", "CPU" if t < num_slow else "GPU", round(price, 4), most))
        speeds.append(speed)
    shares = rng.dirichlet([1.0, 2.0, 2.0])
    layers: list[Layer] = []
    scale = float(np.exp(rng.uniform(-7, -2)))  # seconds per batch
    for i in range(num_layers):
        first = i == 0 and rng.random() < 0.7
        kind = 0 if first else int(rng.choice(3, p=shares))
        seconds = scale * float(np.exp(rng.normal([1.0, 1.0, -1.5][kind], 0.9)))
        mixed = np.exp(rng.normal(0, 0.25, num_pools))
        sequential = float(np.exp(rng.uniform(math.log(0.002), math.log(0.15))))
        sending = scale * float(np.exp(rng.normal(-1.5, 1.5)))
        times: dict[str, LayerTimes] = {}
        for t, pool in enumerate(pools):
            if num_pools > 2 and rng.random() < 0.01:
                continue  # this pool cannot run the layer
            own = min(0.5, sequential * float(np.exp(rng.normal(0, 0.5))))
            times[pool.name] = LayerTimes(
                compute_seconds=seconds / float(speeds[t][kind]) * float(mixed[t]),
                parallel_fraction=1 - own,
                transfer_seconds=sending * (float(np.exp(rng.uniform(0, 1))) if t < num_slow else 1.0),
                transfer_parallel_fraction=float(rng.uniform(0.7, 1.0)),
            )
        layers.append(Layer(f"layer{i}", times or {pools[0].name: LayerTimes(seconds, 0.9)}))
    problem = Problem(batch_size=BATCH_SIZE, samples=1e9, pools=tuple(pools), layers=tuple(layers))
    highest = fastest_bound(build_segments(problem))
    floor = highest * float(np.exp(rng.uniform(math.log(0.01), math.log(0.95))))
    servers = None
    if rng.random() < 0.5:
        share = float(np.exp(rng.uniform(math.log(0.002), math.log(0.3))))
        servers = ParameterServer("pool0", cores_per_sample_per_second=share * pools[0].max_units / floor)
    return Problem(
        batch_size=BATCH_SIZE,
        samples=1e9,
        pools=tuple(pools),
        layers=tuple(layers),
        min_samples_per_second=floor,
        parameter_server=servers,
    )


def assignment_of(choice: Choice, num_layers: int) -> NDArray[np.intp]:
    """Return the pool of each layer."""
    result = np.zeros(num_layers, dtype=np.intp)
    for first, last, pool in choice.stages:
        result[first : last + 1] = pool
    return result


def label(problem: Problem) -> Example | None:
    """Solve a problem exactly; None if it has no plan or takes very long."""
    questions = iter(range(MOST_QUESTIONS))
    segments = build_segments(problem)
    found = minimise(segments, should_stop=lambda: next(questions, None) is None)
    if found.choice is None or not found.finished:
        return None
    assignment = assignment_of(found.choice, segments.num_layers)
    return Example(problem, features_of(segments), assignment, found.rate)


def draw_groups(rng: np.random.Generator, num_groups: int, say: Callable[[str], None]) -> list[list[Example]]:
    """Draw and solve the training set."""
    groups: list[list[Example]] = []
    began = time.monotonic()
    for number in range(num_groups):
        num_layers = int(rng.integers(LAYERS[0], LAYERS[1] + 1))
        num_pools = round(float(np.exp(rng.uniform(math.log(POOLS[0]), math.log(POOLS[1])))))
        if number < 2:
            num_layers, num_pools = LAYERS[number], POOLS[number]
        group: list[Example] = []
        while len(group) < GROUP:
            example = label(random_job(rng, num_layers, num_pools))
            if example is not None:
                group.append(example)
        groups.append(group)
        if number % 25 == 24:
            say(f"{GROUP * (number + 1)} problems solved, {time.monotonic() - began:.0f} s")
    return groups


def train(
    groups: list[list[Example]],
    epochs: int,
    seed: int,
    say: Callable[[str], None],
    *,
    embedding: int = 32,
    hidden: int = 64,
    rate: float = 4e-3,
) -> Parameters:
    """Imitate the optima of all groups."""
    rng = np.random.default_rng(seed)
    weights = initial_parameters(rng, embedding=embedding, hidden=hidden)
    network, adam = Network(weights), Adam(weights, rate)
    network.parameters = weights
    owner = np.arange(GROUP)
    total, done = epochs * len(groups), 0
    for epoch in range(epochs):
        likelihood = 0.0
        layers = 0
        for index in rng.permutation(len(groups)):
            group = groups[index]
            action = np.array([example.assignment for example in group])
            inputs = stack([example.features for example in group])
            adam.rate = rate * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * done / total)))
            forced = network.encode(inputs).forced(owner, action)
            weight = np.full(GROUP, 1 / action.size, dtype=np.float32)
            adam.step(forced.gradient(weight))
            likelihood += float(forced.log_likelihood.sum())
            layers += action.size
            done += 1
        say(f"epoch {epoch + 1}/{epochs}: mean log-likelihood {likelihood / layers:.4f} per layer")
    return weights


def score(weights: Parameters, groups: list[list[Example]]) -> dict[str, float]:
    """Compare greedy rollouts with the optima: mean excess in % of the feasible ones, and the share of those."""
    network = Network(weights)
    excess: list[float] = []
    infeasible = 0
    for group in groups:
        encoded = network.encode(stack([example.features for example in group]))
        chosen = encoded.choose(np.arange(GROUP), None)
        for example, assignment in zip(group, chosen, strict=True):
            rate = float(Evaluator(build_segments(example.problem)).rates(assignment[None])[0])
            if math.isfinite(rate):
                excess.append(100 * (rate / example.rate - 1))
            else:
                infeasible += 1
    count = len(excess) + infeasible
    return {
        "rolloutMeanExcessPercent": round(float(np.mean(excess)), 3),
        "rolloutMedianExcessPercent": round(float(np.median(excess)), 3),
        "rolloutFeasibleShare": round(len(excess) / count, 3),
    }


def ranges_of(groups: list[list[Example]]) -> tuple[list[float], list[float]]:
    """Return the least and the greatest value of each feature in the training set."""
    low, high = np.full(len(NAMES), np.inf), np.full(len(NAMES), -np.inf)
    for group in groups:
        for example in group:
            values = example.features.raw[example.features.possible]
            low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    return low.tolist(), high.tolist()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the policy of the method pretrained.")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument("--groups", type=int, default=400, help=f"batches of {GROUP} problems to draw")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training set")
    parser.add_argument("--seed", type=int, default=1, help="of the problems and of the network")
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    groups = draw_groups(np.random.default_rng(arguments.seed), arguments.groups, say)
    held_out = groups[2:][-max(1, round(HELD_OUT * len(groups))) :]
    training = groups[: -len(held_out)]
    weights = train(training, arguments.epochs, arguments.seed, say)
    result = score(weights, held_out)
    say(f"{len(held_out) * GROUP} problems that were not trained on: {json.dumps(result)}")
    low, high = ranges_of(training)
    command = f"python -m experiments.train_policy --groups {arguments.groups} --epochs {arguments.epochs}"
    policy = Policy(
        parameters=weights,
        lowest=low,
        highest=high,
        layers=LAYERS,
        pools=POOLS,
        provenance={
            "command": f"{command} --seed {arguments.seed}",
            "problems": str(GROUP * len(training)),
            "date": time.strftime("%Y-%m-%d"),
            "score": json.dumps(result),
        },
    )
    save(policy, arguments.out)
    say(f"wrote {arguments.out} ({arguments.out.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
