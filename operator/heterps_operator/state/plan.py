"""A job's plan, parsed once from a plan file: what its processes carry out, and what the planner predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from heterps_operator.documents import Json
from heterps_planner.plans.plan import Machine
from heterps_planner.plans.selection import Selection
from heterps_runtime.contract import DenseExchange, PlanDocument, ServersDocument, StageDocument, ps_name, worker_name

__all__ = ["BY_HAND", "JobPlan", "PlanOutcome", "Refusal"]

BY_HAND = "hand"  # method of a plan whose stages a user gave


@dataclass(frozen=True)
class JobPlan:
    """A plan of a job.

    Attributes:
        document: the plan file, with what only reports show.
        method: the planning method, or `BY_HAND`.
        stages: the stages, in the order of the layers.
        servers: the parameter servers.
        throughput: predicted samples per second; None: no prediction.
        cost_per_hour: price in dollars; None: no prediction.
        seconds: planning time.
        machine: the machine whose cores all processes share; None on a cluster.
        precision: if it was chosen with this plan.
        dense_exchange: the same, of the gradients of stages on CPU pools.
    """

    document: Json
    method: str
    stages: tuple[StageDocument, ...]
    servers: ServersDocument
    throughput: float | None = None
    cost_per_hour: float | None = None
    seconds: float = 0.0
    machine: Machine | None = None
    precision: Selection | None = None
    dense_exchange: Selection | None = None

    @classmethod
    def from_json(cls, document: Json) -> JobPlan:
        """Parse a plan file.

        Raises:
            ValueError: a key is missing or malformed.
        """
        if not isinstance(document, Mapping):
            raise ValueError("plan: must be an object")
        carried_out = PlanDocument.from_json(dict(document))
        if not all(stage.layers for stage in carried_out.stages):
            raise ValueError("plan.stages: each stage needs its layers")
        machine = document.get("machine")
        try:
            return cls(
                document=document,
                method=str(document.get("method") or BY_HAND),
                stages=carried_out.stages,
                servers=carried_out.parameterServer,
                throughput=_number(document.get("throughput")),
                cost_per_hour=_number(document.get("costPerHour")),
                seconds=_number(document.get("seconds")) or 0.0,
                machine=None if machine is None else Machine.from_json(machine),
                precision=Selection.of_plan(document, "precision", "precisions"),
                dense_exchange=Selection.of_plan(document, "denseExchange", "denseExchanges"),
            )
        except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"plan: missing or malformed {error}") from error

    @property
    def summary(self) -> str:
        """The plan in one line: `cpu x2 [embedding..concat] -> accelerator x1 [mlp]`."""
        return " -> ".join(f"{stage.pool} x{stage.units} [{_span(stage.layers)}]" for stage in self.stages)

    @property
    def units(self) -> dict[str, int]:
        """Units of stages and servers, by pool."""
        units = {self.servers.pool: self.servers.units}
        for stage in self.stages:
            units[stage.pool] = units.get(stage.pool, 0) + stage.units
        return units

    @property
    def exchange_on_cpus(self) -> DenseExchange:
        """How stages on CPU pools exchange gradients of dense parameters: only what is unusual there is said."""
        all_reduces = any(stage.denseExchange == DenseExchange.ALL_REDUCE for stage in self.stages)
        return DenseExchange.ALL_REDUCE if all_reduces else DenseExchange.PARAMETER_SERVER

    @property
    def pods(self) -> tuple[int, ...]:
        """Workers of each stage."""
        return tuple(stage.pods for stage in self.stages)

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of all workers, stage by stage."""
        return tuple(worker_name(number, index) for number, count in enumerate(self.pods) for index in range(count))

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all workers, stage by stage, then of the servers."""
        return (*self.workers, *map(ps_name, range(self.servers.replicas)))

    @property
    def server_units(self) -> tuple[int, ...]:
        """Units of each parameter server: whole units, divided as evenly as possible."""
        each, more = divmod(self.servers.units, self.servers.replicas)
        return tuple(each + (index < more) for index in range(self.servers.replicas))

    def with_workers(
        self,
        pods: Sequence[int],
        servers: ServersDocument,
        units_per_pod: Mapping[str, int],
        prices: Mapping[str, Decimal],
    ) -> JobPlan:
        """Return the plan with other numbers of workers and servers, and the price that follows.

        The predicted throughput is that of the planned numbers; with others there is none.

        Args:
            pods: workers of each stage.
            servers: the parameter servers.
            units_per_pod: by pool.
            prices: dollars per unit and hour, by pool.
        """
        stages = [
            {**stage, "pods": number, "units": number * units_per_pod[stage["pool"]]}
            for stage, number in zip(self.document["stages"], pods, strict=True)
        ]
        price = sum(float(prices[stage["pool"]]) * stage["units"] for stage in stages)
        price += float(prices[servers.pool]) * servers.units
        changed = {"stages": stages, "parameterServer": asdict(servers), "costPerHour": price}
        if (tuple(pods), servers) != (self.pods, self.servers):
            changed["throughput"] = None
        return JobPlan.from_json({**self.document, **changed})


@dataclass(frozen=True)
class Refusal:
    """Why no plan meets the objective."""

    reason: str  # CamelCase, for programs
    message: str  # for people


@dataclass(frozen=True)
class PlanOutcome:
    """The planner's answer: a plan, a refusal, or an error of the planner."""

    plan: JobPlan | None = None
    refusal: Refusal | None = None
    error: str = ""
    revision: int = 1  # of the plan that was asked for

    @classmethod
    def from_json(cls, document: Json, revision: int) -> PlanOutcome:
        """Parse the planner's output.

        Raises:
            ValueError: the document is neither a plan nor a refusal.
        """
        if not isinstance(document, Mapping) or document.get("feasible", True):
            return cls(plan=JobPlan.from_json(document), revision=revision)
        reason, message = document.get("reason", "Infeasible"), document.get("message", "there is no plan")
        return cls(refusal=Refusal(str(reason), str(message)), revision=revision)

    @property
    def reason(self) -> str:
        """Why there is no plan, for programs."""
        return "PlannerFailed" if self.refusal is None else self.refusal.reason

    @property
    def message(self) -> str:
        """Why there is no plan, for people."""
        return self.error if self.refusal is None else self.refusal.message


def _span(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]}..{layers[-1]}"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
