"""A job with the proxy, the disk and the director around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.faults.clock import Clock
from tests.chaos.faults.director import Director
from tests.chaos.faults.disk import Disk
from tests.chaos.faults.links import Links
from tests.chaos.faults.schedule import Run
from tests.chaos.job import ChaosJob

__all__ = ["Scene"]

_TURN_SECONDS = 0.05
_RESTART_SECONDS = 0.5  # until a killed `heterps run` is started again


class Scene:
    """A started job, and the faults that it meets.

    Args:
        run: plan of the run.
        folder: a new folder for all files.
        say: takes lines for people.
        pause_seconds: least time between two faults.
    """

    def __init__(self, run: Run, folder: Path, say: Callable[[str], None], pause_seconds: float = 0.0) -> None:
        folder.mkdir()
        self._say = say
        self._told = self._recovered = 0  # incidents
        self.director = Director(run, pause_seconds)
        self.disk = Disk(folder / ".heterps", folder / "disk", run.steps, self.director.sighted)
        self.links = Links(self.director.sighted)
        self.clock = Clock(folder / "clock")
        self.job = ChaosJob(folder, folder / "disk", run, self.clock.environment)
        self.director.use(self.links, self.disk, self.clock, self.job)
        self._began = time.monotonic()
        self.job.start()

    @property
    def seconds(self) -> float:
        """Since the start of the job."""
        return time.monotonic() - self._began

    def turn(self) -> int | None:
        """Look at the job, and start it again if its controller was killed; returns the exit code at its end."""
        self.director.observed(self.job.status())
        self.job.set_pace(self.director.pace())
        self._tell()
        code = self.job.poll()
        if code is not None:
            self.job.collect()
            if not self.director.must_start_again():
                return code
            time.sleep(_RESTART_SECONDS)
            if self.director.power_lost:
                damaged = [path for path in self.disk.lose_power() if not path.endswith(".log")]
                self.say(f"files that have lost what was not synced: {', '.join(damaged) or 'logs only'}")
                self.director.power_lost = False
            self.job.start()
        time.sleep(_TURN_SECONDS)
        return None

    def end(self) -> None:
        """Note the end of the job, or end it, and all connections."""
        self.director.finish()
        self._tell()
        self.job.interrupt()
        self.links.close()

    def close(self) -> None:
        """Unmount the disk; the files stay."""
        self.disk.close()

    # --- for people ---------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Say a line with the time."""
        self._say(f"  {self.seconds:6.1f} s  {line}")

    def _tell(self) -> None:
        """Say what is new."""
        incidents = self.director.incidents
        while self._told < len(incidents) and incidents[self._told].done is not None:
            incident = incidents[self._told]
            self.say(f"{incident.fault}: {incident.done or 'there was none'}")
            self._told += 1
        while self._recovered < len(incidents) and incidents[self._recovered].recovery.ended is not None:
            incident = incidents[self._recovered]
            self.say(f"steps are committed again {incident.recovery.seconds:.1f} s after {incident.fault.kind}")
            self._recovered += 1
