"""The job's status: what the controller remembers between two turns.

It is a value that `reconcile` reads and returns; the loop stores it (a file here, the object's status on a cluster).
Everything that must happen once is decided by comparing it with what is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from heterps_operator.documents import Json, known_fields
from heterps_operator.state.history import PlanRecord
from heterps_operator.state.offers import Offer
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.selection import restore_selection
from heterps_operator.state.throughput import Sample, ThroughputSeries
from heterps_operator.state.trials import FloorMoves, Review, Trial
from heterps_planner.balancing import Pace, WorkerEstimate
from heterps_planner.plans.selection import Selection

__all__ = ["CONDITION_TYPES", "FINAL_PHASES", "Condition", "Event", "Failure", "Phase", "Relayed", "Status"]


class Phase(StrEnum):
    """What a job is doing. Pending -> Profiling -> Planning -> Starting -> Running -> Stopping -> a final phase."""

    PENDING = "Pending"
    PROFILING = "Profiling"
    PLANNING = "Planning"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"  # all processes start again from the last checkpoint
    STOPPING = "Stopping"
    PAUSED = "Paused"  # `spec.paused`: the controller takes no action
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    PLANNED = "Planned"
    PROFILED = "Profiled"


FINAL_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.PLANNED, Phase.PROFILED})
CONDITION_TYPES = (
    "Profiled",
    "Planned",
    "PodsReady",
    "ThroughputMet",
    "Rebalanced",
    "Rescaled",
    "Suspended",
    "Succeeded",
    "Failed",
)


@dataclass(frozen=True)
class Condition:
    """One statement about the job, as in Kubernetes."""

    type: str
    status: str = "Unknown"  # True | False | Unknown
    reason: str = "NotYetKnown"
    message: str = ""
    last_transition_time: float = 0.0  # when `status` changed last

    def to_json(self) -> dict[str, Any]:
        """The condition under the names of the API."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition_time,
        }


@dataclass(frozen=True)
class Failure:
    """Why a job failed."""

    reason: str  # CamelCase, for programs
    message: str  # for people
    member: str = ""  # the process at fault, if it was one
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()  # of that process's log
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        """The failure as reports show it."""
        return {
            "reason": self.reason,
            "message": self.message,
            "member": self.member or None,
            "exitCode": self.exit_code,
            "lastLines": list(self.last_lines),
            "log": self.log or None,
        }


@dataclass(frozen=True)
class Event:
    """Something that happened once."""

    type: str  # Normal | Warning
    reason: str
    message: str
    time: float = 0.0


@dataclass(frozen=True)
class Relayed:
    """How many warnings of the coordinator were passed on as events, since a moment."""

    since: float = 0.0
    warnings: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Status:
    """Everything that the controller remembers of a job."""

    phase: Phase = Phase.PENDING
    phase_since: float = 0.0
    started: float | None = None  # when this run of the job began
    finished: float | None = None
    conditions: tuple[Condition, ...] = ()
    plan: JobPlan | None = None  # the plan that is carried out
    plan_revision: int = 0
    plan_reason: str = ""  # why this plan was made: PlanComputed (the first), Replanned, UnitsChanged, Redivided
    precision: Selection | None = None  # of `training.precision: Auto`, since a plan was first carried out
    history: tuple[PlanRecord, ...] = ()  # of the plans so far, the oldest first
    # Units that others left free when a plan was asked for; empty: it was asked for as if there were no others.
    planned_with: Mapping[str, int] = field(default_factory=dict)
    refused_with: Mapping[str, int] = field(default_factory=dict)  # free units with which there was no plan last
    possible: bool = False  # there is a plan with all units of the job's pools, so it waits for a lack of room only
    claim: Mapping[str, int] = field(default_factory=dict)  # by pool: units of the plan that it would have alone
    claim_precision: str = ""  # that the planner chose with this plan; empty: it had no choice
    claim_exchange: str = ""  # the same, of dense gradients on CPU pools
    waiting_since: float | None = None  # it was first refused units for this plan
    crowded: Mapping[str, int] = field(default_factory=dict)  # by pool: units that found room when others did not
    crowded_since: float = 0.0
    incarnation: int = 1  # goes up when everything starts again from the last checkpoint
    attempts: Mapping[str, int] = field(default_factory=dict)  # by process, in this incarnation; absent: the first
    queued: bool = False  # a queue holds the job back, or pods of it (scheduling gates)
    admitted: float = 0.0  # when it did not any more
    not_before: Mapping[str, float] = field(default_factory=dict)  # earliest start, by process; "": of everything
    heard: float = 0.0  # time, by its own clock, of the last event of the coordinator that people were told
    relayed: Relayed = field(default_factory=Relayed)  # of these events
    resumed_incarnation: int = 0  # the last one of which was said from which step it resumed
    failures: int = 0  # deaths that count to backoffLimit
    failures_in_a_row: int = 0  # of these, without progress in between
    failed_at_step: int = -1  # the furthest committed step at which one of them happened
    disruptions: int = 0  # bursts, one soon after the other, of deaths that do not
    disrupted: float = 0.0  # when the last of them began
    restarts: Mapping[str, int] = field(default_factory=dict)  # by process, since the run began; for reports
    stopping_since: float | None = None  # an orderly stop was decided
    moving: str = ""  # why: nodes do not keep the job's pods, so it starts again on others; empty: another reason
    outcome: Phase | None = None  # the final phase that the job is heading for, while its processes end
    outcome_since: float = 0.0
    members_ended: float | None = None  # since then only the coordinator is left
    orderly: bool = False  # the coordinator itself ended the job, its members end by themselves
    failure: Failure | None = None
    last_observation: float | None = None  # when the workers' speeds were noted last
    last_rebalance: float | None = None  # when a new division of the batch was last thought about
    speeds: Mapping[str, WorkerEstimate] = field(default_factory=dict)  # what is known of them, by worker
    pace: Pace = field(default_factory=Pace)  # how often the batch is divided anew
    review: Review | None = None  # a re-provisioning that the planner was asked for
    reviewed: float | None = None  # when the planner was asked last, or the number of units changed
    series: ThroughputSeries = field(default_factory=ThroughputSeries)  # measured since the plan came into force
    trials: tuple[Trial, ...] = ()  # numbers of units that did not do
    moved_for_floor: FloorMoves = field(default_factory=FloorMoves)  # to other stages
    prices: Mapping[str, str] = field(default_factory=dict)  # by pool, as decimals: in force at the last turn
    judged_prices: Mapping[str, str] = field(default_factory=dict)  # with which the plan was made, or judged last
    offer: Offer | None = None  # a cheaper plan at the present prices
    start_seconds: float | None = None  # of the last start of a plan, until it trained; None: none was measured
    result: Json | None = None  # the coordinator's last status

    @property
    def choice(self) -> Selection | None:
        """The precision that the job keeps, or that its plan would give it; None: there is none yet, or no choice."""
        return self.precision or (None if self.plan is None else self.plan.precision)

    @property
    def chosen_precision(self) -> str:
        """Name of the choice; empty: there is none."""
        return "" if self.choice is None else self.choice.name

    @property
    def final(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in FINAL_PHASES

    @property
    def waiting_reason(self) -> str | None:
        """Why the job does not train yet, or not at the moment, in CamelCase; None: it trains, stops or has ended.

        It is the reason of the first step on the way to training that cannot be taken, or else the phase.
        """
        if self.final or self.phase in (Phase.RUNNING, Phase.STOPPING):
            return None
        if self.phase != Phase.PAUSED:
            for kind in ("Profiled", "Planned", "PodsReady"):
                condition = self.condition(kind)
                if condition.status == "False":
                    return condition.reason
        return str(self.phase)

    def condition(self, kind: str) -> Condition:
        """The condition of that type."""
        for known in self.conditions:
            if known.type == kind:
                return known
        return Condition(kind)

    def with_condition(self, kind: str, status: bool | None, reason: str, message: str, now: float) -> Status:
        """The status with one condition set; the transition time moves only when the condition's status does."""
        word = "Unknown" if status is None else str(status)
        old = self.condition(kind)
        since = old.last_transition_time if old.status == word and old.last_transition_time else now
        new = Condition(kind, word, reason, message, since)
        if new == old:
            return self
        known = {c.type: c for c in self.conditions} | {kind: new}
        return replace(self, conditions=tuple(known.get(t, Condition(t)) for t in CONDITION_TYPES))

    def with_phase(self, phase: Phase, now: float) -> Status:
        """The status in a phase; staying in it does not move `phase_since`."""
        return self if phase == self.phase else replace(self, phase=phase, phase_since=now)

    def begin_again(self, now: float) -> Status:
        """The status of a new run of the same job: plan and progress stay, failures do not."""
        return Status(
            phase=Phase.PENDING,
            phase_since=now,
            started=now,
            conditions=tuple(c for c in self.conditions if c.type in ("Profiled", "Planned")),
            plan=self.plan,
            plan_revision=self.plan_revision,
            plan_reason=self.plan_reason,
            precision=self.precision,
            history=self.history,
            incarnation=self.incarnation + 1,
            judged_prices=self.judged_prices,
            start_seconds=self.start_seconds,
            result=self.result,
        ).with_condition("Suspended", False, "Running", "", now)

    def without_plan(self, why: str) -> Status:
        """The status of a job that has to be planned anew."""
        status = replace(self, plan=None).without_questions()
        return status.with_condition("Planned", None, "Replanning", why, self.phase_since)

    def without_questions(self) -> Status:
        """The status of a job whose earlier questions to the planner do not count any more."""
        return replace(
            self, planned_with={}, refused_with={}, possible=False, claim={}, claim_precision="", claim_exchange=""
        )

    def to_json(self) -> dict[str, Any]:
        """The status as a JSON object that `from_json` reads."""
        plan = None if self.plan is None else dict(self.plan.document)
        # The result is JSON already, and of a job with thousands of workers by far the largest part.
        return asdict(replace(self, plan=None, result=None)) | {"plan": plan, "result": self.result}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Status:
        """Read what `to_json` of this or another version wrote.

        A field that is missing has its default, and an unknown one is ignored (docs/compatibility.md).

        Raises:
            ValueError: the document is not a status.
        """
        try:
            given = known_fields(cls, value)
            given["phase"] = Phase(given["phase"])
            for name, read in _READERS.items():
                if given.get(name) is not None:
                    given[name] = read(given[name])
                elif name not in _OPTIONAL:
                    given.pop(name, None)
            return cls(**given)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"status: missing or malformed {error}") from error


def _failure(value: Json) -> Failure:
    known = known_fields(Failure, value)
    return Failure(**{**known, "last_lines": tuple(known.get("last_lines") or ())})


def _series(value: Json) -> ThroughputSeries:
    known = known_fields(ThroughputSeries, value)
    known["samples"] = [known_fields(Sample, sample) for sample in known.get("samples") or ()]
    return ThroughputSeries.from_json({"before": (), **known})


# Fields that JSON does not restore by itself.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "plan": JobPlan.from_json,
    "precision": restore_selection,
    "history": lambda value: tuple(PlanRecord(**known_fields(PlanRecord, item)) for item in value),
    "outcome": Phase,
    "conditions": lambda value: tuple(Condition(**known_fields(Condition, item)) for item in value),
    "relayed": lambda value: Relayed(**known_fields(Relayed, value)),
    "failure": _failure,
    "speeds": lambda value: {
        name: WorkerEstimate.from_json(known_fields(WorkerEstimate, known)) for name, known in value.items()
    },
    "pace": lambda value: Pace.from_json(known_fields(Pace, value)),
    "review": lambda value: Review.from_json(known_fields(Review, value)),
    "series": _series,
    "offer": lambda value: Offer(**known_fields(Offer, value)),
    "moved_for_floor": lambda value: FloorMoves(**known_fields(FloorMoves, value)),
    "trials": lambda value: tuple(Trial.from_json(known_fields(Trial, item)) for item in value),
}
_OPTIONAL = frozenset({"plan", "precision", "outcome", "failure", "review", "offer"})  # that may be null
