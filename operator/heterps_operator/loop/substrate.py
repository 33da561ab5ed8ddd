"""What a control loop needs of the place where processes run.

Two implementations are meant to satisfy this protocol: processes on this machine (processes.py), and pods on a
cluster. The loop knows no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from heterps_operator.documents import Json
from heterps_operator.state.values import ProcessSpec, ProcessView

__all__ = ["ProfileStore", "Substrate"]


class Substrate(Protocol):
    """Starts, watches and ends the processes of one job."""

    def processes(self) -> tuple[ProcessView, ...]:
        """The latest process of each name, running or ended."""
        ...

    def start(self, spec: ProcessSpec) -> None:
        """Start a process; one of the same name must have ended."""
        ...

    def stop(self, name: str, grace_seconds: float) -> None:
        """Ask a process to end, and end it after the grace; returns at once."""
        ...

    def coordinator_address(self) -> str | None:
        """`http://host:port` of the running coordinator, once it listens."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when a process has ended, when woken, or after that time."""
        ...

    def wake(self) -> None:
        """Let `wait` return; safe in a signal handler."""
        ...

    def close(self) -> None:
        """End what still runs, at once, and free what the substrate holds."""
        ...


class ProfileStore(Protocol):
    """Keeps profiles for later runs; files on this machine, ConfigMaps on a cluster."""

    def load(self, pools: Sequence[str]) -> dict[str, Any]:
        """The kept profiles of these pools, by pool; what is missing has to be measured."""
        ...

    def save(self, pool: str, profile: Json) -> None:
        """Keep a profile."""
        ...
