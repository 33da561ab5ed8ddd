"""Carries out runs: a job, its faults, its judgement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.director import Director, Incident
from tests.chaos.disk import Disk
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
    folder.mkdir()
    disk = director.disk = Disk(folder / ".heterps", folder / "disk", run.steps, director.sighted)
    links = director.links = Links(director.sighted)
    job = ChaosJob(folder, folder / "disk", run)
    began = time.monotonic()
    job.start()
    code = None
    narrator = _Narrator(director, began, say)
    while time.monotonic() < began + run.limit_seconds:
        director.observed(job.status())
        narrator.go_on()
        code = job.poll()
        if code is not None:
            job.collect()
            if not director.must_start_again():
                break
            code = None
            time.sleep(_RESTART_SECONDS)
            if director.power_lost:
                narrator.say(f"{disk.lose_power()} files lost what was not synced")
                director.power_lost = False
            job.start()
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    director.finish()
    narrator.go_on()
    if code is None:
        job.interrupt()
    links.close()
    problems = judge.problems(job, run, code)
    problems += [f"it had no opportunity for: {fault}" for fault in director.pending]
    logs = f"{job.output}\n{job.real.logs()}" if problems else ""
    disk.close()
    return Outcome(run, tuple(director.incidents), tuple(problems), seconds, logs)


class _Narrator:
    """Tells people what happens in a run."""

    def __init__(self, director: Director, began: float, say: Callable[[str], None]) -> None:
        self._director = director
        self._began = began
        self._say = say
        self._happened = self._recovered = 0  # incidents that were told

    def say(self, line: str) -> None:
        self._say(f"  {time.monotonic() - self._began:6.1f} s  {line}")

    def go_on(self) -> None:
        """Tell what is new."""
        incidents = self._director.incidents
        for incident in incidents[self._happened :]:
            self.say(f"{incident.fault}: {incident.done or 'there was none'}")
            self._happened += 1
        while self._recovered < len(incidents) and incidents[self._recovered].recovery.ended is not None:
            incident = incidents[self._recovered]
            self.say(f"steps are committed again {incident.recovery.seconds:.1f} s after {incident.fault.kind}")
            self._recovered += 1
