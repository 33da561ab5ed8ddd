"""Returns to a checkpoint, which lose committed steps, and whether a fault may cause them. Pure: it only sees statuses.

What each loss costs is in docs/protocol.md, "Generations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.faults.incident import Incident
    from tests.chaos.faults.schedule import Fault, Topology

__all__ = ["Rollbacks"]

_OF_PROCESS = ("kill", "terminate", "stop")


class Rollbacks:
    """Returns to a checkpoint after one loss alone, whose state other members hold.

    Args:
        topology: the job's first plan.

    Attributes:
        problems: one line for each that should not have been.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._seen: set[tuple[float, str]] = set()
        self.problems: list[str] = []

    def observe(self, status: Mapping[str, Any], incidents: Sequence[Incident]) -> None:
        """Take a status of the job.

        Args:
            status: of the coordinator.
            incidents: so far, as they were before this status.
        """
        for event in status["events"]:
            key = (event["time"], event["message"])
            if event["reason"] == "RolledBack" and key not in self._seen:
                self._seen.add(key)
                self._judge(event["message"], incidents)

    def _judge(self, message: str, incidents: Sequence[Incident]) -> None:
        """Judge one by the faults from which the job has not recovered, or else by the last one."""
        plans = [self._topology, *(i.fault.plan for i in incidents if i.fault.plan is not None)]
        causes = [i.fault for i in incidents if i.recovery.ended is None] or [i.fault for i in incidents[-1:]]
        losses = [fault for fault in causes if fault.plan is None]
        # A fault at a change meets members of the plan before, or of the one after it.
        present = plans[-2:] if len(losses) < len(causes) else plans[-1:]
        if causes and len(losses) <= 1 and all(_spares(plan, fault) for plan in present for fault in losses):
            told = " and ".join(map(str, causes))
            self.problems.append(f"it went back {message} although other members had all state, after {told}")


def _spares(plan: Topology, fault: Fault) -> bool:
    """Whether a job goes on after a fault with what the other members hold."""
    ends = fault.target.split(">")
    members = [name for name in ends if name.startswith(("ps-", "worker-"))]
    if not members or (fault.kind not in _OF_PROCESS and len(ends) == 1):
        return False  # the disk, the clock, the coordinator
    servers = [name for name in members if name.startswith("ps-")]
    if len(ends) == 2 and (plan.copies == 1 or len(servers) > 1):
        return False  # both ends may count as lost
    if servers and plan.copies == 1:
        return False
    return all(_is_spare(plan, name) for name in members if name not in servers)


def _is_spare(plan: Topology, worker: str) -> bool:
    """Whether no dense parameters are lost with a worker: the servers have them, or another replica."""
    stage = int(worker.split("-")[1])
    return stage >= len(plan.stages) or plan.stages[stage][0] != "card" or plan.stages[stage][1] > 1
