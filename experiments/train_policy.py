"""Trains the policy that `pretrained` ships, by imitation of exact optima of random jobs on random clusters.

    .venv/bin/python -m experiments.train_policy --out operator/heterps_planner/policy/pretrained.safetensors

Every problem of the training set is drawn from `training_jobs`: 3 to 24 layers, 2 to 64 pools. The paper's models,
their profiles, and the clusters of `clusters.cluster` are excluded: they serve only for testing. Each problem is solved
exactly (`sweep.minimise`), and the network learns to make the optimum's choices probable. Solved problems are stored in
a folder, so that a stopped run need not solve them again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.training_jobs import Solved, solved_job
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.features import features_of
from heterps_planner.policy.network import Inputs, Network, Parameters, initial_parameters, stack
from heterps_planner.policy.pretrained import Policy, save

__all__ = ["Group", "draw", "solve_group", "train"]

LAYERS = (3, 24)
POOLS = (2, 64)
GROUP = 16  # problems of the same size, in one batch
HELD_OUT = 0.05  # share of the groups
MOST_DRAWS = 200  # for the problems of one group; more means that hardly any is feasible


@dataclass(frozen=True)
class Group:
    """Problems of one size with their optima, as input of the network."""

    inputs: Inputs
    action: NDArray[np.intp]  # shape (GROUP, L), choices of the optima
    lowest: NDArray[np.float64]  # (F,), of each feature
    highest: NDArray[np.float64]


def draw(seed: int, number: int) -> list[Solved]:
    """Draw and solve the problems of a group; each group has its own random numbers."""
    rng = np.random.default_rng([seed, number])
    num_layers = int(rng.integers(LAYERS[0], LAYERS[1] + 1))
    num_pools = round(float(np.exp(rng.uniform(math.log(POOLS[0]), math.log(POOLS[1])))))
    if number < 2:
        num_layers, num_pools = LAYERS[number], POOLS[number]
    drawn = (solved_job(rng, num_layers, num_pools) for _ in range(MOST_DRAWS))
    solved = list(itertools.islice((item for item in drawn if item is not None), GROUP))
    if len(solved) < GROUP:
        raise RuntimeError(f"only {len(solved)} of {MOST_DRAWS} problems of {num_layers} layers have a plan")
    return solved


def solve_group(seed: int, number: int, folder: Path) -> Group:
    """Return a group, from its file if it exists."""
    path = folder / f"{seed}-{number}.npz"
    names = [field.name for field in fields(Inputs)]
    if path.is_file():
        with np.load(path) as file:
            inputs = Inputs(*(file[name] for name in names))
            return Group(inputs, file["action"], file["lowest"], file["highest"])
    solved = draw(seed, number)
    features = [features_of(build_segments(item.problem)) for item in solved]
    values = np.concatenate([item.raw[item.possible] for item in features])
    action = np.array([item.assignment for item in solved])
    group = Group(stack(features), action, values.min(axis=0), values.max(axis=0))
    arrays = {name: getattr(group.inputs, name) for name in names}
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, action=action, lowest=group.lowest, highest=group.highest, **arrays)
    partial.replace(path)
    return group


def train(
    groups: list[Group],
    epochs: int,
    seed: int,
    say: Callable[[str], None],
    keep: Callable[[int, Parameters], None] = lambda epoch, weights: None,
    *,
    embedding: int = 32,
    hidden: int = 64,
    rate: float = 4e-3,
) -> Parameters:
    """Imitate the optima of all groups.

    Args:
        groups: the training set.
        epochs: passes over it.
        seed: seed of the initial parameters and of the order.
        say: called with the likelihood after every epoch.
        keep: called with the parameters after every epoch.
        embedding: width of the embeddings.
        hidden: width of the cell.
        rate: initial learning rate of Adam, with cosine decay.
    """
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
            adam.rate = rate * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * done / total)))
            forced = network.encode(group.inputs).forced(owner, group.action)
            weight = np.full(GROUP, 1 / group.action.size, dtype=np.float32)
            adam.step(forced.gradient(weight))
            likelihood += float(forced.log_likelihood.sum())
            layers += group.action.size
            done += 1
        say(f"epoch {epoch + 1}/{epochs}: mean log-likelihood {likelihood / layers:.4f} per layer")
        keep(epoch, weights)
    return weights


def score(weights: Parameters, groups: list[list[Solved]]) -> dict[str, float]:
    """Compare greedy rollouts with the optima: mean excess in % of the feasible ones, and the share of those."""
    network = Network(weights)
    excess: list[float] = []
    infeasible = 0
    for group in groups:
        for item in group:
            segments = build_segments(item.problem)
            encoded = network.encode(stack([features_of(segments)]))
            chosen = encoded.choose(np.zeros(1, dtype=np.intp), None)
            rate = float(Evaluator(segments).rates(chosen)[0])
            if math.isfinite(rate):
                excess.append(100 * (rate / item.rate - 1))
            else:
                infeasible += 1
    count = len(excess) + infeasible
    return {
        "rolloutMeanExcessPercent": round(float(np.mean(excess)), 3),
        "rolloutMedianExcessPercent": round(float(np.median(excess)), 3),
        "rolloutFeasibleShare": round(len(excess) / count, 3),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the policy of the method pretrained.")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument("--groups", type=int, default=500, help=f"batches of {GROUP} problems to draw")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training set")
    parser.add_argument("--seed", type=int, default=1, help="of the problems and of the network")
    parser.add_argument("--cache", type=Path, default=Path(".cache/policy"), help="folder for solved problems")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(text, flush=True)

    began = time.monotonic()
    first_held_out = arguments.groups - max(1, round(HELD_OUT * arguments.groups))
    training: list[Group] = []
    for number in range(first_held_out):
        training.append(solve_group(arguments.seed, number, arguments.cache))
        if number % 25 == 24:
            say(f"{GROUP * (number + 1)} problems solved, {time.monotonic() - began:.0f} s")
    held_out = [draw(arguments.seed, number) for number in range(first_held_out, arguments.groups)]
    command = f"python -m experiments.train_policy --groups {arguments.groups} --epochs {arguments.epochs}"
    low = np.min([group.lowest for group in training], axis=0).tolist()
    high = np.max([group.highest for group in training], axis=0).tolist()

    def write(path: Path, weights: Parameters, result: dict[str, float]) -> None:
        provenance = {
            "command": f"{command} --seed {arguments.seed}",
            "problems": str(GROUP * len(training)),
            "date": time.strftime("%Y-%m-%d"),
            "score": json.dumps(result),
        }
        save(Policy(weights, low, high, LAYERS, POOLS, provenance), path)

    def keep(epoch: int, weights: Parameters) -> None:
        if epoch % 5 == 4:
            write(arguments.cache / "unfinished.safetensors", weights, {})

    weights = train(training, arguments.epochs, arguments.seed, say, keep)
    result = score(weights, held_out)
    say(f"{len(held_out) * GROUP} problems that were not trained on: {json.dumps(result)}")
    write(arguments.out, weights, result)
    say(f"wrote {arguments.out} ({arguments.out.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
