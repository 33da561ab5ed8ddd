"""Draws the faults of a job on a cluster: what happens to whom, when and for how long. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.chaos.faults.kinds import KINDS, Kind
from tests.chaos.faults.schedule import FIRST_STEP, Fault, Run, Topology, draw_run

__all__ = ["CONTROLLERS_LEASE_SECONDS", "OPS", "draw"]

OPS = ("start", "step", "checkpoint", "restart")
CONTROLLERS_LEASE_SECONDS = 15.0  # of the campaign's operators: the default

# A fault lasts for up to a minute, and training, though slowed down, must not end meanwhile (`small_model.Held`).
_STEPS_BETWEEN = 96
_SECONDS = (1.0, 5.0, 5.0, 15.0, 30.0, 45.0)
# For workers on CPUs and servers, on three nodes of two cores, of which the coordinator takes a part of one. Beside
# workers on cards it is one of each node, as the scheduler spreads them: those need a part of a core of their node.
_CORES, _CORES_BESIDE_CARDS = 5, 3
_STOP_SECONDS = CONTROLLERS_LEASE_SECONDS + 5.0  # least time after which another operator is active


def draw(seed: int, faults: int, kinds: Sequence[str], consistencies: Sequence[str], longest: float = 60.0) -> Run:
    """Draw a run; the same arguments give the same run.

    Args:
        seed: of the generator.
        faults: their number.
        kinds: names of kinds on a cluster to draw from.
        consistencies: to draw from.
        longest: limit of a fault's duration, seconds; a stopped operator is always stopped for longer than its Lease.
    """

    def draw_fault(generator: random.Random, kind: Kind, topology: Topology, earlier: Sequence[Fault]) -> Fault:
        return _draw_fault(generator, kind, topology, earlier, longest)

    return draw_run(seed, faults, kinds, consistencies, draw_fault, _STEPS_BETWEEN)


def _draw_fault(
    generator: random.Random, kind: Kind, topology: Topology, earlier: Sequence[Fault], longest: float
) -> Fault:
    target = generator.choice(_targets(kind, topology))
    step = FIRST_STEP + len(earlier) * _STEPS_BETWEEN + generator.randrange(_STEPS_BETWEEN // 2)
    chance = generator.random()
    op, soon = generator.choice(("step", "step", "checkpoint")), False
    if earlier and KINDS[earlier[-1].kind].ends_generation and chance < 0.25:
        op, step, soon = "restart", -1, True
    elif not earlier and chance < 0.25:
        op, step = "start", -1
    seconds = min(longest, generator.choice(_SECONDS)) if kind.lasting else 0.0
    if kind.name == "operator-stop":
        seconds = max(seconds, _STOP_SECONDS)
    amount = generator.choice(kind.amounts) if kind.amounts else 0.0
    if kind.name == "resize":  # to what has room beside the other processes
        cores = _CORES_BESIDE_CARDS if len(topology.stages) > 1 else _CORES
        amount = min(amount, cores - topology.servers)
    return Fault(kind.name, target, op, step, soon=soon, seconds=seconds, amount=amount)


def _targets(kind: Kind, topology: Topology) -> list[str]:
    match kind.of:
        case "process":
            return [*topology.workers(), *topology.parameter_servers(), "coordinator"]
        case "worker":  # servers and the coordinator have budgets that protect them, unless users disable these
            return topology.workers()
    return [kind.of]
