"""Plans that find no room: the pool's nodes have too little left beside pods that HeterPS does not know. Pure.

The units of a pool are counted without pods of other software, and no count knows all rules of a scheduler. So the
scheduler has the last word: where a part of a plan has waited for room, the job is planned again with what found some.
"""

from __future__ import annotations

from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions.failures import start_over
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.values import Observed, ProcessView
from heterps_runtime.contract import BEGUN_PHASES

__all__ = ["judge_crowding", "limited_to_room"]

_PATIENCE_SECONDS = 60.0  # for pods that end, and for preemption
_VALID_SECONDS = 300.0  # then a job that still waits tries with everything again


def limited_to_room(observed: Observed, status: Status) -> Observed:
    """Limit the pools to what has found room, until the job trains or a time has passed."""
    if not status.crowded or observed.time - status.crowded_since > _VALID_SECONDS:
        return observed
    capacity = observed.capacity
    free, room, most = dict(capacity.free_units), dict(capacity.room), dict(capacity.most_units)
    for pool, units in status.crowded.items():
        for limits in (free, room, most):
            limits[pool] = min(units, limits.get(pool, units))
    return replace(observed, capacity=replace(capacity, free_units=free, room=room, most_units=most))


def judge_crowding(job: JobSpec, observed: Observed, status: Status) -> tuple[Status, tuple[Event, ...]]:
    """Give up a plan of which a part has waited for room since the start, while another part has some.

    Args:
        job: what is wanted.
        observed: what is the case.
        status: of a job that neither stops nor ends.

    Returns:
        The status, of a job that starts over without a plan if there is too little room; and an event.
    """
    now = observed.time
    trains = observed.coordinator is not None and observed.coordinator.phase in BEGUN_PHASES
    if status.crowded and (trains or now - status.crowded_since > _VALID_SECONDS):
        status = replace(status, crowded={}, crowded_since=0.0)
    if status.plan is None or status.phase != Phase.STARTING or job.stages_by_hand:
        return status, ()
    present = [p for p in observed.processes if p.running and p.spec.incarnation == status.incarnation]
    for pool in job.pools:
        mine = [p for p in present if p.spec.pool == pool.name]
        waiting = [p for p in mine if _waits(p, now)]
        placed = sum(p.spec.units for p in mine if p.problem is None or not p.problem.crowded)
        if pool.autoscaled or not waiting or not placed:
            continue
        text = (
            f"{waiting[0].name} has found no room in pool {pool.name} for {_PATIENCE_SECONDS:g} s, {placed} of "
            f"{status.plan.units.get(pool.name, placed)} units have: the job is planned again with these"
        )
        status = replace(
            status.without_questions(), plan=None,
            crowded={**status.crowded, pool.name: placed}, crowded_since=now,
        )  # fmt: skip
        status = status.with_condition("Planned", None, "Replanning", text, now)
        return start_over(status, now, 0.0), (Event("Warning", "PoolCrowded", text, now),)
    return status, ()


def _waits(process: ProcessView, now: float) -> bool:
    crowded = process.problem is not None and process.problem.crowded
    return crowded and now - process.started > _PATIENCE_SECONDS
