"""Waits for the moment of each fault of a run, and injects it there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from tests.chaos.faults.clock import Clock
from tests.chaos.faults.disk import Disk
from tests.chaos.faults.disturbances import ONCE
from tests.chaos.faults.incident import Hit, Incident, all_ready, steps_under_way
from tests.chaos.faults.links import Links
from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.peers import CONTROLLER, processes
from tests.chaos.faults.schedule import Fault, Run, Topology
from tests.chaos.results.recovery import Recovery
from tests.chaos.results.rollbacks import Rollbacks

__all__ = ["Director", "Pace", "Planned"]

_ONCE_SECONDS = 30.0  # in which a chunk must pass that can be changed
_LATE_STEPS = 12  # more than the steps between two checkpoints, whose messages most faults of the disk wait for


class Pace(Enum):
    """How fast training should be.

    Attributes:
        FULL: as it is.
        SLOW: steadily slow. The next fault waits for a message that comes with a checkpoint, so steps must follow.
        HELD: slower and slower. The next fault waits for a process to start, which takes minutes on a busy machine.
    """

    FULL = "full"
    SLOW = "slow"
    HELD = "held"


class Planned(Protocol):
    """A job whose plan can be changed."""

    def replan(self, plan: Topology) -> None:
        """Have the control loop change to a plan."""

    def edit(self, plan: Topology) -> None:
        """Write a plan into the manifest."""


class Director:
    """Injects the faults of a run in their order, and changes the job's plan.

    A fault is armed when the job has recovered from the previous one and has all its members again (or at once, if it
    is to happen `soon`), and happens at the next message that fits. So it does not depend on how fast the machine is.

    Args:
        run: plan of the run.
        pause_seconds: least time between two faults.
        clock: monotonic seconds.

    Attributes:
        incidents: the faults that have happened.
        power_lost: whether all processes were killed at once, and the disk must still lose what was not synced.
        rollbacks: returns to a checkpoint that should not have been.
    """

    def __init__(self, run: Run, pause_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._pause = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped: set[int] = set()  # pidfds of processes that are to be continued
        self._closed = False
        self._complete = False  # whether all members take part
        self._committed = 0  # steps
        self._controller_killed = False
        self._links: Links | None = None
        self._disk: Disk | None = None
        self._time_of_day: Clock | None = None
        self._job: Planned | None = None
        self._change: Fault | None = None  # the last one of the plan
        self._in_force = True  # whether it has been
        self.rollbacks = Rollbacks(run.topology)
        self.incidents: list[Incident] = []
        self.power_lost = False

    def use(self, links: Links, disk: Disk, time_of_day: Clock, job: Planned) -> None:
        """Set where faults are injected; before, nothing happens."""
        self._links, self._disk, self._time_of_day, self._job = links, disk, time_of_day, job

    # --- inputs -------------------------------------------------------------------------------------------------------

    def sighted(self, sighting: Sighting) -> None:
        """A message is on its way, or a file is about to be written. The thread that calls this holds it up."""
        incident = self._take(sighting)
        if incident is not None:
            incident.done = self._inject(incident)

    def observed(self, status: Mapping[str, Any] | None) -> None:
        """Take a status of the job."""
        now = self._clock()
        with self._lock:
            changed = status is not None and self._is_changed(status)
            self._in_force |= changed
            self._complete = status is not None and status["running"] and all_ready(status) and changed
            if status is not None:
                self._committed = int(status["committedSteps"])
                self.rollbacks.observe(status, self.incidents)
            for incident in self.incidents:
                waits = incident.fault is self._change and not changed
                incident.recovery.observe(now, None if waits else status)

    def pace(self) -> Pace:
        """How fast training should be, so that it does not end before the next fault."""
        with self._lock:
            if not self._in_force:
                return Pace.HELD
            if not self.pending or (self.incidents and self.incidents[-1].recovery.ended is None):
                return Pace.FULL
            if self.incidents and not self._complete:
                return Pace.HELD
            late = 0 <= self.pending[0].step < self._committed - _LATE_STEPS
            return Pace.SLOW if late else Pace.FULL

    def must_start_again(self) -> bool:
        """Whether the controller has ended because of a fault; asking resets it."""
        killed, self._controller_killed = self._controller_killed, False
        return killed

    def finish(self) -> None:
        """Note the end of the job and which faults found nothing to disturb, and continue what is stopped."""
        now = self._clock()
        if self._time_of_day is not None:
            self._time_of_day.close()
        with self._lock:
            self._closed = True
            for incident in self.incidents:
                incident.recovery.finish(now)
                if incident.hit is not None and not incident.hit.happened:
                    incident.done = ""
        for handle in list(self._stopped):
            self._go_on(handle)

    @property
    def pending(self) -> Sequence[Fault]:
        """The faults that have not happened yet."""
        return self._run.faults[len(self.incidents) :]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _take(self, sighting: Sighting) -> Incident | None:
        """Return the next fault if this is its moment."""
        with self._lock:
            if self._closed or self._disk is None or not self.pending:
                return None
            fault = self.pending[0]
            if self.incidents and not self._ready_after(self.incidents[-1].recovery, fault):
                return None
            if sighting.op != fault.op or (sighting.step or 0) < fault.step:
                return None
            if fault.near and not sighting.involves(fault.target):
                return None
            incident = Incident(fault, sighting, Recovery(self._clock(), steps_under_way(self._run)))
            self.incidents.append(incident)
            if fault.plan is not None:
                self._change, self._in_force = fault, False
            return incident

    def _is_changed(self, status: Mapping[str, Any]) -> bool:
        """Whether the job has the processes of its last change, and no others."""
        plan = None if self._change is None else self._change.plan
        return plan is None or set(status["expectedMembers"]) == plan.members()

    def _ready_after(self, previous: Recovery, fault: Fault) -> bool:
        """Whether a fault may happen already."""
        if self._clock() < previous.began + self._pause:
            return False
        return fault.soon or (previous.ended is not None and self._complete)

    def _inject(self, incident: Incident) -> str:
        fault = incident.fault
        match fault.kind:
            case "kill":
                return self._signal(fault.target, signal.SIGKILL)
            case "terminate":
                return self._signal(fault.target, signal.SIGTERM)
            case "stop":
                return self._stop(fault.target, fault.seconds)
            case "power-loss":
                self.power_lost = True
                for name in processes():
                    self._signal(name, signal.SIGKILL)
                return "all processes"
            case "disk-full" | "disk-error" | "disk-torn":
                return self._disturb_disk(incident, 0.0, int(fault.amount))
            case "disk-slow":
                return self._disturb_disk(incident, fault.amount, 2)
            case "clock":
                return self._step_clock(incident)
            case "replan" | "edit":
                return self._change_plan(fault)
        return self._disturb_link(incident)

    def _disturb_disk(self, incident: Incident, amount: float, checkpoints: int) -> str:
        assert self._disk is not None
        incident.hit = Hit()
        self._disk.disturb(incident.fault.kind, amount, checkpoints, incident.hit)
        return "the disk"

    def _step_clock(self, incident: Incident) -> str:
        assert self._time_of_day is not None
        incident.hit = Hit()
        self._time_of_day.step(incident.fault.amount, incident.fault.seconds, incident.hit)
        return "the clock"

    def _change_plan(self, fault: Fault) -> str:
        assert self._job is not None
        assert fault.plan is not None
        if fault.kind == "replan":
            self._job.replan(fault.plan)
            return "the control loop"
        self._job.edit(fault.plan)
        return f"the manifest, {self._signal(CONTROLLER, signal.SIGTERM) or 'which the next `heterps run` reads'}"

    def _disturb_link(self, incident: Incident) -> str:
        """Disturb a link; in the proxy's thread."""
        fault, links = incident.fault, self._links
        assert links is not None
        hit = incident.hit = Hit()

        def disturb() -> int:
            match fault.kind:
                case "reset":
                    return links.reset(fault.target, hit)
                case "half-open":
                    return links.vanish(fault.target, None, hit)
                case "partition":
                    return links.vanish(fault.target, fault.seconds, hit)
            seconds = _ONCE_SECONDS if fault.kind in ONCE else fault.seconds
            return links.disturb(fault.kind, fault.target, fault.forward, seconds, fault.amount, hit)

        return f"{links.run(disturb)} connections"

    def _signal(self, name: str, number: signal.Signals) -> str:
        pid = processes().get(name)
        if pid is None:
            return ""
        if name == CONTROLLER:
            self._controller_killed = True
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself just now
            os.kill(pid, number)
        return f"process {pid}"

    def _stop(self, name: str, seconds: float) -> str:
        pid = processes().get(name)
        if pid is None:
            return ""
        try:
            handle = os.pidfd_open(pid)  # the pid may belong to another process by the second signal
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
        except ProcessLookupError:
            return ""
        self._stopped.add(handle)
        timer = threading.Timer(seconds, self._go_on, [handle])
        timer.daemon = True
        timer.start()
        return f"process {pid}"

    def _go_on(self, handle: int) -> None:
        """Continue a stopped process."""
        with self._lock:
            if handle not in self._stopped:
                return
            self._stopped.remove(handle)
        with contextlib.suppress(ProcessLookupError):  # it was killed and replaced
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)
