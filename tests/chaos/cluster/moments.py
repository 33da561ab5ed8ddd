"""When the next fault of a job on a cluster is due: a pure decision about what is seen.

No message is held up here as on one machine. A step takes 20 ms or more and steps follow each other without a pause, so
a fault that is injected when a step was committed hits the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults.incident import Incident, all_ready
from tests.chaos.faults.schedule import Fault

__all__ = ["Sight", "complete", "due"]


@dataclass(frozen=True)
class Sight:
    """What is seen of a job at a time.

    Attributes:
        status: of its coordinator; None: it does not answer.
        pods: uids of all its pods so far.
        checkpoints: names of all checkpoint folders so far, complete or not.
    """

    status: Mapping[str, Any] | None
    pods: frozenset[str]
    checkpoints: frozenset[str]

    @property
    def step(self) -> int | None:
        """Committed steps; None: the coordinator does not answer."""
        return None if self.status is None else int(self.status["committedSteps"])


def complete(sight: Sight) -> bool:
    """Return whether the job trains with all its members."""
    return sight.status is not None and bool(sight.status["running"]) and all_ready(sight.status)


def due(fault: Fault, sight: Sight, before: Sight, previous: Incident | None, *, lasts: bool) -> bool:
    """Return whether it is the moment of a fault.

    Args:
        fault: the next fault.
        sight: what is seen now.
        before: what was seen last.
        previous: the previous fault, if any.
        lasts: whether a fault lasts.
    """
    if previous is not None and not fault.soon and (previous.recovery.ended is None or lasts or not complete(sight)):
        return False
    match fault.op:
        case "start":  # pods exist, and no step was made
            return bool(sight.pods) and (sight.step or 0) == 0
        case "restart":  # the first new pod after the previous fault
            return bool(sight.pods - before.pods)
        case "checkpoint":
            return _reached(fault, sight) and bool(sight.checkpoints - before.checkpoints)
    return _reached(fault, sight)


def _reached(fault: Fault, sight: Sight) -> bool:
    return sight.status is not None and bool(sight.status["running"]) and (sight.step or 0) >= fault.step
