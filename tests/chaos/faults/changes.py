"""Draws jobs whose stages and numbers of servers change between the faults, and during them. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.chaos.faults.kinds import CHANGES, JOB, KINDS, Kind
from tests.chaos.faults.schedule import (
    CARD,
    FIRST_STEP,
    IN_COPYING,
    IN_SETUP,
    STEPS_BETWEEN,
    Fault,
    Run,
    Topology,
    draw_single,
    steps_for,
    with_export,
)

__all__ = ["STAGES", "draw_changing", "in_place"]

# Layers follow from the number of stages (`tests/chaos/job.py`). Neighbours on one pool would be one stage. Stages
# without a card follow each other while the job trains; a card's worker holds dense parameters, so the job stops and
# starts again.
STAGES = (
    (("cpu", 2),),
    (("cpu", 1), ("spare", 1)),
    (("cpu", 2), ("spare", 1)),
    (("cpu", 1), ("spare", 2)),
    (("cpu", 1), ("spare", 1), ("cpu", 1)),
    (("cpu", 1), (CARD, 1)),
)
_SERVERS = (1, 2, 3)
_IN_STEP = ("push", "ack", "done", "commit", "checkpoint", "checkpointed", "file", "manifest")
_OTHER_SERVERS = 0.75  # chance that a change has another number of servers
_MEANWHILE = 0.6  # chance that the fault after a change happens during it
_CHANCE_OF_REPLAN = 0.75


def draw_changing(
    seed: int,
    faults: int,
    changes: int,
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
        changes: their number, at most that of faults: each is followed by a fault.
        kinds: keys of `KINDS` to draw faults from.
        consistencies: to draw from.
        longest: limit of a fault's duration, seconds.
        replicated: whether two servers hold each row.
    """
    generator = random.Random(f"changes {seed}")
    consistency = generator.choice(list(consistencies))
    model = generator.choice(("counting", "small")) if consistency == "sync" else "counting"
    copies = 2 if replicated else 1
    first = plan = Topology(generator.choice(STAGES), generator.choice(_SERVERS[copies - 1 :]), copies)
    before_faults = set(generator.sample(range(faults), changes))
    drawn: list[Fault] = []
    for number in range(faults):
        if number in before_faults:
            before, change = plan, _draw_change(generator, plan, len(drawn))
            assert change.plan is not None
            plan = change.plan
            drawn.append(change)
        kind = KINDS[generator.choice(list(kinds))]
        fault = draw_single(generator, kind, plan, drawn, last=number == faults - 1, longest=longest)
        if number in before_faults and (fault.soon or generator.random() < _MEANWHILE):
            fault = _draw_meanwhile(generator, kind, before, drawn[-1], longest)
        drawn.append(fault)
    return with_export(Run(seed, consistency, model, first, steps_for(len(drawn), STEPS_BETWEEN), tuple(drawn)))


def _draw_change(generator: random.Random, before: Topology, position: int) -> Fault:
    plans = [
        Topology(stages, servers, before.copies)
        for stages in STAGES
        for servers in _SERVERS[before.copies - 1 :]
        if Topology(stages, servers, before.copies).members() != before.members()  # or it would not be seen
    ]
    other = generator.random() < _OTHER_SERVERS
    plan = generator.choice([plan for plan in plans if (plan.servers != before.servers) == other])
    kind = CHANGES[0] if generator.random() < _CHANCE_OF_REPLAN else CHANGES[1]
    step = FIRST_STEP + position * STEPS_BETWEEN + generator.randrange(STEPS_BETWEEN // 2)
    return Fault(kind, JOB, generator.choice(_IN_STEP), step, plan=plan)


def _draw_meanwhile(generator: random.Random, kind: Kind, before: Topology, change: Fault, longest: float) -> Fault:
    """Draw a fault during a change: of a process of either plan, at a message that the change brings about."""
    after = change.plan
    assert after is not None
    union = Topology(before.stages, max(before.servers, after.servers), before.copies)
    moment = generator.choice(_moments(before, change))
    fault = draw_single(generator, kind, generator.choice((before, after, union)), [], last=False, longest=longest)
    target = fault.target
    if kind.of == "link" and moment in IN_COPYING:  # who has a part of the new division asks who has one of the old
        asking, asked = after.parameter_servers(), before.parameter_servers()
        target = generator.choice([f"{a}>{b}" for a in asking for b in asked if a != b])
    return replace(fault, target=target, op=moment, step=-1, near=False, soon=True)


def _moments(before: Topology, change: Fault) -> tuple[str, ...]:
    """Messages that are certain to come with a change."""
    after = change.plan
    assert after is not None
    if change.kind == "edit" or not in_place(before, after):
        return IN_SETUP
    setup = IN_SETUP if after.members() - before.members() else IN_SETUP[1:]
    return setup if after.servers == before.servers else (*setup, *IN_COPYING)


def in_place(before: Topology, after: Topology) -> bool:
    """Whether a plan can follow another while the job trains (docs/elasticity.md, "Another plan")."""
    return before.stages == after.stages or not any(
        pool == CARD for topology in (before, after) for pool, _ in topology.stages
    )
