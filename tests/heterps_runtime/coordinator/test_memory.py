"""The memory of workers: what a process says of itself, and what the coordinator exports."""

from __future__ import annotations

import numpy as np

from heterps_runtime.coordinator.figures import JobMetrics
from heterps_runtime.processes.process import resident_bytes
from heterps_runtime.wire.messages import Pulse
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
    metrics = JobMetrics(world.core, world.config, lambda: world.now).collect()
    [family] = [metric for metric in metrics if metric.name == "heterps_worker_memory_bytes"]
    assert [(sample.labels["worker"], sample.value) for sample in family.samples] == [("0", 5e8)]
