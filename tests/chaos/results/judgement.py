"""Whether a job under faults did what HeterPS promises, judged from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from heterps_runtime.storage import PARTIAL
from tests.chaos.faults.schedule import Run, Topology
from tests.chaos.job import COMPARED, ChaosJob
from tests.counting import assert_every_sample_counted
from tests.heterps_operator.helpers.real_job import BATCH
from tests.same_model import difference

__all__ = ["SAME_MODEL", "Judge", "wrong_bill", "wrong_model", "wrong_plan"]

SAME_MODEL = 1e-12  # of a parameter's largest value, in float64

_UNFINISHED = (".tmp", ".exporting", ".replaced")

Array = np.ndarray[Any, Any]


class Judge:
    """Judges the runs of a campaign.

    Args:
        folder: for reference models.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[int, Mapping[str, Array]] = {}  # by number of steps
        self._known: set[str] = set()  # what was left before, by earlier jobs or by torch when a reference was trained

    def problems(self, job: ChaosJob, run: Run, code: int | None, seconds: float) -> list[str]:
        """Return what is wrong after the end of a job; empty: nothing.

        Args:
            job: the job.
            run: its plan.
            code: exit code of the last `heterps run`; None: it had to be ended.
            seconds: that the job took.
        """
        left = [problem for problem in left_behind(job) if problem not in self._known]
        if code is None:
            found = [f"it had not ended after {run.limit_seconds:.0f} s"]
        elif code:
            found = [f"heterps run ended with exit code {code}"]
        else:
            found = self.wrong_file(job.files / "model" / "model.safetensors", run)
            state = json.loads((job.files / "state.json").read_text())
            found += wrong_bill(state, run, seconds)
            found += wrong_plan(state, run)
        if "Traceback" in job.output:
            found.append("heterps run printed a traceback")
        self._known.update(left_behind(job))
        return found + left

    def wrong_file(self, file: Path, run: Run) -> list[str]:
        """Return what is wrong with the exported model of a run; empty: nothing."""
        expected = None if run.model == "counting" else self._reference(run.steps)
        return wrong_model(load_file(file), run.steps, expected) if file.exists() else ["there is no model"]

    def _reference(self, steps: int) -> Mapping[str, Array]:
        """The model that plain PyTorch trains without faults."""
        from tests.heterps_operator.helpers.small_reference import plain_model  # loads torch

        if steps not in self._references:
            folder = self._folder / f"reference-{steps}"
            self._references[steps] = plain_model(folder, training__steps=steps, **COMPARED)
        return self._references[steps]


def wrong_model(model: Mapping[str, Array], steps: int, expected: Mapping[str, Array] | None) -> list[str]:
    """Return what is wrong with an exported model; empty: nothing.

    Args:
        model: parameters by name.
        steps: of training.
        expected: the right ones; None: the model counts its samples.
    """
    if expected is None:
        try:
            assert_every_sample_counted(model, BATCH, seed=0, steps=steps)
        except AssertionError as error:
            return [f"{error}".splitlines()[0]]
        return []
    if model.keys() != expected.keys():
        return [f"the model has parameters {sorted(model)} instead of {sorted(expected)}"]
    distances = {name: difference(model[name], values) for name, values in expected.items()}
    name = max(distances, key=distances.__getitem__)
    return [] if distances[name] <= SAME_MODEL else [f"{name} differs by {distances[name]:.2g} of its largest value"]


def wrong_bill(state: Mapping[str, Any], run: Run, seconds: float) -> list[str]:
    """Return what is wrong with the bill of a finished job; empty: nothing.

    Args:
        state: the job's stored state.
        run: its plan.
        seconds: that the job took, by a clock that does not step.
    """
    least, most = run.steps * run.least_seconds, run.most_units * seconds
    charged = sum(int(line["unitMicroseconds"]) for line in state["bill"]["pools"]) / 1e6
    if least <= charged <= most:
        return []
    return [f"the bill has {charged:.1f} unit-seconds, not {least:.1f} to {most:.1f}"]


def wrong_plan(state: Mapping[str, Any], run: Run) -> list[str]:
    """Return what is wrong with the last plan of a finished job; empty: nothing.

    Args:
        state: the job's stored state.
        run: its plan.
    """
    plan = state["status"]["plan"]
    stages = tuple((stage["pool"], stage["pods"]) for stage in plan["stages"])
    ended = Topology(stages, plan["parameterServer"]["replicas"], run.topology.copies)
    return [] if ended == run.plans[-1] else [f"it ended with {ended} instead of {run.plans[-1]}"]


def left_behind(job: ChaosJob) -> list[str]:
    """Return what a finished job has left on the machine: processes, temporary files, shared memory."""
    found = [f"process {pid} is left: {command}" for pid, command in job.real.survivors().items()]
    folders = [Path(os.environ["TMPDIR"]), Path("/dev/shm")]
    found += [f"{path} is left" for folder in folders for path in sorted(folder.iterdir())]
    hidden = [path for path in job.files.rglob(".*") if PARTIAL in path.name or path.name.endswith(_UNFINISHED)]
    folders = [path for path in (job.files / "checkpoints").glob("*") if path.name != "owners"]
    hidden += [path for path in folders if not (path / "manifest.json").exists()]
    return found + [f"{path.relative_to(job.files)} is left" for path in sorted(hidden)]
