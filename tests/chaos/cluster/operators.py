"""Two operators with one Lease, restarted when they end, as their Deployment does."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.chaos.faults.clock import Clock
from tests.cluster.operators import Operator

__all__ = ["Operators"]

_STANDBY = "waiting for the Lease"
_ACTIVE = " active: "
_RESTART_SECONDS = 5.0  # least time between two starts: a kubelet waits, too, before it restarts a container again


class Operators:
    """As a context manager they run inside the block.

    Args:
        kubeconfig: their credentials, through the gate.
        folder: folder of their logs.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        names = ("operator-1", "operator-2")  # each on a node, and with a clock, of its own
        self._clocks = {name: Clock(folder / f"{name}.clock") for name in names}
        self._pair = [
            Operator(kubeconfig, folder, name=name, environment=clock.environment)
            for name, clock in self._clocks.items()
        ]
        self._other = Operator(kubeconfig, folder, "--lease-name", "other", name="operator-other")
        self._started = 0.0  # last of the pair, monotonic seconds

    def __enter__(self) -> Operators:
        self._pair[0].start()
        self._pair[1].start(standby=True)
        return self

    def __exit__(self, *_: object) -> None:
        for operator in (*self._pair, self._other):
            operator.stop()

    def restart(self) -> None:
        """Start those that have ended; an operator that loses its Lease does so on purpose."""
        for operator in self._pair:
            if not operator.running and time.monotonic() >= self._started + _RESTART_SECONDS:
                operator.launch()
                self._started = time.monotonic()

    def active(self) -> Operator | None:
        """Return the one that has the Lease; None if none says so."""
        for operator in self._pair:
            said = operator.said()
            if operator.running and said.rfind(_ACTIVE) > said.rfind(_STANDBY):
                return operator
        return None

    def kill(self) -> str:
        """Kill the active one."""
        operator = self.active()
        if operator is None:
            return ""
        operator.kill()
        return operator.log.stem

    def stop(self) -> Operator | None:
        """SIGSTOP the active one."""
        operator = self.active()
        if operator is not None:
            operator.send(signal.SIGSTOP)
        return operator

    def clocks(self, *, all_of_them: bool) -> list[Clock]:
        """Return the clock of the active one, or all clocks; none if none is active."""
        operator = self.active()
        if operator is None:
            return []
        return list(self._clocks.values()) if all_of_them else [self._clocks[operator.log.stem]]

    def add_other(self) -> None:
        """Launch one with a Lease of its own."""
        self._other.launch()

    def remove_other(self) -> None:
        """Stop it."""
        self._other.stop()

    def stories(self) -> str:
        """Return their logs."""
        logs = [operator.log for operator in (*self._pair, self._other)]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs if log.exists())

    def tracebacks(self) -> int:
        """Return how many tracebacks they have logged so far."""
        return self.stories().count("Traceback (most recent call last)")
