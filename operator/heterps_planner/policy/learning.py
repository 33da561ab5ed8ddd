"""Learning a policy on one problem: Algorithm 1 of [HeterPS], with the changes that it needs.

Each round draws schedules from the policy, provisions them exactly, and makes the good ones more probable. Changes to
the paper (docs/learned-methods.md reports the effect of each):

- the reward is minus the logarithm of the cost, standardised over the round (errata 13, 15); infeasible schedules have
  graded costs;
- only the best tenth of a round counts (risk-seeking, Petersen et al., 2021), because the goal is one good plan and not
  a good average;
- the best schedules ever seen are replayed;
- an entropy bonus rewards uncertainty early on;
- segment moves from the best draws, and a beam search at their ends, add schedules to the replay;
- the answer is the best schedule evaluated, not the most probable one (erratum 16).

The work is bounded by counts, never by the clock, so that a seed gives the same plan on any machine; a deadline only
cuts it off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heterps_planner.plans.assignments import Evaluator
from heterps_planner.plans.task import Learned
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.features import features_of
from heterps_planner.policy.network import Network, Parameters, initial_parameters, stack
from heterps_planner.policy.segment_moves import SegmentMoves, distinct

__all__ = ["Learning", "Settings", "learn"]

IntArray = NDArray[np.intp]

_MOST_NUMBERS = 8_000_000  # rounds x layers x layers x pools, beyond which there are fewer rounds
_LEAST_ROUNDS = 8


@dataclass(frozen=True)
class Settings:
    """Counts and rates; the defaults are those of the methods."""

    rounds: int = 150
    samples: int = 48  # per round
    best_share: float = 0.1  # share of a round that counts
    replayed: int = 12
    rate: float = 6e-3  # learning rate of Adam
    entropy: float = 0.02  # bonus of a nat per layer at the start; falls linearly to 0
    moves_every: int = 3  # rounds
    starts: int = 3  # descents per local search
    beam: int = 32  # width of the search from plans that no segment move improves
    patience: int = 45  # rounds without a better plan before learning has converged


@dataclass
class Learning:
    """Record of a learning run."""

    mean_score: list[float] = field(default_factory=list)  # of the draws of each round
    best_score: list[float] = field(default_factory=list)  # the best so far, after each round
    entropy: list[float] = field(default_factory=list)  # nats per layer
    converged: bool = False  # ended because no better plans appeared
    stopped: bool = False  # ended by the deadline
    learned: Learned | None = None  # which part found the answer


class _Record:
    """Who evaluated which schedules: the policy's draws (learning), or segment moves (search)."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._before = evaluator.num_evaluated
        self._lowest = {"start": np.inf, "learning": np.inf, "search": np.inf}  # scores
        self._number = dict.fromkeys(self._lowest, 0)
        self._found = ("start", 0)

    def add(self, part: str, scores: NDArray[np.float64], number: int) -> None:
        """Record scores of schedules that a part has evaluated in a round."""
        self._number[part] += self._evaluator.num_evaluated - self._before
        self._before = self._evaluator.num_evaluated
        if not len(scores):
            return
        if scores.min() < min(self._lowest.values()) - 1e-9:
            self._found = (part, number)
        self._lowest[part] = min(self._lowest[part], float(scores.min()))

    def summary(self, num_rounds: int) -> Learned:
        """Return the record of all rounds."""
        numbers = (self._number["learning"], self._number["search"])
        return Learned(*self._found, num_rounds, *numbers, self._rate("learning"), self._rate("search"))

    def _rate(self, part: str) -> float:
        """Return the least cost that a part found; infinite if nothing feasible."""
        score = self._lowest[part]
        return math.exp(score) if score <= self._evaluator.worst_feasible_score else math.inf


class _Replay:
    """The best distinct schedules seen."""

    def __init__(self, size: int, num_layers: int) -> None:
        self.size = size
        self.schedules = np.zeros((0, num_layers), dtype=np.intp)
        self.scores = np.zeros(0)

    def add(self, schedules: IntArray, scores: NDArray[np.float64]) -> None:
        every = np.concatenate([self.schedules, schedules])
        _, index = np.unique(every, axis=0, return_index=True)
        index = np.sort(index)
        score = np.concatenate([self.scores, scores])[index]
        order = np.argsort(score, kind="stable")[: self.size]
        self.schedules, self.scores = every[index][order], score[order]


def learn(
    evaluator: Evaluator,
    cell: str,
    seed: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda fraction: None,
    settings: Settings | None = None,
    parameters: Parameters | None = None,
) -> Learning:
    """Learn a policy for the evaluator's problem; the evaluator keeps the best plan.

    Args:
        evaluator: provisions schedules of the problem.
        cell: `lstm` or `elman`.
        seed: seed of all random numbers.
        should_stop: called several times per round.
        progress: called with the fraction of the rounds done.
        settings: counts and rates.
        parameters: initial parameters of the policy; None: random.
    """
    s = settings or Settings()
    rng = np.random.default_rng(seed)
    segments = evaluator.segments
    num_layers, num_pools = segments.num_layers, segments.num_pools
    rounds = min(s.rounds, max(_LEAST_ROUNDS, _MOST_NUMBERS // (num_layers**2 * num_pools)))
    features = features_of(segments)
    result = Learning()
    inputs = stack([features])
    weights = initial_parameters(rng, cell) if parameters is None else {k: v.copy() for k, v in parameters.items()}
    network, adam = Network(weights, cell), Adam(weights, s.rate)
    network.parameters = weights
    moves = SegmentMoves(evaluator, should_stop)
    replay = _Replay(s.replayed, num_layers)
    homogeneous = np.repeat(np.arange(num_pools)[:, None], num_layers, axis=1)
    record = _Record(evaluator)
    replay.add(homogeneous, evaluator.scores(homogeneous))
    record.add("start", replay.scores, 0)
    descended: set[bytes] = set()
    owner = np.zeros(s.samples, dtype=np.intp)
    best, last_gain = np.inf, 0
    for number in range(rounds):
        if should_stop():
            result.stopped = True
            break
        encoded = network.encode(inputs)
        drawn = encoded.choose(owner, rng)
        scores = evaluator.scores(drawn)
        record.add("learning", scores, number + 1)
        result.mean_score.append(float(scores.mean()))
        order = np.argsort(scores, kind="stable")
        replay.add(drawn, scores)
        if number % s.moves_every == 0 and not should_stop():
            candidates = distinct(np.concatenate([drawn[order[: 4 * s.starts]], replay.schedules]))
            starts = [row for row in candidates if row.tobytes() not in descended][: s.starts]
            descended.update(row.tobytes() for row in starts)
            if starts:
                ends = moves.improve(np.array(starts), width=s.beam)
                found = evaluator.scores(ends)
                record.add("search", found, number + 1)
                replay.add(ends, found)
        top = order[: max(1, round(s.best_share * s.samples))]
        spread = max(float(scores.std()), 1e-6)
        advantage = np.clip((float(scores.mean()) - scores[top]) / spread, 0, 3)
        action = np.concatenate([drawn[top], replay.schedules])
        weight = np.concatenate([advantage / max(advantage.sum(), 1e-6), _replay_weights(replay.scores)])
        forced = encoded.forced(np.zeros(len(action), dtype=np.intp), action)
        result.entropy.append(float(forced.entropy.mean()))
        left = 1 - number / rounds
        adam.step(forced.gradient(weight.astype(np.float32), s.entropy * left * num_layers))
        lowest = float(replay.scores[0])
        if lowest < best - 1e-9:
            best, last_gain = lowest, number
        result.best_score.append(best)
        progress((number + 1) / rounds)
        if number - last_gain >= s.patience:
            result.converged = True
            break
    result.learned = record.summary(len(result.mean_score))
    return result


def _replay_weights(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights that sum to 1 and fall with the cost."""
    weight = np.exp(-(scores - scores[0]) / 0.05)
    result: NDArray[np.float64] = weight / weight.sum()
    return result
