"""The workers of `image_phases` in simulation: a quick run of the same phases, without processes and limits.

A check of the experiment, not a measurement. Speeds and noise are drawn by a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.balanced_job import BalancedJob, one_stage
from experiments.image_data import BATCHES, EXAMPLE
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import load_manifest
from heterps_operator.state.values import CoordinatorView, MemberView, SubmitAllocation
from heterps_runtime.contract import JobPhase, MemberState, Role, worker_name

__all__ = ["SimulatedJob", "job_spec"]

_TURN_SECONDS = 0.02
_OVERHEAD_SECONDS, _SECONDS_PER_SAMPLE = 0.02, 0.002  # of a node with one core
_UPDATE_SECONDS = 0.05  # of a step, in which no worker computes
_NOISE = 0.03


def job_spec(model: str) -> JobSpec:
    """What a controller is told of the job of a model."""
    manifest = load_manifest(EXAMPLE / f"{model}.yaml")
    return replace(JobSpec.from_manifests(manifest.job, manifest.pools), global_batch_size=BATCHES[model])


class SimulatedJob(BalancedJob):
    """Workers with these shares of a core.

    Args:
        job: what the controller is told.
        cores: of each worker.
        transfers: seconds that each worker's gradients need.
        seed: of the noise.
    """

    def __init__(self, job: JobSpec, cores: Sequence[float], transfers: Sequence[float], seed: int) -> None:
        super().__init__(job, one_stage(len(cores), 1))
        self._cores, self._transfers = cores, transfers
        self._random = np.random.default_rng(seed)
        self._time = 0.0
        self._steps = 0
        self._end = 0.0  # of the present step
        self._batches = tuple([job.global_batch_size // len(cores)] * len(cores))
        self._members: tuple[MemberView, ...] = ()
        self._figures: list[dict[str, Any]] = []
        self._begin()

    def now(self) -> float:
        """See `BalancedJob.now`."""
        return self._time

    def pause(self) -> None:
        """See `BalancedJob.pause`."""
        self._time += _TURN_SECONDS

    def _send(self, action: SubmitAllocation) -> None:
        self._batches = action.batches[0]

    def _look(self) -> CoordinatorView:
        if self._time >= self._end:
            self._steps += 1
            self._begin()
        document = {"members": self._figures}
        return CoordinatorView(JobPhase.TRAINING, document=document, members=self._members, committed_steps=self._steps)

    def _begin(self) -> None:
        """Begin a step with the division in force."""
        noise = np.exp(_NOISE * self._random.standard_normal(len(self._cores)))
        compute = [
            (_OVERHEAD_SECONDS + _SECONDS_PER_SAMPLE * batch) / cores * factor
            for batch, cores, factor in zip(self._batches, self._cores, noise.tolist(), strict=True)
        ]
        whole = max(c + 2 * t for c, t in zip(compute, self._transfers, strict=True)) + _UPDATE_SECONDS
        self._end = self._time + whole
        members = []
        self._figures = []
        for index, (batch, seconds) in enumerate(zip(self._batches, compute, strict=True)):
            name = worker_name(0, index)
            member = MemberView(name, Role.WORKER, MemberState.READY, stage=0, index=index, batch_size=batch)
            members.append(
                replace(
                    member,
                    step_seconds=whole,
                    compute_seconds=seconds,
                    operations_per_second=1e6 * batch / seconds,
                    memory_bytes=5e8 + 1e5 * batch,
                    round_trip_seconds=0.01 + self._transfers[index],
                )
            )
            self._figures.append({"name": name, "figures": {"push": 0.001, "wait-commit": whole - seconds}})
        self._members = tuple(members)
