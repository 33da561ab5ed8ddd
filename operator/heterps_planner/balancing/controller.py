"""Decides during training when to change the division of a stage's batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterps_planner.balancing.estimates import WorkerEstimate
from heterps_planner.balancing.policies import POLICIES, divide
from heterps_planner.balancing.workers import NodeMetrics, Worker
from heterps_planner.errors import ProblemError

__all__ = ["BatchController"]


@dataclass
class BatchController:
    """Learns the workers' speeds and proposes divisions.

    Feed `observe` with the latest (batch, seconds) of each worker, call `propose` whenever a change may be made;
    `decide` does both. `workers` is the whole learnt state, and can be passed to another controller.
    """

    total: int  # B of the stage
    policy: str = "optimal"
    quantum: int = 1
    min_gain_percent: float = 5.0  # dead band: the predicted step time must fall by at least this much
    seed: int | Sequence[int] = 0  # for the policy `random`
    min_observations: int = 2  # per worker before the first decision, and after a change of speed
    workers: dict[str, WorkerEstimate] = field(default_factory=dict)
    metrics: Mapping[str, NodeMetrics] = field(default_factory=dict)  # for the policy `bno`, as last measured

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ProblemError("balancing.policy", f"must be one of {', '.join(POLICIES)}, is {self.policy!r}")

    def decide(self, observations: Mapping[str, tuple[int, float]]) -> dict[str, int] | None:
        """Process one observation per worker and propose a division; see `observe` and `propose`."""
        self.observe(observations)
        return self.propose({name: batch for name, (batch, _) in observations.items()})

    def observe(self, observations: Mapping[str, tuple[int, float]]) -> None:
        """Process one observation per worker.

        Args:
            observations: worker name -> (samples it worked on, seconds it took, without waiting). Workers that are
                missing have left; new names are new workers.

        Raises:
            ProblemError: an observation is not a positive time.
        """
        for name, (batch, seconds) in observations.items():
            if not math.isfinite(seconds) or seconds <= 0 or batch < 0:
                raise ProblemError(
                    f"observations.{name}", f"must be samples >= 0 and seconds > 0, is {(batch, seconds)}"
                )
        learnt = {}
        for name, (batch, seconds) in observations.items():
            estimate = self.workers.get(name, WorkerEstimate())
            # A worker without samples had nothing to do, so its time says nothing about its speed.
            learnt[name] = estimate.observe(batch, seconds) if batch else estimate
        self.workers = learnt

    def propose(self, present: Mapping[str, int]) -> dict[str, int] | None:
        """Propose a division for the present workers.

        Args:
            present: worker name -> current samples.

        Returns:
            Samples per worker, or None if the current division is good enough or too little is known.

        Raises:
            ProblemError: B does not fit the workers.
        """
        if not present:
            return None
        names = list(present)
        must_change = sum(present.values()) != self.total  # a worker joined or left: do not wait for measurements
        estimates = {name: self.workers.get(name, WorkerEstimate()) for name in names}
        if any(e.num_observations < self.min_observations for e in estimates.values()):
            if not must_change:
                return None
            known = [e.fit() for e in estimates.values() if e.num_observations]
            usual = tuple(sum(values) / len(known) for values in zip(*known, strict=True)) if known else (0.0, 1.0)
            speeds = {n: e.fit() if e.num_observations else (usual[0], usual[1]) for n, e in estimates.items()}
            return self._division(speeds)
        speeds = {name: estimate.fit() for name, estimate in estimates.items()}
        if must_change:
            return self._division(speeds)
        if self.policy == "optimal":
            return self._shorter(present, speeds, estimates)
        proposal = self._division(speeds)
        if self.policy == "bno":
            # This rule may make steps longer; it is applied once any share moves by that much.
            moved = any(abs(b - present[n]) > self.min_gain_percent / 100 * present[n] for n, b in proposal.items())
        else:
            moved = proposal != dict(present)
        return proposal if moved else None

    def _shorter(
        self,
        present: Mapping[str, int],
        speeds: Mapping[str, tuple[float, float]],
        estimates: Mapping[str, WorkerEstimate],
    ) -> dict[str, int] | None:
        """Return the optimal division if it shortens steps by more than the dead band and more than noise explains."""
        now = max(o + s * present[name] for name, (o, s) in speeds.items())
        # Of N equal workers, the slowest appears late by about sqrt(2 ln 2N) standard errors, whatever the division.
        error = math.sqrt(sum(e.uncertainty**2 for e in estimates.values()) / len(estimates))
        chance = error * math.sqrt(2 * math.log(2 * len(estimates)))
        wanted = now * (1 - max(self.min_gain_percent / 100, chance))
        # With fractional, negative and unbounded batches all would finish at this time: no division is shorter.
        bound = (self.total + sum(o / s for o, s in speeds.values())) / sum(1 / s for _, s in speeds.values())
        if bound >= wanted:
            return None
        proposal = self._division(speeds)
        then = max(o + s * proposal[name] for name, (o, s) in speeds.items())
        return proposal if then < wanted else None

    def _division(self, speeds: Mapping[str, tuple[float, float]]) -> dict[str, int]:
        """Divide by the policy; every worker keeps at least one quantum, so that its speed stays known."""
        least = self.quantum if self.total >= self.quantum * len(speeds) else 0
        workers = [
            Worker(o, s, least, metrics=self.metrics.get(name, NodeMetrics())) for name, (o, s) in speeds.items()
        ]
        sizes = divide(self.policy, workers, self.total, self.quantum, seed=self.seed)
        return dict(zip(speeds, sizes, strict=True))
