"""The members of a job and their latest reports."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from heterps_runtime.config import PoolConfig
from heterps_runtime.contract import MemberState, PlanDocument, Role, StageDocument, ps_name, worker_name
from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.words import take_figures
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.wire.messages import Join

__all__ = ["Member", "Roster", "check_plan"]

_WHILE_RUNNING = "while the job runs; stop it and start it with the new plan"
_LARGEST_TOTAL = 1e18  # bytes, for example
_SMOOTHING = 0.2  # weight of the newest step in the running means that the balancer reads


@dataclass
class Member:
    """A process that has joined.

    Attributes:
        incarnation: drawn by the process at its start; distinguishes it from its replacement.
        joins: number of joins of this process; more than 1 if it was considered lost and came back.
        address: for other members.
        state_at: (lineage, commits) of its rows and parameters; (0, -1): it has none.
        holds_state: whether they are those of the last commit.
        generation: the latest one that it is a member of; 0: none.
        divisions: of a server, numbers of servers of which it has this one's shards.
        waits: whether it has joined while the others train or set up, and takes part from the next generation on.
        ahead_in: generation in which it was told to copy rows ahead; 0: in none.
        copies_ahead: whether it still does.
    """

    name: str
    role: Role
    incarnation: str
    pool: str
    address: str
    joins: int = 1
    stage: int = -1
    index: int = 0
    state_at: tuple[int, int] = (0, -1)
    store_address: str = ""  # of its rendezvous, for workers that all-reduce
    store_secret: str = ""
    metrics_port: int = 0
    state: MemberState = MemberState.JOINED
    holds_state: bool = False
    generation: int = 0
    divisions: tuple[int, ...] = ()
    waits: bool = False
    ahead_in: int = 0
    copies_ahead: bool = False
    message: str = ""
    batch_size: int = 0
    figures: dict[str, float] = field(default_factory=dict)  # running means per step, seconds
    totals: dict[str, float] = field(default_factory=dict)  # of its last pulse

    @classmethod
    def joining(cls, name: str, incarnation: str, words: Join) -> Member:
        """The member that a join describes."""
        return cls(
            name=name,
            role=words.role,
            incarnation=incarnation,
            pool=words.pool,
            address=words.address,
            joins=words.joins,
            stage=words.stage,
            index=words.index,
            store_address=words.store_address,
            store_secret=words.store_secret,
            metrics_port=words.metrics_port,
            state_at=(words.lineage, words.version),
            divisions=words.divisions,
        )

    @property
    def process(self) -> Address:
        """Its process, for messages."""
        return self.name, self.incarnation

    @property
    def is_worker(self) -> bool:
        """Whether it is a worker, not a parameter server."""
        return self.role == Role.WORKER

    def take_batch_size(self, size: int) -> None:
        """Set the share of a global batch. A new size resets the running means."""
        if self.batch_size != size:
            self.batch_size = size
            self.figures.clear()

    def observe_step(self, figures: dict[str, float]) -> None:
        """Add a step's times to the running means."""
        for name, value in take_figures(self.figures, figures).items():
            previous = self.figures.get(name)
            self.figures[name] = value if previous is None else previous + _SMOOTHING * (value - previous)

    def take_totals(self, totals: dict[str, float]) -> None:
        """Set the totals that the member reports."""
        self.totals.update(take_figures(self.totals, totals, _LARGEST_TOTAL))

    @property
    def operations_per_second(self) -> float:
        """Floating-point operations per second of computing, at the present share of the batch; 0: not measured."""
        seconds = self.figures.get("compute", 0.0)
        return self.batch_size * self.totals.get("operations", 0.0) / seconds if seconds > 0 else 0.0

    def describe(self) -> dict[str, Any]:
        """The member's entry in the job's status."""
        return {
            "name": self.name,
            "role": self.role,
            "stage": self.stage,
            "index": self.index,
            "pool": self.pool,
            "state": self.state,
            "message": self.message,
            "batchSize": self.batch_size,
            "stepSeconds": self.figures.get("step", 0.0),
            "computeSeconds": self.figures.get("compute", 0.0),
            "waitSeconds": self.figures.get("wait", 0.0),
            "figures": dict(self.figures),
            "totals": dict(self.totals),
            "metricsPort": self.metrics_port,
        }


class Roster:
    """The expected and the present members of a plan, and of the one that follows it.

    Attributes:
        present: members by name; all are expected.
        expected: names of all processes of the plan.
        stage_names, server_names: the same of workers, by stage and index, and of servers.
        next_plan: the plan with other stages, or another number of servers, that the members change to when all of its
            processes are present.
        division: number of servers that the state is divided among; 0: there is none yet.
    """

    def __init__(self, plan: PlanDocument) -> None:
        self.present: dict[str, Member] = {}
        self.division = 0
        self._take(plan)

    def _take(self, plan: PlanDocument) -> None:
        self.plan = plan
        self.next_plan: PlanDocument | None = None
        self._next_names: frozenset[str] = frozenset()
        self.stage_names, self.server_names = _names_of(plan)
        self.expected = (*(name for stage in self.stage_names for name in stage), *self.server_names)
        self._names = frozenset(self.expected)

    @property
    def newest_plan(self) -> PlanDocument:
        """The next plan if there is one, else the plan."""
        return self.next_plan or self.plan

    @property
    def all_expected(self) -> tuple[str, ...]:
        """Names of all processes of the plan, then of others that are still needed, or that the next one has."""
        others = self._next_names | self._sources
        return (*self.expected, *sorted(others - self._names))

    def expects(self, name: str) -> bool:
        """Whether the plan, or the next one, has a process of this name, or it is a server that others copy from."""
        return self.takes_part(name) or name in self._next_names

    @property
    def _sources(self) -> frozenset[str]:
        """Names of the servers that the state is divided among."""
        return frozenset(map(ps_name, range(self.division)))

    @property
    def divides(self) -> bool:
        """Whether the state is to be divided among another number of servers."""
        return self.division not in (0, len(self.server_names))

    def takes_part(self, name: str) -> bool:
        """Whether a process of this name has a part in the plan, or in the state; those of the next plan only wait."""
        return name in self._names or name in self._sources

    def rescale(self, plan: PlanDocument, pools: Mapping[str, PoolConfig]) -> list[Member]:
        """Change to a plan that differs in the number of workers, or prepare another one (`take_next_plan`).

        Returns:
            The members that neither plan needs; they are removed.

        Raises:
            ValueError: the plan differs in something that cannot change while the job runs.
        """
        pool = self.plan.parameterServer.pool
        same_stages = _spans_of(plan, pools) == _spans_of(self.plan, pools)
        if plan.parameterServer.pool != pool:
            raise ValueError(f"plan.parameterServer.pool: must stay {pool} {_WHILE_RUNNING}")
        if same_stages and plan.parameterServer.replicas == len(self.server_names):
            self._take(plan)
            return self._without_unexpected()
        if not same_stages:
            _check_stages(self.plan, plan, pools)
        stages, servers = _names_of(plan)
        self.next_plan, self._next_names = plan, frozenset((*itertools.chain(*stages), *servers))
        return self._without_unexpected()

    @property
    def next_complete(self) -> bool:
        """Whether there is a next plan, and all of its processes are present."""
        return self.next_plan is not None and self._next_names <= self.present.keys()

    def next_servers(self) -> list[Member]:
        """Servers of the next plan, whose processes are present, by index; empty: the state stays as it is divided."""
        assert self.next_plan is not None
        number = self.next_plan.parameterServer.replicas
        return [] if self.division in (0, number) else [self.present[ps_name(i)] for i in range(number)]

    def take_next_plan(self) -> list[Member] | None:
        """Change to the next plan if all of its processes are present.

        Returns:
            The members that it does not need, which are removed; None: processes are missing, or there is no such plan.
        """
        if self.next_plan is None or not self.next_complete:
            return None
        self._take(self.next_plan)
        return self._without_unexpected()

    def divided(self) -> list[Member]:
        """Note that the state is divided among the servers of the plan.

        Returns:
            The servers that had a part of it before and that the plan does not need; they are removed.
        """
        self.division = len(self.server_names)
        return self._without_unexpected()

    def _without_unexpected(self) -> list[Member]:
        return [self.present.pop(name) for name in list(self.present) if not self.expects(name)]

    def workers(self, stage: int) -> list[Member]:
        """Present workers of a stage, by index, without those that wait for the next generation."""
        present = (self.present.get(name) for name in self.stage_names[stage])
        return [worker for worker in present if worker is not None and not worker.waits]

    def replicas(self, stage: int) -> list[Member]:
        """Workers of a stage that have its parameters of the last commit; new ones do not."""
        return [m for m in self.workers(stage) if m.holds_state]

    def workers_of_stages(self) -> list[list[Member]]:
        """The same of each stage."""
        return [self.workers(stage) for stage in range(len(self.stage_names))]

    def all_workers(self) -> list[Member]:
        """The same of all stages."""
        return [worker for workers in self.workers_of_stages() for worker in workers]

    def servers(self) -> list[Member]:
        """Present parameter servers, by index."""
        return [self.present[name] for name in self.server_names if name in self.present]

    def sources(self) -> list[Member]:
        """Present servers that the state is divided among, by index, also those that the plan does not need."""
        names = map(ps_name, range(self.division))
        return [self.present[name] for name in names if name in self.present]

    def has_part(self, server: Member) -> bool:
        """Whether a server has its part of the state of the last commit."""
        return server.holds_state and self.division in server.divisions

    def writers(self) -> list[Member]:
        """Members that write a checkpoint: all servers, and one worker of each stage."""
        return [*self.servers(), *(self.workers(stage)[0] for stage in range(len(self.stage_names)))]

    def holds_state(self, pools: Mapping[str, PoolConfig], replication: int, without: Collection[str] = ()) -> bool:
        """Whether the members have the state of the last commit: all rows, and the parameters of each stage.

        Args:
            pools: of the job, by name.
            replication: number of servers that hold each row.
            without: names of servers that do not count.
        """
        holding = {s.index for s in self.sources() if self.has_part(s) and s.name not in without}
        number, stages = self.division, enumerate(self.plan.stages)
        return all(not holding.isdisjoint(holders_of(i, number, replication)) for i in range(number)) and all(
            self.replicas(i) for i, stage in stages if _all_reduces(stage, pools)
        )

    def complete(self) -> bool:
        """Whether all processes of the plan are present."""
        return self._names <= self.present.keys()

    def viable(self) -> bool:
        """Whether training is possible: all parameter servers, and a worker for each stage."""
        return all(name in self.present for name in self.server_names) and all(
            any(name in self.present for name in stage) for stage in self.stage_names
        )


def _names_of(plan: PlanDocument) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Names of the workers of a plan, by stage and index, and of its servers."""
    stages = tuple(tuple(worker_name(i, w) for w in range(stage.pods)) for i, stage in enumerate(plan.stages))
    return stages, tuple(ps_name(i) for i in range(plan.parameterServer.replicas))


def _all_reduces(stage: StageDocument, pools: Mapping[str, PoolConfig]) -> bool:
    return stage.all_reduces(pools[stage.pool].device_type)


def _spans_of(plan: PlanDocument, pools: Mapping[str, PoolConfig]) -> tuple[tuple[str, int, int, bool], ...]:
    return tuple((s.pool, s.firstLayer, s.lastLayer, _all_reduces(s, pools)) for s in plan.stages)


def _check_stages(before: PlanDocument, plan: PlanDocument, pools: Mapping[str, PoolConfig]) -> None:
    """Check that the stages of a plan can follow others while the job runs.

    Raises:
        ValueError: a stage is on another pool than before, or its workers all-reduce.
    """
    for i, (stage, present) in enumerate(zip(plan.stages, before.stages, strict=False)):
        if stage.pool != present.pool:
            raise ValueError(f"plan.stages[{i}].pool: must stay {present.pool}, is {stage.pool}, {_WHILE_RUNNING}")
    if any(_all_reduces(stage, pools) for stage in (*plan.stages, *before.stages)):
        raise ValueError(
            f"plan.stages: must stay those of before {_WHILE_RUNNING}, since workers that all-reduce hold the "
            "dense parameters of their layers"
        )


def check_plan(
    plan: PlanDocument, pools: Mapping[str, PoolConfig], *, encrypted: bool = False, replication: int = 1
) -> None:
    """Check that a plan is one of the job.

    Args:
        plan: to check.
        pools: of the job, by name.
        encrypted: whether all links must be encrypted.
        replication: number of servers that hold each row.

    Raises:
        ValueError: a stage is on an unknown pool, its workers all-reduce although the job encrypts, or there are fewer
            servers than copies of each row.
    """
    if plan.parameterServer.replicas < replication:
        raise ValueError(
            f"plan.parameterServer.replicas: must be at least spec.parameterServer.replication, {replication}, "
            f"is {plan.parameterServer.replicas}: each copy of a row is on another server"
        )
    for i, stage in enumerate(plan.stages):
        if stage.pool not in pools:
            raise ValueError(f"plan.stages[{i}].pool: no pool named {stage.pool!r}; there are {sorted(pools)}")
        if encrypted and stage.pods > 1 and _all_reduces(stage, pools):
            raise ValueError(
                f"plan.stages[{i}].pods: must be 1 with spec.encryption Required, is {stage.pods}: "
                f"its workers on pool {stage.pool} all-reduce, which is not encrypted"
            )
