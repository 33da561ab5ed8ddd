"""Waits for the moment of each fault of a run, and injects it there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.disk import Disk
from tests.chaos.disturbances import ONCE
from tests.chaos.links import Links
from tests.chaos.moments import Sighting
from tests.chaos.peers import CONTROLLER, processes
from tests.chaos.recovery import Recovery
from tests.chaos.schedule import Fault, Run

__all__ = ["Director", "Incident"]

_ONCE_SECONDS = 30.0  # in which a chunk must pass that can be changed


@dataclass
class Incident:
    """A fault that was injected.

    Attributes:
        fault: as it was planned.
        at: what was on its way.
        done: what was done, for people; empty: there was nothing to do it to.
        recovery: of the job.
    """

    fault: Fault
    at: Sighting
    done: str
    recovery: Recovery


@dataclass
class Director:
    """Injects the faults of a run in their order.

    A fault is armed when the job has recovered from the previous one (or at once, if it is to happen `soon`), and
    happens at the next message that fits. So it does not depend on how fast the machine is.

    Attributes:
        run: plan of the run.
        clock: monotonic seconds.
    """

    run: Run
    clock: Callable[[], float] = time.monotonic
    incidents: list[Incident] = field(default_factory=list)
    controller_killed: bool = False
    power_lost: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0  # fault
        self._stopped: set[int] = set()  # pidfds of processes that are to be continued
        self._closed = False
        self.links: Links | None = None
        self.disk: Disk | None = None

    # --- inputs -------------------------------------------------------------------------------------------------------

    def sighted(self, sighting: Sighting) -> None:
        """A message is on its way, or a file is about to be written. The thread that calls this holds it up."""
        fault = self._take(sighting)
        if fault is None:
            return
        recovery = Recovery(self.clock(), under_way=_steps_under_way(self.run))
        done = self._inject(fault)
        with self._lock:
            self.incidents.append(Incident(fault, sighting, done, recovery))

    def observed(self, status: Mapping[str, Any] | None) -> None:
        """Take a status of the job."""
        now = self.clock()
        with self._lock:
            for incident in self.incidents:
                incident.recovery.observe(now, status)

    def must_start_again(self) -> bool:
        """Whether the controller has ended because of a fault; asking resets it."""
        killed, self.controller_killed = self.controller_killed, False
        return killed

    def finish(self) -> None:
        """Note the end of the job, and continue what is stopped."""
        now = self.clock()
        with self._lock:
            self._closed = True
            for incident in self.incidents:
                incident.recovery.finish(now)
        for handle in list(self._stopped):
            self._go_on(handle)

    @property
    def pending(self) -> Sequence[Fault]:
        """The faults that have not happened yet."""
        return self.run.faults[self._next :]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _take(self, sighting: Sighting) -> Fault | None:
        """Return the next fault if this is its moment."""
        with self._lock:
            if self._closed or not self.pending:
                return None
            fault = self.pending[0]
            if self.incidents and not fault.soon and self.incidents[-1].recovery.ended is None:
                return None
            if sighting.op != fault.op or (sighting.step or 0) < fault.step:
                return None
            if fault.near and not sighting.involves(fault.target):
                return None
            self._next += 1
            return fault

    def _inject(self, fault: Fault) -> str:
        match fault.kind:
            case "kill":
                return self._signal(fault.target, signal.SIGKILL)
            case "stop":
                return self._stop(fault.target, fault.seconds)
            case "power-loss":
                self.power_lost = True
                for name in processes():
                    self._signal(name, signal.SIGKILL)
                return "all processes"
            case "disk-full" | "disk-error" | "disk-torn":
                assert self.disk is not None
                self.disk.disturb(fault.kind, 0.0, int(fault.amount))
                return "the disk"
            case "disk-slow":
                assert self.disk is not None
                self.disk.disturb(fault.kind, fault.amount, 2)
                return "the disk"
        return self._disturb_link(fault)

    def _disturb_link(self, fault: Fault) -> str:
        """Disturb a link; in the proxy's thread."""
        links = self.links
        assert links is not None

        def disturb() -> int:
            match fault.kind:
                case "reset":
                    return links.reset(fault.target)
                case "half-open":
                    return links.vanish(fault.target, None)
                case "partition":
                    return links.vanish(fault.target, fault.seconds)
            seconds = _ONCE_SECONDS if fault.kind in ONCE else fault.seconds
            return links.disturb(fault.kind, fault.target, fault.forward, seconds, fault.amount)

        return f"{links.run(disturb)} connections"

    def _signal(self, name: str, number: signal.Signals) -> str:
        pid = processes().get(name)
        if pid is None:
            return ""
        if name == CONTROLLER and number == signal.SIGKILL:
            self.controller_killed = True
        os.kill(pid, number)
        return f"process {pid}"

    def _stop(self, name: str, seconds: float) -> str:
        pid = processes().get(name)
        if pid is None:
            return ""
        handle = os.pidfd_open(pid)  # the pid may belong to another process by the second signal
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
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


def _steps_under_way(run: Run) -> int:
    """Return how many steps may be committed although they began before a fault."""
    return 1 if run.consistency == "sync" else 5  # training.maxStaleness is 4 by default
