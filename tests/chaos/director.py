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

    A fault is armed when the job has recovered from the previous one (or at once, if it is to happen `soon`), and happens
    at the next message that fits. So it does not depend on how fast the machine is.

    Attributes:
        run: plan of the run.
        clock: monotonic seconds.
    """

    run: Run
    clock: Callable[[], float] = time.monotonic
    incidents: list[Incident] = field(default_factory=list)
    controller_killed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0  # fault
        self._stopped: set[int] = set()  # pidfds of processes that are to be continued
        self._closed = False
        self.links: Links | None = None

    # --- inputs -------------------------------------------------------------------------------------------------------

    def sighted(self, sighting: Sighting) -> None:
        """A message is on its way. Called in the proxy's thread, before it is forwarded."""
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
        assert self.links is not None
        match fault.kind:
            case "reset":
                number = self.links.reset(fault.target)
            case "half-open":
                number = self.links.vanish(fault.target, None)
            case "partition":
                number = self.links.vanish(fault.target, fault.seconds)
            case _:
                seconds = _ONCE_SECONDS if fault.kind in ONCE else fault.seconds
                number = self.links.disturb(fault.kind, fault.target, fault.forward, seconds, fault.amount)
        return f"{number} connections" if number else ""

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
