"""Simulated training steps of workers with known, changing and noisy speeds, for testing batch division.

A step takes as long as its slowest worker. The loss of a balancer is measured against a clairvoyant one, which knows
the speeds of every step beforehand, but not its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from heterps_planner.balancing.optimal import divide_equal, divide_optimal
from heterps_planner.balancing.policies import divide_in_proportion
from heterps_planner.balancing.workers import Worker
from heterps_planner.errors import ProblemError

__all__ = ["Balancer", "Proportional", "Run", "Scenario", "SimulatedWorker", "Slowdown", "simulate"]


class Balancer(Protocol):
    """A balancer, such as `BatchController`."""

    def decide(self, observations: Mapping[str, tuple[int, float]]) -> dict[str, int] | None:
        """Return new batch sizes by worker, or None to keep the current ones."""
        ...


@dataclass
class Proportional:
    """Gives every worker a share in proportion to its samples per second in the last step, every time."""

    total: int

    def decide(self, observations: Mapping[str, tuple[int, float]]) -> dict[str, int] | None:
        """Return new batch sizes by worker."""
        least = int(self.total >= len(observations))
        all_workers = [Worker(0.0, 1.0, least)] * len(observations)
        rates = [max(batch, 1) / seconds for batch, seconds in observations.values()]
        return dict(zip(observations, divide_in_proportion(rates, all_workers, self.total), strict=True))


@dataclass(frozen=True)
class Slowdown:
    """A worker takes `begin_factor` times as long at step `first`, changing linearly to `end_factor` at step `end`."""

    first: int
    end: int  # the first step after it
    begin_factor: float
    end_factor: float

    def factor(self, step: int) -> float:
        """Return the slowdown factor at a step."""
        if not self.first <= step < self.end:
            return 1.0
        return self.begin_factor + (self.end_factor - self.begin_factor) * (step - self.first) / (self.end - self.first)


@dataclass(frozen=True)
class SimulatedWorker:
    """A worker's true speed, and the steps in which it is present."""

    name: str
    overhead_seconds: float
    seconds_per_sample: float
    slowdowns: tuple[Slowdown, ...] = ()
    joins: int = 0  # first step
    leaves: int | None = None  # first step without it

    def present(self, step: int) -> bool:
        """Whether it is present at a step."""
        return self.joins <= step and (self.leaves is None or step < self.leaves)

    def factor(self, step: int) -> float:
        """Return its slowdown factor at a step."""
        return math.prod(slowdown.factor(step) for slowdown in self.slowdowns)

    def at(self, step: int) -> Worker:
        """Return its speed at a step."""
        factor = self.factor(step)
        return Worker(self.overhead_seconds * factor, self.seconds_per_sample * factor)


@dataclass(frozen=True)
class Scenario:
    """Workers, their batch, and their irregularity."""

    workers: tuple[SimulatedWorker, ...]
    total: int  # B
    num_steps: int
    noise: float = 0.08  # standard deviation of the logarithm of a worker's time
    straggler_probability: float = 0.0  # of one worker in one step
    straggler_factor: float = 1.0  # its slowdown in that step

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.total < 1:
            raise ProblemError("scenario", f"needs steps and samples, has {self.num_steps} and {self.total}")
        for step in range(self.num_steps):
            if not any(w.present(step) for w in self.workers):
                raise ProblemError("scenario.workers", f"no worker is present at step {step}")


@dataclass(frozen=True)
class Run:
    """Result of a simulation.

    Attributes:
        seconds: duration of each step.
        clairvoyant_seconds: duration of each step if divided optimally for the true speeds, with the same noise.
        num_changes: number of changes of batch sizes by the balancer.
    """

    seconds: npt.NDArray[np.float64]
    clairvoyant_seconds: npt.NDArray[np.float64]
    num_changes: int

    @property
    def regret(self) -> float:
        """The excess time over the clairvoyant optimum: 0 is perfect, 1 is twice its time."""
        return float(self.seconds.sum() / self.clairvoyant_seconds.sum()) - 1


def simulate(scenario: Scenario, balancer: Balancer, seed: int, *, interval: int = 1) -> Run:
    """Run a balancer in closed loop.

    The balancer sees every worker's batch and time after each step; its answer applies from the next step. It also sees
    that workers joined (with a batch of 0) or left: the batch is then divided evenly until it answers.

    Args:
        scenario: workers and their behaviour.
        balancer: starts with an even division.
        seed: seed of the noise.
        interval: steps between two decisions of the balancer; it sees mean times over them.
    """
    generator = np.random.default_rng(seed)
    shape = (scenario.num_steps, len(scenario.workers))
    noise_SN = np.exp(scenario.noise * generator.standard_normal(shape))  # noqa: N806
    noise_SN *= np.where(generator.random(shape) < scenario.straggler_probability, scenario.straggler_factor, 1.0)  # noqa: N806
    seconds, ideal = np.zeros(scenario.num_steps), np.zeros(scenario.num_steps)
    batches: dict[str, int] = {}
    seen: dict[str, list[float]] = {}
    changes = 0
    known: dict[tuple[tuple[int, float], ...], tuple[dict[str, Worker], list[int]]] = {}
    for step in range(scenario.num_steps):
        here = [(i, w) for i, w in enumerate(scenario.workers) if w.present(step)]
        key = tuple((i, w.factor(step)) for i, w in here)
        if key not in known:
            speeds = {w.name: w.at(step) for _, w in here}
            known[key] = speeds, divide_optimal(list(speeds.values()), scenario.total)
        now, optimal = known[key]
        noise = {w.name: float(noise_SN[step, i]) for i, w in here}
        if batches.keys() != now.keys():
            even = divide_equal([Worker(0.0, 1.0)] * len(now), scenario.total)
            batches, seen = dict(zip(now, even, strict=True)), {}
        times = {n: noise[n] * (w.overhead_seconds + w.seconds_per_sample * batches[n]) for n, w in now.items()}
        seconds[step] = max(times.values())
        ideal[step] = max(
            noise[n] * (w.overhead_seconds + w.seconds_per_sample * b)
            for (n, w), b in zip(now.items(), optimal, strict=True)
        )
        for name, time in times.items():
            seen.setdefault(name, []).append(time)
        if (step + 1) % interval == 0:
            answer = balancer.decide({n: (batches[n], sum(t) / len(t)) for n, t in seen.items()})
            seen = {}
            if answer is not None and answer != batches:
                batches, changes = answer, changes + 1
    return Run(seconds, ideal, changes)
