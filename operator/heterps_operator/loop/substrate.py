"""What a control loop needs: a place where processes run, a coordinator, a planner, a store of profiles, a queue.

Processes run on this machine (`local/processes.py`) or as pods (`kubernetes/substrate.py`); the loop does not know
which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from heterps_operator.documents import Json
from heterps_operator.state.plan import PlanOutcome
from heterps_operator.state.values import (
    Action,
    ProcessSpec,
    ProcessView,
    QuotaRequest,
    ReclaimQuota,
    RequestQuota,
    ReturnQuota,
)

__all__ = ["Coordinator", "Planner", "ProfileStore", "Queue", "Substrate"]


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
        """`http://host:port` (https if the job encrypts) of the running coordinator, once it listens."""
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


class Queue(Protocol):
    """Admits the processes of one job when its quota allows."""

    def requests(self) -> tuple[QuotaRequest, ...]:
        """Return the job's requests."""
        ...

    def carry_out(self, action: RequestQuota | ReclaimQuota | ReturnQuota) -> None:
        """Make, change or withdraw a request."""
        ...


class Coordinator(Protocol):
    """A job's coordinator. Its methods raise CoordinatorError if there is no answer, or a refusal."""

    @property
    def address(self) -> str:
        """`http://host:port`, or https."""
        ...

    def status(self) -> dict[str, Any]:
        """The job as the coordinator sees it."""
        ...

    def profiles(self) -> dict[str, Any]:
        """Measured profiles, by pool."""
        ...

    def send(self, action: Action) -> None:
        """Carry out an action that is a request to the coordinator."""
        ...


class Planner(Protocol):
    """Solves one planning problem at a time, outside the loop's thread."""

    @property
    def running(self) -> bool:
        """Whether an outcome is pending."""
        ...

    def start(self, problem: Json, revision: int = 1, stages: Sequence[Json] = ()) -> None:
        """Start planning.

        Args:
            problem: planning problem.
            revision: revision of the plan, returned with the outcome.
            stages: only provision these; empty: the job's hand-written stages, or else a search.
        """
        ...

    def poll(self) -> PlanOutcome | None:
        """Return the outcome once; None while the planner runs."""
        ...

    def close(self) -> None:
        """End a running planner."""
        ...


class ProfileStore(Protocol):
    """Stores profiles for later runs: files on this machine, ConfigMaps on a cluster."""

    def load(self, pools: Sequence[str]) -> dict[str, Any]:
        """Return the stored profiles of these pools, by pool; the others must be measured."""
        ...

    def save(self, pool: str, profile: Json) -> None:
        """Store a profile."""
        ...
