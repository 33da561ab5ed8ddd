"""Carries out a run: a job, its faults, its judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults.incident import Incident
from tests.chaos.faults.schedule import Run
from tests.chaos.results.judgement import Judge
from tests.chaos.scene import Scene

__all__ = ["Outcome", "carry_out"]


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        run: its plan.
        incidents: the faults that happened.
        problems: what is wrong; empty: nothing.
        seconds: that the job took.
        logs: output of `heterps run`, and the last lines of the job's logs.
    """

    run: Run
    incidents: tuple[Incident, ...]
    problems: tuple[str, ...]
    seconds: float
    logs: str


def carry_out(run: Run, folder: Path, judge: Judge, say: Callable[[str], None]) -> Outcome:
    """Run a job under its faults.

    Args:
        run: its plan.
        folder: a new folder.
        judge: of all runs.
        say: takes lines for people.
    """
    scene = Scene(run, folder, say)
    code = None
    while code is None and scene.seconds < run.limit_seconds:
        code = scene.turn()
    seconds = scene.seconds
    scene.end()
    problems = judge.problems(scene.job, run, code, seconds)
    problems += scene.director.rollbacks.problems
    problems += [f"there was no opportunity for: {fault}" for fault in scene.director.pending]
    logs = f"{scene.job.output}\n{scene.job.real.logs()}"
    scene.close()
    return Outcome(run, tuple(scene.director.incidents), tuple(problems), seconds, logs)
