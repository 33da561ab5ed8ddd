"""What a process says of itself beside its times, and what the coordinator exports of it."""

from __future__ import annotations

import numpy as np

from heterps_runtime import contract
from heterps_runtime.coordinator.figures import JobMetrics
from heterps_runtime.processes.process import resident_bytes
from heterps_runtime.wire.messages import Done, Pulse
from tests.heterps_runtime.helpers.coordinator_world import World

MIB = 1 << 20


def test_memory_that_is_used_is_resident() -> None:
    before = resident_bytes()
    assert before is not None
    assert before > 10 * MIB
    held = np.ones(256 * MIB, np.uint8)
    after = resident_bytes()
    assert after is not None
    assert after - before > 200 * MIB
    assert held[0] == 1


def test_a_worker_that_has_said_it_has_its_memory_exported() -> None:
    world = World([("cpu", 0, 2)]).begin()
    first, second = world.workers
    world.say(first, Pulse(0, "running", {"memory": 5e8}))
    world.say(second, Pulse(0, "running", {}))  # its system does not tell
    assert exported(world, contract.METRIC_MEMORY) == {"0": 5e8}


def test_operations_per_second_are_those_of_the_samples_in_the_time_that_they_took() -> None:
    world = World([("cpu", 0, 2)]).begin()
    first, second = world.workers
    world.say(first, Pulse(0, "running", {"operations": 1e6, "round-trip": 0.25}))
    world.say(second, Pulse(0, "running", {"operations": 1e6}))
    assert exported(world, contract.METRIC_OPERATIONS) == {}, "no step was measured"
    assert exported(world, contract.METRIC_ROUND_TRIP) == {"0": 0.25}
    for name, seconds in ((first, 0.5), (second, 0.25)):
        figures = {"step": 1.0, "compute": seconds}
        world.say(name, Done(world.core.membership.generation, 0, 1.0, True, figures))
    assert exported(world, contract.METRIC_OPERATIONS) == {"0": 32e6, "1": 64e6}
    world.core.set_allocation([[20, 12]])
    world.step(4)  # until it takes effect: there are no figures with these sizes yet
    assert exported(world, contract.METRIC_OPERATIONS) == {}


def exported(world: World, name: str) -> dict[str, float]:
    """Values of a series, by worker."""
    metrics = JobMetrics(world.core, world.config, lambda: world.now).collect()
    [family] = [metric for metric in metrics if metric.name == name]
    return {sample.labels["worker"]: sample.value for sample in family.samples}
