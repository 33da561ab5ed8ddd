"""How a stage's batch is divided among workers that differ in speed.

`optimal` solves min over b of max_i (o_i + s_i b_i) subject to sum b_i = B, exactly; `equal` divides evenly. Both keep
the global batch, so that balancing never changes what the model learns: gradients are weighted by b_i / B.
`BatchController` measures o and s of each worker while training runs, and proposes a new division when it pays.

[BNO] Sun, Ngo, Huh, "BalanceNet Orchestrator", 2024, proposes a closed rule instead, whose batch sizes add up to B only
by accident; see docs/errata.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterps_planner.errors import ProblemError

__all__ = [
    "POLICIES",
    "BatchController",
    "Worker",
    "WorkerEstimate",
    "divide",
    "divide_equal",
    "divide_optimal",
    "finish_time",
]

POLICIES = ("optimal", "equal")


@dataclass(frozen=True)
class Worker:
    """Speed and limits of one worker."""

    overhead_seconds: float  # o: per step, whatever the batch
    seconds_per_sample: float  # s
    least: int = 0  # samples
    most: int | None = None  # samples that fit its memory; None: no limit


def finish_time(workers: Sequence[Worker], batches: Sequence[int]) -> float:
    """Return the seconds of a step: those of the slowest worker."""
    return max(w.overhead_seconds + w.seconds_per_sample * b for w, b in zip(workers, batches, strict=True))


def _bounds(workers: Sequence[Worker], total: int, quantum: int) -> tuple[list[int], list[int]]:
    """Return the least and most quanta of each worker; refuse what cannot be divided."""
    if not workers:
        raise ProblemError("balancing.workers", "must not be empty")
    if quantum < 1:
        raise ProblemError("balancing.quantum", f"must be >= 1, is {quantum}")
    if total < 0 or total % quantum:
        raise ProblemError("balancing.globalBatchSize", f"must be a multiple >= 0 of the quantum {quantum}, is {total}")
    least, most = [], []
    for i, worker in enumerate(workers):
        path = f"balancing.workers[{i}]"
        for name, value in (
            ("overheadSeconds", worker.overhead_seconds),
            ("secondsPerSample", worker.seconds_per_sample),
        ):
            if not math.isfinite(value) or value < 0:
                raise ProblemError(f"{path}.{name}", f"must be finite and >= 0, is {value!r}")
        cap = total if worker.most is None else min(worker.most, total)
        low, high = -(-max(worker.least, 0) // quantum), cap // quantum
        if low > high:
            raise ProblemError(
                path, f"no multiple of {quantum} lies between its least {worker.least} and most {cap} samples"
            )
        least.append(low)
        most.append(high)
    if sum(most) * quantum < total:
        raise ProblemError(
            "balancing.globalBatchSize",
            f"{total} samples do not fit: the workers hold at most {sum(most) * quantum}; lower it or add workers",
        )
    if sum(least) * quantum > total:
        raise ProblemError(
            "balancing.globalBatchSize",
            f"{total} samples are too few: the workers need at least {sum(least) * quantum}; raise it",
        )
    return least, most


def divide_optimal(workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide `total` samples so that the slowest worker finishes as early as possible.

    Water-filling: find the least time by which all workers together can take `total`, give each what it can take by a
    time just before, then hand out the remaining quanta one by one to whoever would finish first. The greedy remainder
    makes it exact: each quantum goes where the resulting maximum is least, and times only grow with b.

    Args:
        workers: speeds and limits.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: the limits do not allow it.
    """
    least, most = _bounds(workers, total, quantum)
    wanted = total // quantum
    step = [w.seconds_per_sample * quantum for w in workers]

    def filled(time: float) -> list[int]:
        counts = []
        for worker, pace, low, high in zip(workers, step, least, most, strict=True):
            spare = time - worker.overhead_seconds
            # The comparison comes first: a quotient may be too large for an int.
            full = spare >= 0 if pace == 0 else spare >= high * pace
            counts.append(high if full else max(low, min(high, math.floor(spare / pace) if pace > 0 else low)))
        return counts

    low_time = 0.0
    high_time = max(w.overhead_seconds + s * h for w, s, h in zip(workers, step, most, strict=True))
    if sum(filled(low_time)) <= wanted:
        for _ in range(100):  # halving a double more often than this changes nothing
            middle = (low_time + high_time) / 2
            if sum(filled(middle)) <= wanted:
                low_time = middle
            else:
                high_time = middle
    counts = filled(low_time)
    if sum(counts) > wanted:
        counts = list(least)  # workers that take no time at all could hold more than there is
    # What is left are quanta that finish at (nearly) the same time, at most one or so per worker.
    while (rest := wanted - sum(counts)) > 0:
        ends = [
            (w.overhead_seconds + s * (c + 1), i)
            for i, (w, s, c) in enumerate(zip(workers, step, counts, strict=True))
            if c < most[i]
        ]
        _, chosen = min(ends)
        take = min(rest, most[chosen] - counts[chosen]) if step[chosen] == 0 else 1
        counts[chosen] += take
    return [count * quantum for count in counts]


def divide_equal(workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide `total` samples as evenly as the limits allow; the first workers get the remainder.

    Args:
        workers: limits; their speeds are not used.
        total: B, a multiple of `quantum`.
        quantum: every batch is a multiple of this.

    Raises:
        ProblemError: the limits do not allow it.
    """
    same = [Worker(0.0, 1.0, w.least, w.most) for w in workers]
    return divide_optimal(same, total, quantum)


def divide(policy: str, workers: Sequence[Worker], total: int, quantum: int = 1) -> list[int]:
    """Divide by the name of a policy.

    Raises:
        ProblemError: no such policy, or the limits do not allow a division.
    """
    if policy == "optimal":
        return divide_optimal(workers, total, quantum)
    if policy == "equal":
        return divide_equal(workers, total, quantum)
    raise ProblemError("balancing.policy", f"must be one of {', '.join(POLICIES)}, is {policy!r}")


@dataclass
class WorkerEstimate:
    """Running estimate of a worker's speed from (batch, seconds) observations.

    Weighted moments give the affine fit o + s * b once the batches differed; until then, and whenever the fit makes no
    sense (negative o or s), the time is taken as proportional to the batch, whose fixed point equalises times as well.
    """

    memory: float  # weight that a past observation keeps per new one
    reset_ratio: float  # observed / expected time beyond which (or below the inverse) the speed counts as changed
    reset_after: int  # so many surprises in a row
    weight: float = 0.0
    sum_b: float = 0.0
    sum_t: float = 0.0
    sum_bb: float = 0.0
    sum_bt: float = 0.0
    num_surprises: int = 0

    def observe(self, batch: int, seconds: float) -> bool:
        """Take in one step; return whether a change of speed was detected (then the past is forgotten)."""
        changed = False
        if self.weight > 0:
            expected = self.predict(batch)
            ratio = seconds / expected if expected > 0 else 1.0
            surprised = ratio > self.reset_ratio or ratio < 1 / self.reset_ratio
            self.num_surprises = self.num_surprises + 1 if surprised else 0
            if self.num_surprises >= self.reset_after:
                self.weight = self.sum_b = self.sum_t = self.sum_bb = self.sum_bt = 0.0
                self.num_surprises = 0
                changed = True
            elif surprised:
                return False  # a single outlier is no news
        keep = self.memory
        self.weight = keep * self.weight + 1
        self.sum_b = keep * self.sum_b + batch
        self.sum_t = keep * self.sum_t + seconds
        self.sum_bb = keep * self.sum_bb + batch * batch
        self.sum_bt = keep * self.sum_bt + batch * seconds
        return changed

    def fit(self) -> tuple[float, float]:
        """Return (overhead seconds, seconds per sample)."""
        mean_b, mean_t = self.sum_b / self.weight, self.sum_t / self.weight
        variance = self.sum_bb / self.weight - mean_b**2
        # Batches that hardly differ say nothing about the slope but noise.
        if variance > (0.05 * mean_b) ** 2:
            slope = (self.sum_bt / self.weight - mean_b * mean_t) / variance
            overhead = mean_t - slope * mean_b
            if slope > 0 and overhead >= 0:
                return overhead, slope
        return 0.0, mean_t / mean_b

    def predict(self, batch: int) -> float:
        """Return the expected seconds for a batch."""
        overhead, slope = self.fit()
        return overhead + slope * batch


@dataclass
class BatchController:
    """Decides during training when a stage's batch is divided anew.

    Feed `decide` the latest (batch, seconds) of each worker; it answers with new batch sizes, or None to leave them.
    """

    total: int  # B of the stage
    policy: str = "optimal"
    quantum: int = 1
    min_gain_percent: float = 5.0  # dead band: the predicted step time must fall by this much
    least: int = 1  # samples per worker
    most: Mapping[str, int] = field(default_factory=dict)  # samples that fit each worker's memory
    memory: float = 0.8
    reset_ratio: float = 1.5
    reset_after: int = 3
    min_observations: int = 3  # per worker before the first decision, and after a change of speed
    workers: dict[str, WorkerEstimate] = field(default_factory=dict, init=False)
    _seen: dict[str, int] = field(default_factory=dict, init=False)

    def decide(self, observations: Mapping[str, tuple[int, float]]) -> dict[str, int] | None:
        """Take in one observation per worker and propose a division.

        Args:
            observations: worker name -> (samples it worked on, seconds it took, waiting not included). Workers that are
                not named are gone; new names are new workers.

        Returns:
            Samples per worker, or None if the present division is good enough or too little is known.

        Raises:
            ProblemError: an observation is no positive time, or B does not fit the workers.
        """
        if not observations:
            return None
        for name in [known for known in self.workers if known not in observations]:
            del self.workers[name], self._seen[name]
        for name, (batch, seconds) in observations.items():
            if not math.isfinite(seconds) or seconds <= 0 or batch < 0:
                raise ProblemError(
                    f"observations.{name}", f"must be samples >= 0 and seconds > 0, is {(batch, seconds)}"
                )
            estimate = self.workers.setdefault(name, WorkerEstimate(self.memory, self.reset_ratio, self.reset_after))
            if batch == 0:
                continue  # it had nothing to do, which says nothing about its speed
            changed = estimate.observe(batch, seconds)
            self._seen[name] = 1 if changed else self._seen.get(name, 0) + 1
        present = {name: batch for name, (batch, _) in observations.items()}
        if any(self._seen.get(name, 0) < self.min_observations for name in observations):
            # A division that does not add up to B (a worker came or went) cannot wait for measurements.
            if sum(present.values()) == self.total:
                return None
            return self._division("equal", list(observations))
        proposal = self._division(self.policy, list(observations))
        if sum(present.values()) != self.total:
            return proposal
        if self.policy == "equal":
            return None if proposal == present else proposal
        now = max(self.workers[name].predict(batch) for name, batch in present.items())
        then = max(self.workers[name].predict(batch) for name, batch in proposal.items())
        return proposal if then < now * (1 - self.min_gain_percent / 100) else None

    def _division(self, policy: str, names: list[str]) -> dict[str, int]:
        workers = []
        for name in names:
            estimate = self.workers[name]
            overhead, slope = estimate.fit() if estimate.weight > 0 else (0.0, 1.0)
            workers.append(Worker(overhead, slope, self.least, self.most.get(name)))
        return dict(zip(names, divide(policy, workers, self.total, self.quantum), strict=True))
