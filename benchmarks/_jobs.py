"""A job of a benchmark or an experiment: its pools' profiles, its planning problem, and short runs of plans."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._processes import Processes, stage_document

from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import Manifest
from heterps_operator.control.problem import build_problem
from heterps_planner import Plan, Problem
from heterps_runtime.contract import FINAL_PHASES, PATH_PROFILES, PATH_STATUS, JobPhase
from heterps_runtime.cores import processor_seconds

__all__ = ["MAX_UNITS", "Job", "Rate", "Run"]

MAX_UNITS = 64
PATIENCE_SECONDS = 300
_ENDLESS = 10**7  # steps: the run is ended from outside
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Run:
    """How long a plan runs."""

    warm_up: int  # steps that do not count: they compile, create rows and fill caches
    steps: int  # steps that count
    seconds: float = PATIENCE_SECONDS  # end after these seconds of counted steps, however many they are


@dataclass(frozen=True)
class Rate:
    """What a run has measured."""

    samples_per_second: float
    processor_seconds: float  # per sample, of all processes
    steps: int
    seconds: float  # of the counted steps
    whole_seconds: float  # with start and warm-up


class Job:
    """A job with processes started by this class, one plan at a time.

    Args:
        manifest: the job and its pools; their limits on units do not count.
        folder: an empty folder, for caches and one folder for each run.
        python_path: where the model's module is found.
        training: fields of `spec.training` that replace the manifest's.
        train: training data that replace the manifest's.
    """

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        python_path: Path,
        training: Mapping[str, Any] | None = None,
        train: Path | None = None,
    ) -> None:
        document = copy.deepcopy(manifest.run_configuration(folder, [python_path]))
        spec = document["job"]["spec"]
        spec["training"] |= dict(training or {}) | {"steps": _ENDLESS}
        spec["training"].pop("epochs", None)
        spec["data"].pop("evaluation", None)
        if train is not None:
            spec["data"]["train"] = str(train)
        spec["checkpoint"] = {"everySteps": _ENDLESS, "keep": 1}
        self._document = document
        self.folder = folder
        job = copy.deepcopy(manifest.job)
        job["spec"] |= {"objective": {"minSamplesPerSecond": 0}}
        job["spec"]["training"] |= dict(training or {})
        self.spec = JobSpec.from_manifests(job, manifest.pools)

    def profiles(self, units: int = MAX_UNITS) -> dict[str, Any]:
        """Measure all pools, one after the other.

        Args:
            units: that each pool has. With 1 no second worker is measured: it would share this machine's cores.
        """
        for pool in self._document["pools"]:
            pool["spec"]["maxUnits"] = units
        with self._processes() as processes:
            for pool in self.spec.pools:
                processes.start("profile", "--pool", pool.name).wait()
                processes.check()
            return dict(processes.request("GET", PATH_PROFILES))

    def problem(self, profiles: Mapping[str, Any]) -> Problem:
        """Return the planning problem of some profiles, without a floor or limits."""
        problem = Problem.from_json(build_problem(self.spec, profiles))
        return replace(problem, pools=tuple(replace(pool, max_units=MAX_UNITS) for pool in problem.pools))

    def run(
        self,
        plan: Plan,
        run: Run,
        servers: int | None = None,
        when_warm: Callable[[Processes], None] = lambda processes: None,
    ) -> Rate:
        """Train by a plan, and end the processes.

        Args:
            plan: stages; their pools are the job's.
            run: how long.
            servers: parameter servers; None: the plan's.
            when_warm: called half-way through the warm-up, with the job's processes.

        Raises:
            SystemExit: a process or the job failed, or made no progress.
        """
        stages: list[dict[str, Any]] = []
        for stage in plan.stages:
            first = stages[-1]["lastLayer"] + 1 if stages else 0
            stages.append(stage_document(len(stages), stage.pool, first, stage.last_layer, stage.units, stage.pods))
        number = plan.parameter_server.replicas if servers is None else servers
        began = time.monotonic()
        with self._processes() as processes:
            processes.train(stages, number, plan.parameter_server.pool)
            _await(processes, run.warm_up // 2)
            when_warm(processes)
            first_step = _await(processes, run.warm_up)
            last_step = _await(processes, first_step.steps + run.steps, first_step.time + run.seconds)
        counted = last_step.samples - first_step.samples
        seconds = last_step.time - first_step.time
        return Rate(
            counted / seconds,
            (last_step.processor - first_step.processor) / counted,
            last_step.steps - first_step.steps,
            seconds,
            time.monotonic() - began,
        )

    def _processes(self) -> Processes:
        """Start a coordinator without an earlier run's state."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        self._document["job"]["spec"]["checkpoint"]["path"] = str(folder / "checkpoints")
        return Processes(self._document, folder)


@dataclass(frozen=True)
class _Commit:
    """A job when a commit was first seen."""

    time: float
    steps: int
    samples: int
    processor: float  # seconds of all processes


def _await(processes: Processes, step: int, until: float = float("inf")) -> _Commit:
    """Return the first commit that is seen to happen at a step or later, or after a time.

    Raises:
        SystemExit: the job failed, or has no such commit within the patience.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    before = None
    while time.monotonic() < deadline:
        status = processes.request("GET", PATH_STATUS)
        if status["phase"] in FINAL_PHASES:
            raise SystemExit(f"the run ended as {status['phase']}: {status['error']}")
        committed = status["committedSteps"] if status["phase"] == JobPhase.TRAINING else 0
        now = time.monotonic()
        if before is not None and committed > before and (committed >= step or now >= until):
            used = sum(processor_seconds(process.pid) for process in processes.started)
            return _Commit(now, committed, status["samples"], used)
        before = committed
        processes.check()
        time.sleep(_POLL_SECONDS)
    raise SystemExit(f"no commit of step {step} within {PATIENCE_SECONDS} s")
