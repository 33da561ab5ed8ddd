"""Carries out runs: a job, its faults, its judgement."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.director import Director, Incident
from tests.chaos.job import ChaosJob
from tests.chaos.judgement import Judge
from tests.chaos.links import Links
from tests.chaos.schedule import Run

__all__ = ["Outcome", "carry_out"]

_POLL_SECONDS = 0.05
_RESTART_SECONDS = 0.5  # until a killed `heterps run` is started again


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        run: its plan.
        incidents: the faults that happened.
        problems: what is wrong; empty: nothing.
        seconds: that the job took.
        logs: last lines of the job's logs, if there are problems.
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
        folder: an empty folder.
        judge: of all runs.
        say: takes lines for people.
    """
    director = Director(run)
    links = director.links = Links(director.sighted)
    job = ChaosJob(folder, run)
    began = time.monotonic()
    job.start()
    told, code = 0, None
    while time.monotonic() < began + run.limit_seconds:
        director.observed(job.status())
        for incident in director.incidents[told:]:
            say(f"  {time.monotonic() - began:6.1f} s  {incident.fault}: {incident.done or 'there was none'}")
            told += 1
        code = job.poll()
        if code is not None:
            say_output = job.collect()
            if code != -signal.SIGKILL or not director.controller_killed:
                break
            director.controller_killed, code = False, None
            del say_output
            time.sleep(_RESTART_SECONDS)
            job.start()
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    director.finish()
    if code is None:
        job.interrupt()
    links.close()
    problems = judge.problems(job, run, code)
    problems += [f"it had no opportunity for: {fault}" for fault in director.pending]
    logs = f"{job.output}\n{job.real.logs()}" if problems else ""
    return Outcome(run, tuple(director.incidents), tuple(problems), seconds, logs)
