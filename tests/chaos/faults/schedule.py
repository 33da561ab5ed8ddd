"""Schedules of faults: what happens to whom, when and for how long. Pure, and drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.chaos.faults.kinds import DISK, KINDS, MACHINE, Kind
from tests.chaos.faults.peers import CONTROLLER

__all__ = [
    "CARD",
    "CONSISTENCIES",
    "FIRST_STEP",
    "IN_COPYING",
    "IN_SETUP",
    "REPLICATED",
    "STEPS_BETWEEN",
    "STEPS_PER_EPOCH",
    "TOPOLOGIES",
    "Fault",
    "Run",
    "Topology",
    "draw",
    "draw_endless",
    "draw_run",
    "draw_single",
    "steps_for",
    "with_export",
]

CONSISTENCIES = ("sync", "hybrid", "async")
STEPS_PER_EPOCH = 16
# Messages of each step, and of each checkpoint. A fault happens while such a message is on its way.
_IN_STEP = ("push", "ack", "done", "commit", "commit", "checkpoint", "checkpointed", "file", "manifest")
IN_SETUP = ("join", "generation", "ready", "go")
IN_COPYING = ("copy-shard", "shard-state", "copy-rows", "shard-rows")  # of servers, in a set-up
_AT_END = ("evaluate", "evaluated", "export")
_OWN = {
    "worker": ("push", "ack", "done", "commit"),
    "ps": ("push", "ack", "commit", "checkpoint", "checkpointed"),
    "coordinator": ("done", "commit", "checkpoint", "checkpointed"),
    "worker>ps": ("push", "ack"),
    "worker>worker": ("forward", "backward"),
    "worker>coordinator": ("done", "commit"),
    "ps>coordinator": ("commit", "checkpoint", "checkpointed"),
    "machine": ("file", "manifest"),
}
CARD = "card"  # a pool whose workers all-reduce; those of others do not
FIRST_STEP = 8
STEPS_BETWEEN = 32
_STEPS_AFTER = 24
_SECONDS = (1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 10.0, 25.0, 60.0)  # of pauses: mostly short


@dataclass(frozen=True)
class Topology:
    """The processes of a job.

    Attributes:
        stages: pool and number of workers of each stage.
        servers: number of parameter servers.
        copies: number of them that hold each row.
    """

    stages: tuple[tuple[str, int], ...]
    servers: int
    copies: int = 1

    def __str__(self) -> str:
        stages = " > ".join(f"{count} on {pool}" for pool, count in self.stages)
        copies = f", {self.copies} copies of each row" if self.copies > 1 else ""
        return f"workers {stages}, {self.servers} servers{copies}"

    def workers(self) -> list[str]:
        return [f"worker-{stage}-{i}" for stage, (_, count) in enumerate(self.stages) for i in range(count)]

    def pushes(self, worker: str) -> bool:
        """Whether a worker sends gradients to the servers: not if its stage has no tables and all-reduces."""
        stage = int(worker.split("-")[1])
        return stage == 0 or self.stages[stage][0] != CARD

    def parameter_servers(self) -> list[str]:
        return [f"ps-{i}" for i in range(self.servers)]

    def members(self) -> frozenset[str]:
        return frozenset((*self.workers(), *self.parameter_servers()))

    def processes(self) -> list[str]:
        return [*self.workers(), *self.parameter_servers(), "coordinator", CONTROLLER]

    def links(self) -> list[str]:
        """Return who connects to whom, as `CLIENT>LISTENER`."""
        found = [f"{w}>{server}" for w in self.workers() if self.pushes(w) for server in self.parameter_servers()]
        for stage, ((_, here), (_, there)) in enumerate(pairwise(self.stages)):
            found += [f"worker-{stage}-{i}>worker-{stage + 1}-{j}" for i in range(here) for j in range(there)]
        for stage, (pool, count) in enumerate(self.stages):
            if pool == CARD:  # the first worker has the rendezvous of those that all-reduce
                found += [f"worker-{stage}-{i}>worker-{stage}-0" for i in range(1, count)]
        found += [f"{member}>coordinator" for member in (*self.workers(), *self.parameter_servers())]
        return [*found, f"{CONTROLLER}>coordinator"]


# Workers of the pool `card` hold replicas of the dense parameters, which they all-reduce.
TOPOLOGIES = (
    Topology((("cpu", 2),), 1),
    Topology((("cpu", 2),), 2),
    Topology((("cpu", 2),), 2, copies=2),
    Topology((("cpu", 2), ("card", 1)), 1),
    Topology((("cpu", 1), ("card", 2)), 2),
)
REPLICATED = (
    Topology((("cpu", 2),), 2, copies=2),
    Topology((("cpu", 2),), 3, copies=2),
    Topology((("cpu", 1), ("card", 2)), 3, copies=2),
)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of `KINDS`.
        target: a process, a link (`CLIENT>LISTENER`), `disk` or `machine`.
        op: it happens while such a message is on its way.
        step: at this step or later; -1: at any message of this name.
        near: whether the target must take part in the transfer of the message.
        soon: whether it may happen while the job has not recovered from the previous fault.
        seconds: how long it lasts; 0: it is over at once, or never ends.
        amount: of kinds with a strength (`tests/chaos/faults/disturbances.py`).
        forward: direction, of kinds with a direction.
        plan: that a change (`CHANGES`) leads to.
    """

    kind: str
    target: str
    op: str
    step: int
    near: bool = False
    soon: bool = False
    seconds: float = 0.0
    amount: float = 0.0
    forward: bool = True
    plan: Topology | None = None

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        strength = f" ({KINDS[self.kind].strength.format(self.amount)})" if KINDS[self.kind].strength else ""
        at = f", step {self.step}" if self.step >= 0 else ""
        own = " of its own" if self.near else ""
        target = self.target if self.plan is None else f"to {self.plan}"
        return f"{self.kind} {target}{lasts}{strength} at {self.op!r}{own}{at}{', soon' if self.soon else ''}"


@dataclass(frozen=True)
class Run:
    """A job and its faults.

    Attributes:
        seed: from which all else is drawn.
        consistency: of reads.
        model: `counting` (`tests/counting.py`), or `small`, which is compared with plain PyTorch.
        topology: processes at the beginning.
        steps: of training, whole epochs.
        faults: in the order in which they happen.
        least_seconds: of a micro-batch.
    """

    seed: int
    consistency: str
    model: str
    topology: Topology
    steps: int
    faults: tuple[Fault, ...]
    least_seconds: float = 0.02

    @property
    def limit_seconds(self) -> float:
        """The time in which the job must have succeeded."""
        return 180.0 + sum(KINDS[fault.kind].allowed_seconds + 2 * fault.seconds for fault in self.faults)

    @property
    def plans(self) -> tuple[Topology, ...]:
        """The plans of the job, in their order."""
        return (self.topology, *(fault.plan for fault in self.faults if fault.plan is not None))

    @property
    def most_units(self) -> int:
        """The most units that the job occupies at a time: a plan's, and until it ends also that of the one before."""
        plans = self.plans
        return max(
            len(before.members() | plan.members()) for before, plan in zip(plans, (*plans[1:], plans[-1]), strict=True)
        )

    @property
    def backoff_limit(self) -> int:
        """Restarts that the job may need, as far as the API allows."""
        return min(10 + 4 * len(self.faults), 1000)


def draw(
    seed: int,
    faults: int,
    kinds: Sequence[str],
    consistencies: Sequence[str],
    longest: float = 60.0,
    *,
    replicated: bool = False,
) -> Run:
    """Draw a run; the same arguments give the same run.

    Args:
        seed: of the generator.
        faults: their number.
        kinds: keys of `KINDS` to draw from.
        consistencies: to draw from.
        longest: limit of a fault's duration, seconds.
        replicated: whether servers hold copies of each other's rows; else some do.
    """

    def draw_fault(generator: random.Random, kind: Kind, topology: Topology, earlier: Sequence[Fault]) -> Fault:
        fault = draw_single(generator, kind, topology, earlier, last=len(earlier) == faults - 1, longest=longest)
        if replicated and fault.soon and _is_copied(earlier[-1]):
            return replace(fault, op=generator.choice((*IN_SETUP, *IN_COPYING)))
        return fault

    topologies = REPLICATED if replicated else TOPOLOGIES
    return with_export(draw_run(seed, faults, kinds, consistencies, draw_fault, STEPS_BETWEEN, topologies))


def with_export(run: Run) -> Run:
    """The run without faults at the evaluation, unless it has evaluation data: the small model has none."""
    if run.model == "counting":
        return run
    ends = tuple(replace(fault, op="export") if fault.op in _AT_END else fault for fault in run.faults)
    return replace(run, faults=ends)


def _is_copied(fault: Fault) -> bool:
    """Whether a server is lost whose successor copies its rows, as the job has begun and no other one is missing."""
    return fault.target.startswith("ps-") and ">" not in fault.target and fault.step >= 0


def draw_run(
    seed: int,
    faults: int,
    kinds: Sequence[str],
    consistencies: Sequence[str],
    draw_fault: Callable[[random.Random, Kind, Topology, Sequence[Fault]], Fault],
    steps_between: int,
    topologies: Sequence[Topology] = TOPOLOGIES,
) -> Run:
    """Draw a run whose faults follow each other at a distance, so that most find a job that has recovered.

    Args:
        seed: of the generator.
        faults: their number.
        kinds: keys of `KINDS` to draw from.
        consistencies: to draw from.
        draw_fault: draws a fault of a kind after the earlier ones.
        steps_between: two faults.
        topologies: to draw from.
    """
    generator = random.Random(seed)
    consistency = generator.choice(list(consistencies))
    model = generator.choice(("counting", "small")) if consistency == "sync" else "counting"
    topology = generator.choice(topologies)
    drawn: list[Fault] = []
    for _ in range(faults):
        drawn.append(draw_fault(generator, KINDS[generator.choice(list(kinds))], topology, drawn))
    return Run(seed, consistency, model, topology, steps_for(faults, steps_between), tuple(drawn))


def steps_for(faults: int, steps_between: int) -> int:
    """Return how many steps a job has for its faults, whole epochs."""
    steps = FIRST_STEP + faults * steps_between + _STEPS_AFTER
    return steps + -steps % STEPS_PER_EPOCH


def draw_endless(seed: int, faults: int, kinds: Sequence[str], consistency: str, steps: int, longest: float) -> Run:
    """Draw a run whose faults happen at any step, for a soak.

    Args:
        seed: of the generator.
        faults: their number.
        kinds: keys of `KINDS` to draw from.
        consistency: of reads.
        steps: of the job.
        longest: limit of a fault's duration, seconds.
    """
    generator = random.Random(seed)
    topology = TOPOLOGIES[-1]
    drawn: list[Fault] = []
    while len(drawn) < faults:
        kind = KINDS[generator.choice(list(kinds))]
        fault = draw_single(generator, kind, topology, [], last=False, longest=longest)
        if fault.op not in IN_SETUP:  # which need not come again
            drawn.append(replace(fault, step=-1))
    return Run(seed, consistency, "counting", topology, steps, tuple(drawn), least_seconds=0.1)


def draw_single(
    generator: random.Random, kind: Kind, topology: Topology, earlier: Sequence[Fault], *, last: bool, longest: float
) -> Fault:
    """Draw a fault.

    Args:
        generator: to draw with.
        kind: of the fault.
        topology: processes at that time.
        earlier: faults.
        last: whether it is the last one, which may wait for the end of training.
        longest: limit of its duration, seconds.
    """
    target = generator.choice(_targets(kind, topology))
    step = FIRST_STEP + len(earlier) * STEPS_BETWEEN + generator.randrange(STEPS_BETWEEN // 2)
    soon, near = False, False
    chance = generator.random()
    if earlier and KINDS[earlier[-1].kind].ends_generation and chance < 0.25:
        op, step, soon = generator.choice(IN_SETUP), -1, True
    elif not earlier and chance < 0.1:
        op, step = generator.choice(IN_SETUP), -1
    elif last and chance > 0.7 and kind.of != DISK:  # its faults spare the last checkpoint
        op, step = generator.choice(_AT_END), -1
    else:
        own = _own(target, topology)
        near = bool(own) and kind.of != MACHINE and generator.random() < 0.7
        op = generator.choice(own if near or kind.of == MACHINE else _IN_STEP)
    seconds = min(longest, generator.choice(_SECONDS if kind.lasting else (0.0,)))
    amount = generator.choice(kind.amounts) if kind.amounts else 0.0
    return Fault(kind.name, target, op, step, near, soon, seconds, amount, generator.random() < 0.5)


def _targets(kind: Kind, topology: Topology) -> list[str]:
    match kind.of:
        case "process":
            return topology.processes()
        case "link":
            return topology.links()
    return [kind.of]


def _own(target: str, topology: Topology) -> tuple[str, ...]:
    """Return the messages that pass a link, or that a process sends or receives, in each step or checkpoint."""
    if target in topology.workers() and not topology.pushes(target):
        return ("done", "commit")
    names = target.split(">")
    if names[0].split("-")[:2] == names[-1].split("-")[:2] and len(names) == 2:
        return ()  # workers of one stage, whose messages are gloo's
    roles = ">".join(name.partition("-")[0] for name in names)
    return _OWN.get(roles, ())
