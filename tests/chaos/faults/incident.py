"""A fault that was injected, and what the job's status says about the time after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.schedule import Fault, Run
from tests.chaos.results.recovery import Recovery

__all__ = ["Hit", "Incident", "Instant", "all_ready", "steps_under_way"]


@dataclass(frozen=True)
class Instant:
    """When a fault was injected, where no single message is known to be on its way.

    Attributes:
        op: what was seen: `start`, `step`, `checkpoint` or `restart` (`tests/chaos/cluster/moments.py`).
        step: committed steps; None: no coordinator answered.
    """

    op: str
    step: int | None


@dataclass
class Hit:
    """Whether a fault that waits for something to disturb has found it.

    Attributes:
        happened: whether a write, a connection or bytes in a connection were disturbed.
    """

    happened: bool = False


@dataclass
class Incident:
    """A fault that was injected.

    Attributes:
        fault: as it was planned.
        at: what was on its way, or was seen.
        recovery: of the job.
        done: what was done, for people; empty: there was nothing to do it to; None: it is being done.
        hit: of faults of links and of the disk, which may find nothing to disturb until they are over.
    """

    fault: Fault
    at: Sighting | Instant
    recovery: Recovery
    done: str | None = None
    hit: Hit | None = None


def all_ready(status: Mapping[str, Any]) -> bool:
    """Return whether all members of a job take part, by a status of its coordinator."""
    ready = {member["name"] for member in status["members"] if member["state"] == "ready"}
    return ready >= set(status["expectedMembers"])


def steps_under_way(run: Run) -> int:
    """Return how many steps may be committed although they began before a fault."""
    return 1 if run.consistency == "sync" else 5  # training.maxStaleness is 4 by default
