"""Four workers in one scenario after the other policy: what each makes of a step.

A phase follows one policy from an even split and from no knowledge: it lets the controller settle, then measures whole
steps. The last phase of a scenario is the clairvoyant one: the division that is best by all that was measured of the
workers' speeds before. A row with status `ended` is a policy under which a process ended, for instance for memory.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from experiments.balanced_job import BalancedJob
from experiments.confinement import Confinement
from experiments.framework import Row
from heterps_planner.balancing import Worker, divide_equal, divide_optimal

if TYPE_CHECKING:  # it loads torch
    from experiments.image_job import ImageJob

__all__ = ["CLAIRVOYANT", "CORES", "POLICIES", "SCENARIOS", "SHARES", "TRANSFER_SECONDS", "Speeds", "run_scenario"]

POLICIES = ("equal", "random", "bno", "optimal")
CLAIRVOYANT = "clairvoyant"
CORES = 0.5  # of a node with the limit 1x; the four together leave the server and coordinator theirs
_UNEQUAL = (1.0, 1.0, 0.5, 0.25)
_EQUAL = (sum(_UNEQUAL) / 4,) * 4  # as many cores in all
SHARES = {  # of CORES, by scenario
    "homogeneous": _EQUAL,
    "unequal cores": _UNEQUAL,
    "slow link": _EQUAL,
    "small memory": _EQUAL,
}
TRANSFER_SECONDS = 0.5  # of the gradients over the slow link
_MEMORY_MARGIN = 1.02  # of the small memory, over what the node uses at an even split


# Intervals in which the controller settles before steps are measured; it goes on deciding meanwhile.
_SETTLING = {"equal": 0, "random": 2, "bno": 3, "optimal": 4}
_STEPS, _SECONDS = 6, 4.0  # that are measured, at least


def _cores(scenario: str, nodes: Confinement, job: ImageJob) -> None:
    for node, share in enumerate(SHARES[scenario]):
        nodes.limit_cores(node, CORES * share)


def _slow_link(nodes: Confinement, job: ImageJob) -> None:
    _cores("slow link", nodes, job)
    nodes.limit_rate(3, 8 * job.parameter_bytes / TRANSFER_SECONDS)


def _small_memory(nodes: Confinement, job: ImageJob) -> None:
    _cores("small memory", nodes, job)
    nodes.limit_memory(3, int(_MEMORY_MARGIN * nodes.memory(3)))


# Name -> puts the limits into force.
SCENARIOS: Mapping[str, Callable[[Confinement, ImageJob], None]] = {
    "homogeneous": functools.partial(_cores, "homogeneous"),
    "unequal cores": functools.partial(_cores, "unequal cores"),
    "slow link": _slow_link,
    "small memory": _small_memory,
}


@dataclass
class Speeds:
    """What was measured of each worker, over all phases: (samples, busy seconds of a step)."""

    seen: list[list[tuple[int, float]]] = field(default_factory=list)

    def note(self, batches: Sequence[int], seconds: Sequence[float]) -> None:
        """Add a division and the seconds that each worker was busy in a step of it."""
        if not self.seen:
            self.seen = [[] for _ in batches]
        for points, batch, busy in zip(self.seen, batches, seconds, strict=True):
            points.append((batch, busy))

    def workers(self) -> list[Worker]:
        """The line of least squares of each worker, overhead and time per sample not negative."""
        found = []
        for points in self.seen:
            batch_P, seconds_P = np.array(points, dtype=np.float64).T  # noqa: N806
            if len(set(batch_P.tolist())) == 1:
                found.append(Worker(0.0, float(seconds_P.mean() / batch_P.mean())))
                continue
            pace, overhead = np.polyfit(batch_P, seconds_P, 1)
            if pace <= 0:
                pace, overhead = 0.0, float(seconds_P.mean())
            elif overhead < 0:
                pace, overhead = float((batch_P @ seconds_P) / (batch_P @ batch_P)), 0.0
            found.append(Worker(float(overhead), float(pace)))
        return found

    def best(self, total: int) -> tuple[int, ...]:
        """The division by which all workers end together; each keeps two samples, which batch normalisation needs."""
        workers = [Worker(w.overhead_seconds, w.seconds_per_sample, least=2) for w in self.workers()]
        return tuple(divide_optimal(workers, total))


def run_scenario(
    job: BalancedJob, limit: Callable[[], None], policies: Sequence[str], seed: int, speeds: Speeds
) -> Iterator[Row]:
    """Run policies under the limits of a scenario, one after the other.

    Args:
        job: it trains.
        limit: puts the limits into force.
        policies: to follow; `CLAIRVOYANT` is the best division by what the policies before have shown.
        seed: of the policy `random`.
        speeds: of the workers; gets what is measured.

    Yields:
        A row per policy.
    """
    job.turn(decide=False)
    total = job.job.global_batch_size
    even = tuple(divide_equal([Worker(0.0, 1.0)] * len(job.workers), total))
    limit()
    # The running means of the workers' times begin anew with another size, without the start of their processes.
    _apply(job, tuple(size + (-1) ** index for index, size in enumerate(even)))
    interval = max(1.0, 3 * _apply(job, even))
    for policy in policies:
        if policy == CLAIRVOYANT:
            _apply(job, speeds.best(total))
        else:
            if job.batches != even:
                _apply(job, even)
            job.follow(policy, interval, seed)
            end = job.now() + _SETTLING[policy] * interval
            while job.now() < end:
                _next(job, decide=True)
        told: Row = {"policy": policy, "status": "ok"}
        yield told | _measure(job, speeds, decide=policy != CLAIRVOYANT)


def _apply(job: BalancedJob, batches: tuple[int, ...]) -> float:
    """Divide by hand, wait until steps are of this division, and return the seconds of one."""
    job.divide(batches)
    while job.batches != batches:
        _next(job, decide=False)
    _next(job, decide=False)  # of the division before, in part
    began = job.now()
    for _ in range(2):
        _next(job, decide=False)
    return (job.now() - began) / 2


def _next(job: BalancedJob, *, decide: bool) -> None:
    """Turn until another step is committed."""
    before = job.view.committed_steps
    while job.view.committed_steps <= before:
        job.turn(decide=decide)
        job.pause()


def _measure(job: BalancedJob, speeds: Speeds, *, decide: bool) -> Row:
    """Measure steps. The division may change meanwhile, if the policy wants it to."""
    _next(job, decide=decide)
    times, figures = [job.now()], []
    while len(times) <= _STEPS or times[-1] - times[0] < _SECONDS:
        _next(job, decide=decide)
        times.append(job.now())
        if all(member.compute_seconds > 0 for member in job.workers):
            figures.append((job.batches, job.workers, job.activities()))
    last, workers, _ = figures[-1]
    alike = [entry for entry in figures if entry[0] == last]
    busy = [
        statistics.median(entry[1][index].compute_seconds for entry in alike)
        + statistics.median(entry[1][index].round_trip_seconds for entry in alike)
        for index in range(len(last))
    ]
    speeds.note(last, busy)
    update = [_update_seconds(activity) for _, _, activities in figures for activity in activities]
    steps = np.diff(times)
    row: Row = {
        "steps": len(steps),
        "step_seconds": float((times[-1] - times[0]) / len(steps)),
        "median_step_seconds": float(np.median(steps)),
        "update_seconds": statistics.mean(update),
        "divisions": len({entry[0] for entry in figures}),
    }
    for index, member in enumerate(workers):
        row |= {
            f"batch_{index}": member.batch_size,
            f"busy_{index}": busy[index],
            f"operations_{index}": member.operations_per_second,
            f"memory_{index}": member.memory_bytes,
            f"round_trip_{index}": member.round_trip_seconds,
        }
    return row


def _update_seconds(activities: Mapping[str, float]) -> float:
    """Seconds of a step from the end of a worker's backward pass to the new parameters."""
    return sum(activities.get(name, 0.0) for name in ("push", "wait-commit", "wait-dense"))
