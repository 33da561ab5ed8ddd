"""Algorithm 1 of [HeterPS] as printed, with a switch for every erratum, to show its cost.

    .venv/bin/python -m experiments.literal_rl --model ctrdnn --pools 4

An LSTM with the five features of the paper (one-hot index of the layer, one-hot kind, input bytes, weight bytes,
communication time) and T outputs per layer; it sees neither speeds nor prices nor its earlier choices, so all plans of
a round come from the same probabilities. The variants build on one another:

- `printed`: the cost is the reward, which equation (16) ascends (13); equation (14) sums over types instead of layers,
  so only the first T layers learn (14); the baseline starts from 0 (15); plans are drawn at random, not from the policy
  (16); the answer is the most probable plan (16).
- `sign`: 13 corrected. `layers`: 14 too. `baseline`: 15 too (starts from the first mean). `own plans`: the plans are
  drawn from the policy. `best plan`: the answer is the best plan evaluated; 16 is corrected except that the network
  still does not see its earlier choices.

What plans cost is behind an interface, `Costs`: by the cost model here (`ModelCosts`), measured in real runs in
`measured_learning`. Infeasible plans have no cost in the paper. `ModelCosts` takes that of `Evaluator.scores`, at most
twice the most expensive feasible plan of the round, so that rewards stay finite.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.cells import Array, cell_of
from heterps_planner.search.sweep import minimise

__all__ = ["VARIANTS", "Costs", "Literal", "ModelCosts", "Variant", "direction", "run"]

Assignments = NDArray[np.intp]


@dataclass(frozen=True)
class Variant:
    """The corrected errata, and the numbers that the paper leaves open."""

    sign: bool = False  # 13
    all_layers: bool = False  # 14
    first_mean: bool = False  # 15
    own_plans: bool = False  # 16
    best_plan: bool = False  # 16
    rounds: int = 300
    plans: int = 32  # per round
    rate: float = 5e-3
    gamma: float = 0.1  # of the moving average of the baseline
    adam: bool = True  # otherwise plain gradient steps
    hidden: int = 32


_PRINTED = Variant()
VARIANTS: dict[str, Variant] = {
    "printed": _PRINTED,
    "sign": replace(_PRINTED, sign=True),
    "layers": replace(_PRINTED, sign=True, all_layers=True),
    "baseline": replace(_PRINTED, sign=True, all_layers=True, first_mean=True),
    "own plans": replace(_PRINTED, sign=True, all_layers=True, first_mean=True, own_plans=True),
    "best plan": replace(_PRINTED, sign=True, all_layers=True, first_mean=True, own_plans=True, best_plan=True),
}


@dataclass(frozen=True)
class Literal:
    """The result of one run."""

    assignment: Assignments  # (L,), the answer
    rate: float  # dollars per hour and (sample per second), infinite if the answer is infeasible
    mean_cost: list[float]  # of each round, relative to the first plan of reference


class Costs(Protocol):
    """What plans cost, in dollars per hour and (sample per second)."""

    def of(self, drawn: Assignments) -> NDArray[np.float64]:
        """Return finite costs (G,) of a round's plans (G, L), infeasible ones above all feasible ones of the round."""

    def rate(self, assignment: Assignments) -> float:
        """Return the cost of one plan (L,), infinite if it is infeasible."""

    @property
    def best(self) -> Assignments | None:
        """The cheapest feasible plan (L,) so far."""


class ModelCosts:
    """Costs by the cost model, with exact provisioning."""

    def __init__(self, segments: Segments) -> None:
        self._evaluator = Evaluator(segments)

    def of(self, drawn: Assignments) -> NDArray[np.float64]:
        """As in `Costs`; an infeasible plan costs up to twice the most expensive feasible one of the round."""
        rates, scores = self._evaluator.rates(drawn), self._evaluator.scores(drawn)
        feasible = np.isfinite(rates)
        if not feasible.any():
            result: NDArray[np.float64] = scores - scores.min() + 1
            return result
        most = float(rates[feasible].max())
        excess = scores - float(scores[feasible].max())
        return np.where(feasible, rates, most * (1 + np.clip(excess / (1 + np.abs(excess)), 0, 1)))

    def rate(self, assignment: Assignments) -> float:
        """As in `Costs`."""
        return float(self._evaluator.rates(assignment[None])[0])

    @property
    def best(self) -> Assignments | None:
        """As in `Costs`."""
        return self._evaluator.best_assignment


def features_of_paper(problem: Problem) -> NDArray[np.float64]:
    """Return the five features of section 5.2, the sizes and times relative to their largest value, (L, F)."""
    layers = problem.layers
    kinds = sorted({layer.kind for layer in layers})
    sizes = np.array(
        [
            [layer.input_bytes, layer.weight_bytes, max(times.transfer_seconds for times in layer.pools.values())]
            for layer in layers
        ]
    )
    kind = np.array([[layer.kind == name for name in kinds] for layer in layers], dtype=np.float64)
    return np.hstack([np.eye(len(layers)), kind, sizes / np.maximum(sizes.max(axis=0), 1e-30)])


class _Lstm:
    """The network of figure 3: features of the layers in, logits of the pools out."""

    def __init__(self, rng: np.random.Generator, num_features: int, hidden: int, num_pools: int) -> None:
        scale = 1 / math.sqrt(hidden)
        self.cell = cell_of("lstm")
        self.weights: dict[str, Array] = {
            "input": rng.uniform(-scale, scale, (num_features, 4 * hidden)),
            "recurrent": rng.uniform(-scale, scale, (hidden, 4 * hidden)),
            "bias": np.zeros(4 * hidden),
            "output": rng.uniform(-scale, scale, (hidden, num_pools)),
            "output.bias": np.zeros(num_pools),
        }
        self.states: list[Array] = []
        self.kept: list[Array] = []

    def probabilities(self, features: Array) -> Array:
        """Run over the layers and return the probabilities of the pools, (L, T)."""
        w = self.weights
        drive: Array = features @ w["input"] + w["bias"]
        state = self.cell.start(1, len(w["recurrent"]), np.dtype(np.float64))
        self.states, self.kept = [state], []
        for layer in range(len(features)):
            state, kept = self.cell.step(drive[layer : layer + 1], w["recurrent"], self.states[-1])
            self.states.append(state)
            self.kept.append(kept)
        output = np.concatenate([state[:, : len(w["recurrent"])] for state in self.states[1:]])
        logits = output @ w["output"] + w["output.bias"]
        exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
        probability: Array = exponent / exponent.sum(axis=1, keepdims=True)
        return probability

    def gradient(self, features: Array, grad_logits: Array) -> dict[str, Array]:
        """Return the gradient with respect to all weights, given that with respect to the logits, (L, T)."""
        w = self.weights
        hidden = len(w["recurrent"])
        output = np.concatenate([state[:, :hidden] for state in self.states[1:]])
        grad_output = grad_logits @ w["output"].T
        grad_drive = np.empty((len(features), 4 * hidden))
        carried: Array = np.zeros((1, hidden))
        rest: Array = np.zeros((1, hidden))
        for layer in range(len(features) - 1, -1, -1):
            grad_state = np.concatenate([grad_output[layer : layer + 1] + carried, rest], axis=1)
            grad, rest = self.cell.step_back(self.states[layer], self.kept[layer], grad_state)
            grad_drive[layer] = grad[0]
            carried = grad @ w["recurrent"].T
        before = np.concatenate([state[:, :hidden] for state in self.states[:-1]])
        return {
            "input": features.T @ grad_drive,
            "recurrent": before.T @ grad_drive,
            "bias": grad_drive.sum(axis=0),
            "output": output.T @ grad_logits,
            "output.bias": grad_logits.sum(axis=0),
        }


def run(
    problem: Problem,
    variant: Variant,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    costs: Costs | None = None,
) -> Literal:
    """Run Algorithm 1 on a problem.

    Args:
        problem: the problem.
        variant: corrected errata.
        seed: seed of the weights and the plans.
        should_stop: ends the rounds.
        costs: of the plans; None: by the cost model.
    """
    rng = np.random.default_rng(seed)
    costs = costs or ModelCosts(build_segments(problem))
    features = features_of_paper(problem)
    num_layers, num_pools = len(problem.layers), len(problem.pools)
    network = _Lstm(rng, features.shape[1], variant.hidden, num_pools)
    adam = Adam(network.weights, variant.rate, math.inf)
    baseline: float | None = None if variant.first_mean else 0.0
    reference: float | None = None
    mean_cost: list[float] = []
    for _ in range(variant.rounds):
        if should_stop():
            break
        probability = network.probabilities(features)
        if variant.own_plans:
            noise = rng.gumbel(size=(variant.plans, num_layers, num_pools))
            drawn = (np.log(np.maximum(probability, 1e-300)) + noise).argmax(axis=2)
        else:
            drawn = rng.integers(num_pools, size=(variant.plans, num_layers))
        cost = costs.of(drawn)
        reference = reference or float(cost.mean())  # the paper normalises costs by a constant
        reward = cost / reference * (-1 if variant.sign else 1)
        mean_cost.append(float(cost.mean() / reference))
        baseline = float(reward.mean()) if baseline is None else baseline
        advantage = (reward - baseline) / variant.plans
        ascent = direction(probability, drawn, advantage, all_layers=variant.all_layers)
        gradient = network.gradient(features, -ascent)
        if variant.adam:
            adam.step(gradient)
        else:
            for name, value in gradient.items():
                network.weights[name] -= variant.rate * value
        baseline = (1 - variant.gamma) * baseline + variant.gamma * float(reward.mean())
    answer = network.probabilities(features).argmax(axis=1)
    if variant.best_plan and (best := costs.best) is not None:
        answer = best
    return Literal(answer, costs.rate(answer), mean_cost)


def direction(
    probability: Array, drawn: NDArray[np.intp], advantage: NDArray[np.float64], *, all_layers: bool
) -> NDArray[np.float64]:
    """Equations (14) and (15) for the logits: sum over plans of advantage * (one-hot(choice) - probability).

    Args:
        probability: (L, T).
        drawn: the plans, (G, L).
        advantage: (R - b) / G, (G,).
        all_layers: False takes the sum of (14) as printed, over t = 1..T where l = 1..L is meant (erratum 14).

    Returns:
        (L, T).
    """
    num_pools = probability.shape[1]
    one_hot = (drawn[:, :, None] == np.arange(num_pools)).astype(np.float64)
    result: NDArray[np.float64] = (advantage[:, None, None] * (one_hot - probability)).sum(axis=0)
    if not all_layers:
        result[num_pools:] = 0
    return result


def main() -> None:
    """Command line: run every variant on one problem."""
    from experiments.clusters import MODELS, cluster

    parser = argparse.ArgumentParser(description="What each erratum of Algorithm 1 costs.")
    parser.add_argument("--model", choices=MODELS, default="ctrdnn")
    parser.add_argument("--pools", type=int, default=4)
    parser.add_argument("--limits", choices=("loose", "tight"), default="loose")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    problem = cluster(arguments.model, arguments.pools, limits=arguments.limits)
    optimum = minimise(build_segments(problem)).rate
    for name, variant in VARIANTS.items():
        rates = [run(problem, variant, seed).rate for seed in range(arguments.seeds)]
        excess = ", ".join(
            f"{100 * (rate / optimum - 1):.1f}" if math.isfinite(rate) else "infeasible" for rate in rates
        )
        print(f"{name:10} excess over the optimum in %: {excess}", flush=True)


if __name__ == "__main__":
    main()
