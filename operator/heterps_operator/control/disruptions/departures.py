"""Nodes that do not keep their pods: when and how a job leaves them. Pure.

A cordoned node is about to be drained, and some taints announce that a node will be removed. The job leaves in time, so
it loses no committed step:

- Workers and profilers end, and start on other nodes. Meanwhile the other workers of a stage share the batch.
- So does a server whose rows others hold (`parameterServer.replication`), one at a time; training then stands still.
- A coordinator, or a server without copies, holds what only a checkpoint carries to another node. The job writes one,
  ends all its processes, and starts them again from it.
- The same happens if the nodes that are left have no room for the plan: the job needs another one, or waits.

With `runPolicy.cordonPolicy: Stay`, the job leaves only nodes whose removal is announced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions.failures import is_current
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.values import Action, Departure, Observed, ProcessView, StopProcess
from heterps_runtime.contract import MemberState, Role

__all__ = ["judge_departures"]

_GRACE_SECONDS = 5.0  # these have nothing to save: an uncommitted step is repeated
_REPLACED = frozenset({Role.WORKER, Role.PROFILE})  # without the other processes


def judge_departures(
    job: JobSpec, observed: Observed, status: Status
) -> tuple[Status, tuple[Action, ...], tuple[Event, ...]]:
    """Find the processes that have to leave their nodes, and begin to move them, or the whole job.

    Args:
        job: what is wanted.
        observed: what is the case.
        status: of a job that neither stops nor ends.

    Returns:
        The status, with `moving` set if the whole job moves; the ends of processes that are replaced; and events.
    """
    now = observed.time
    departures = {process: _departure(process, job, observed, status) for process in observed.processes}
    leaving = {process: departure for process, departure in departures.items() if departure is not None}
    if not leaving:
        return status, (), ()
    plan = status.plan
    fits = plan is None or observed.capacity.fits(plan.units)
    if fits and _can_replace(leaving, job, observed):
        attempts = {process.name: process.spec.attempt + 1 for process in leaving}
        status = replace(status, attempts={**status.attempts, **attempts})
        events = tuple(
            Event("Normal", "ProcessMoves", f"{process.name} leaves node {departure.node}, which {departure.why}", now)
            for process, departure in leaving.items()
        )
        return status, tuple(StopProcess(process.name, _GRACE_SECONDS) for process in leaving), events
    why = _describe(leaving)
    status = replace(status, moving=why, stopping_since=now).with_phase(Phase.STOPPING, now)
    text = f"{why}: the job saves a checkpoint and continues on other nodes"
    return status, (), (Event("Normal", "JobMoves", text if fits else f"{text}, once they have room", now),)


def _can_replace(leaving: Collection[ProcessView], job: JobSpec, observed: Observed) -> bool:
    """Whether the job goes on without these processes until others take their places."""
    servers = [process for process in leaving if process.spec.role == Role.PS]
    if any(process.spec.role not in (*_REPLACED, Role.PS) for process in leaving):
        return False
    if not servers:
        return True
    view = observed.coordinator
    there = view is not None and all(m.state == MemberState.READY for m in view.members if m.role == Role.PS)
    return job.replication > 1 and len(servers) == 1 and there


def _departure(process: ProcessView, job: JobSpec, observed: Observed, status: Status) -> Departure | None:
    """Why a process has to leave its node; None if it may stay, or ends already."""
    departure = process.leaves
    if departure is None or not process.running or process.stopping or not is_current(process, status):
        return None
    if process.spec.role == Role.PROFILE and process.spec.pool in observed.profiles:
        return None  # it has delivered
    stays = job.run_policy.cordon_policy == "Stay" and not departure.announced
    return None if stays else departure


def _describe(leaving: dict[ProcessView, Departure]) -> str:
    """The nodes and their processes: `node a, which runs ps-0, is cordoned`."""
    names: dict[Departure, list[str]] = {}
    for process, departure in leaving.items():
        names.setdefault(departure, []).append(process.name)
    return "; ".join(f"node {d.node}, which runs {', '.join(names[d])}, {d.why}" for d in names)
