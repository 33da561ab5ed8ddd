"""Typed views of a HeterPSJob, its plans and its events, as `crds/` define them.

Every field may be absent, as the status fills up gradually; keys of later versions are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.state.status import FINAL_PHASES, Phase
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INFEASIBLE, EXIT_OK

__all__ = ["ConditionView", "EventView", "JobView", "PlanView", "PoolCost", "StageView", "StatusView", "read_time"]


@dataclass(frozen=True)
class ConditionView:
    """One condition of a job."""

    type: str
    status: str  # True | False | Unknown
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True)
class StageView:
    """One stage of the current plan."""

    name: str
    pool: str
    first_layer: int
    last_layer: int
    units: int
    pods: int


@dataclass(frozen=True)
class PoolCost:
    """Cost of the units of one pool."""

    name: str
    unit_hours: Decimal
    cost: Decimal


@dataclass(frozen=True)
class StatusView:
    """The status of a job; None where there is no value (yet)."""

    observed_generation: int = 0
    phase: str = ""  # "": no operator has picked up the job
    message: str = ""
    started: datetime | None = None
    completed: datetime | None = None
    restarts: int = 0
    plan_revision: int = 0  # 0: no plan
    plan_method: str = ""
    plan_reason: str = ""
    plan_summary: str = ""
    cost_per_hour: Decimal | None = None
    predicted_samples_per_second: float | None = None
    stages: tuple[StageView, ...] = ()
    samples_per_second: float | None = None
    min_samples_per_second: float | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    workers_ready: int = 0
    workers_desired: int = 0
    servers_ready: int = 0
    servers_desired: int = 0
    cost: Decimal | None = None
    pool_costs: tuple[PoolCost, ...] = ()
    checkpoint_step: int | None = None
    checkpoint_path: str = ""
    auc: float | None = None
    log_loss: float | None = None
    accuracy: float | None = None
    cross_entropy: float | None = None
    model: str = ""
    conditions: tuple[ConditionView, ...] = ()

    def condition(self, kind: str) -> ConditionView:
        """Return the condition of that type; Unknown if there is none."""
        unknown = ConditionView(kind, "Unknown", "NotYetKnown", "", None)
        return next((condition for condition in self.conditions if condition.type == kind), unknown)

    @classmethod
    def from_json(cls, value: Json) -> StatusView:
        """Parse the `status` of a HeterPSJob."""

        def part(name: str) -> Mapping[str, Any]:
            found = value.get(name)
            return found if isinstance(found, Mapping) else {}

        plan, throughput, progress, cost = part("plan"), part("throughput"), part("progress"), part("cost")
        workers, servers, checkpoint = part("workers"), part("parameterServers"), part("checkpoint")
        return cls(
            observed_generation=int(value.get("observedGeneration") or 0),
            phase=str(value.get("phase") or ""),
            message=str(value.get("message") or ""),
            started=read_time(value.get("startTime")),
            completed=read_time(value.get("completionTime")),
            restarts=int(value.get("restarts") or 0),
            plan_revision=int(plan.get("revision") or 0),
            plan_method=str(plan.get("method") or ""),
            plan_reason=str(plan.get("reason") or ""),
            plan_summary=str(plan.get("summary") or ""),
            cost_per_hour=_decimal(plan.get("costPerHour")),
            predicted_samples_per_second=_number(plan.get("predictedSamplesPerSecond")),
            stages=tuple(_stage(stage) for stage in plan.get("stages") or ()),
            samples_per_second=_number(throughput.get("samplesPerSecond")),
            min_samples_per_second=_number(throughput.get("minSamplesPerSecond")),
            step=_integer(progress.get("step")),
            total_steps=_integer(progress.get("totalSteps")),
            epoch=_integer(progress.get("epoch")),
            loss=_number(progress.get("loss")),
            workers_ready=int(workers.get("ready") or 0),
            workers_desired=int(workers.get("desired") or 0),
            servers_ready=int(servers.get("ready") or 0),
            servers_desired=int(servers.get("desired") or 0),
            cost=_decimal(cost.get("total")),
            pool_costs=tuple(
                PoolCost(
                    str(pool["name"]),
                    _decimal(pool.get("unitHours")) or Decimal(0),
                    _decimal(pool.get("cost")) or Decimal(0),
                )
                for pool in cost.get("pools") or ()
            ),
            checkpoint_step=_integer(checkpoint.get("step")),
            checkpoint_path=str(checkpoint.get("path") or ""),
            auc=_number(part("evaluation").get("auc")),
            log_loss=_number(part("evaluation").get("logLoss")),
            accuracy=_number(part("evaluation").get("accuracy")),
            cross_entropy=_number(part("evaluation").get("crossEntropy")),
            model=str(value.get("model") or ""),
            conditions=tuple(
                ConditionView(
                    str(condition["type"]),
                    str(condition.get("status") or "Unknown"),
                    str(condition.get("reason") or ""),
                    str(condition.get("message") or ""),
                    read_time(condition.get("lastTransitionTime")),
                )
                for condition in value.get("conditions") or ()
            ),
        )


@dataclass(frozen=True)
class JobView:
    """A HeterPSJob."""

    name: str
    namespace: str
    uid: str
    generation: int  # of the spec
    created: datetime | None
    deleting: bool
    suspended: bool  # runPolicy.suspend
    status: StatusView
    document: Json = field(repr=False)  # the whole object

    @classmethod
    def from_json(cls, value: Json) -> JobView:
        """Parse a HeterPSJob from an API server."""
        metadata, spec = value["metadata"], value.get("spec") or {}
        return cls(
            name=str(metadata["name"]),
            namespace=str(metadata.get("namespace") or ""),
            uid=str(metadata.get("uid") or ""),
            generation=int(metadata.get("generation") or 0),
            created=read_time(metadata.get("creationTimestamp")),
            deleting="deletionTimestamp" in metadata,
            suspended=bool((spec.get("runPolicy") or {}).get("suspend")),
            status=StatusView.from_json(value.get("status") or {}),
            document=value,
        )

    @property
    def current(self) -> bool:
        """Whether the status describes the current spec."""
        return self.status.observed_generation >= self.generation

    @property
    def ended(self) -> bool:
        """Whether the job has ended for the current spec."""
        return self.current and self.status.phase in FINAL_PHASES

    @property
    def exit_code(self) -> int:
        """The exit code that `heterps run` would return."""
        if self.status.phase != Phase.FAILED:
            return EXIT_OK
        if self.status.condition("Planned").status == "False":
            return EXIT_INFEASIBLE
        return EXIT_BAD_INPUT if self.status.condition("Failed").reason == "BadInput" else EXIT_FAILED


@dataclass(frozen=True)
class PlanView:
    """A current or former plan of a job."""

    revision: int
    created: datetime | None
    document: Json  # the plan file


@dataclass(frozen=True)
class EventView:
    """An event about a job or one of its pods."""

    time: datetime | None
    type: str  # Normal | Warning
    reason: str
    message: str
    about: str  # kind and name
    count: int = 1

    @classmethod
    def from_json(cls, value: Json) -> EventView:
        """Parse an Event of the old or the new API."""
        about = value.get("involvedObject") or value.get("regarding") or {}
        series = value.get("series") or {}
        times = (
            series.get("lastObservedTime"),
            value.get("lastTimestamp"),
            value.get("eventTime"),
            value.get("deprecatedLastTimestamp"),
            (value.get("metadata") or {}).get("creationTimestamp"),
        )
        return cls(
            time=next((read_time(time) for time in times if time), None),
            type=str(value.get("type") or "Normal"),
            reason=str(value.get("reason") or ""),
            message=str(value.get("message") or value.get("note") or ""),
            about=f"{about.get('kind', '')} {about.get('name', '')}".strip(),
            count=int(series.get("count") or value.get("count") or 1),
        )


def read_time(value: Any) -> datetime | None:
    """Parse a Kubernetes timestamp; None if it is not one."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _stage(value: Json) -> StageView:
    return StageView(
        str(value["name"]),
        str(value["pool"]),
        int(value["firstLayer"]),
        int(value["lastLayer"]),
        int(value["units"]),
        int(value["pods"]),
    )


def _number(value: Any) -> float | None:
    found = _decimal(value)
    return None if found is None else float(found)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _decimal(value: Any) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None
